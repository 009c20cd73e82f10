/* rank_ends.c -- see rank_ends.h. */
#include "tests/support/grid/rank_ends.h"

#include "tests/support/files/child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const RankEnd *end;
    double timeout;
    void *context;
} Start;

static void run_ranks(void *context)
{
    const Start *start = context;
    thread_ranks(start->end->ranks, start->timeout, start->end->body, start->context);
}

pid_t rank_end_start(const RankEnd *end, double timeout, void *context, int *said)
{
    return child_start(run_ranks, &(Start){end, timeout, context}, said);
}

/* Takes out the machines that messages name if TEST_LINKS makes ranks that are on several, so that
 * tests expect the same as of threads: "rank 1 (on host1)", "rank 1 (on host1; group tp)". */
static void leave_out_machines(char *text)
{
    static const char begin[] = " (on host";
    if (getenv("TEST_LINKS") == NULL) return;
    for (char *at = text; (at = strstr(at, begin)) != NULL;) {
        char *end = at + strcspn(at, ";)");
        if (*end == '\0') return;
        if (*end == ';') at += 2; /* keep the bracket, and drop the blank after the semicolon */
        const char *rest = *end == ';' ? end + 2 : end + 1;
        memmove(at, rest, strlen(rest) + 1);
    }
}

void rank_end_check(const RankEnd *end, pid_t child, int said)
{
    char text[2048];
    int code = child_end(child, said, text, sizeof text);
    leave_out_machines(text);
    if (code != end->code) fail_msg("%s: %d, not %d: %s", end->name, code, end->code, text);
    for (int i = 0; i < 4 && end->said[i]; i++)
        if (strstr(text, end->said[i]) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", end->name, end->said[i], text);
}

void rank_end_expect(const RankEnd *end, double timeout, void *context)
{
    int said;
    pid_t child = rank_end_start(end, timeout, context, &said);
    rank_end_check(end, child, said);
}
