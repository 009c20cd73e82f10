/* screen.c -- implements screen.h. */
#include "tests/support/trainer/screen.h"

#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void screen_show(Screen *s, const char *text)
{
    int column = 0;
    for (const char *p = text; *p; p++) {
        char *line = s->line[s->lines];
        if (*p == '\r') {
            s->redrawn += p[1] != '\n' && p[1] != '\r';
            column = 0;
        } else if (*p == '\n') {
            assert_true(++s->lines < MOST_LINES);
        } else if (strncmp(p, "\033[K", 3) == 0) {
            line[column] = '\0';
            p += 2;
        } else if (*p == '\033') {
            p += strcspn(p, "m");
            assert_int_equal(*p, 'm');
        } else {
            assert_true((unsigned char)*p >= 32 && column + 1 < CELLS);
            if (line[column] == '\0') line[column + 1] = '\0';
            line[column++] = *p;
        }
    }
}

bool screen_has(const Screen *s, const char *text)
{
    for (int i = 0; i <= s->lines; i++)
        if (strstr(s->line[i], text)) return true;
    return false;
}

char *screen_unfolded(const Screen *s)
{
    char *text = calloc(MOST_LINES, CELLS), *to = text;
    assert_non_null(text);
    for (int i = 0; i <= s->lines; i++)
        for (const char *p = s->line[i] + strspn(s->line[i], " "); *p || p[-1] != ' '; p++) {
            *to++ = *p ? *p : ' ';
            if (*p == '\0') break;
        }
    return text;
}

bool screen_says(const Screen *s, const char *text)
{
    char *all = screen_unfolded(s);
    bool found = strstr(all, text) != NULL;
    free(all);
    return found;
}

void screen_fits(const Screen *s)
{
    for (int i = 0; i <= s->lines; i++)
        if (strlen(s->line[i]) >= (size_t)disturbance.columns)
            fail_msg("%zu columns: %s", strlen(s->line[i]), s->line[i]);
}

Screen *screen_of_run(const char *run, const char *const *sets, int code, char **sent)
{
    Screen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    if (disturbance.columns == 0) disturbance.columns = COLUMNS;
    *sent = run_expecting(run, sets, code);
    screen_show(s, *sent);
    return s;
}
