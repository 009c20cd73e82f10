/* progress.c -- implements progress.h: the live line on a terminal and the messages about
 * progress. */
#include "model/core/progress.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/terminal.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static const double first_after = 1, terminal_every = 0.5, message_every = 60;

/* ---- the live line --------------------------------------------------------------------------- */

static void clear_stdout(void)
{
    live_line_clear(stdout);
    fflush(stdout);
}

void live_line_show(FILE *to, const char *text)
{
    /* Use one column less than the terminal has: a text of the full width would start a new line.
     * The rest of the old line is cleared after the new text is printed, not before, to avoid
     * flicker. */
    fprintf(to, "\r%.*s\033[K", (int)text_cut(text, terminal_columns(to) - 1), text);
    fflush(to);
    log_set_clear_line(clear_stdout);
}

void live_line_clear(FILE *to)
{
    log_set_clear_line(NULL);
    fputs("\r\033[K", to);
}

/* ---- progress -------------------------------------------------------------------------------- */

void progress_again(Progress *p)
{
    p->next = seconds_now() + (p->terminal ? first_after : message_every);
    p->shown = false;
}

Progress progress_begin(void)
{
    Progress p = {.terminal = isatty(STDOUT_FILENO)};
    p.every = p.terminal ? terminal_every : message_every;
    progress_again(&p);
    return p;
}

bool progress_due(const Progress *p)
{
    return seconds_now() >= p->next;
}

void progress_print(Progress *p, const char *fmt, ...)
{
    char text[256] = "  "; /* indented like the rows of a table */
    if (p == NULL) return;
    double now = seconds_now();
    if (now < p->next || log_rank() != 0 || log_level() > LOG_INFO) return;
    p->next = now + p->every;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + 2, sizeof text - 2, fmt, args);
    va_end(args);
    p->shown = p->terminal;
    if (p->terminal)
        live_line_show(stdout, text);
    else
        log_info("%s", text);
}

void progress_end(Progress *p)
{
    if (p->shown) clear_stdout();
    p->shown = false;
}
