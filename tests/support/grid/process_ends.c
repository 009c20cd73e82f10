/* process_ends.c -- see process_ends.h. */
#include "tests/support/grid/process_ends.h"

#include "model/core/clock.h"
#include "tests/support/files/child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CODES = 2 };
static struct {
    int n, rank[CODES], code[CODES];
    int allowed; /* 0: none */
} also;

void process_expect_code(int rank, int code)
{
    assert_true(also.n < CODES);
    also.rank[also.n] = rank;
    also.code[also.n++] = code;
}

void process_allow_code(int code)
{
    also.allowed = code;
}

static void run_end(void *context)
{
    const ProcessEnd *end = context;
    char wrong[256];
    int code = process_ranks(end->ranks, end->timeout, end->body, NULL, wrong, sizeof wrong);
    for (int i = 0; i < also.n; i++) {
        int ended = process_code_of_rank(also.rank[i]);
        if (ended != also.code[i])
            fprintf(stderr, "error[wrong] rank %d has ended with %d\n", also.rank[i], ended);
    }
    if (wrong[0]) fprintf(stderr, "error[wrong] %s", wrong);
    fflush(stderr);
    _exit(code);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        n++;
    return n;
}

void process_expect_errors(const ProcessEnd *end, double more, int errors)
{
    char text[8192];
    double start = seconds_now();
    int code = child_run(run_end, (void *)(uintptr_t)end, text, sizeof text);
    double seconds = seconds_now() - start;
    bool right = code == end->code || (also.allowed && code == also.allowed);
    also.n = also.allowed = 0;
    if (!right) fail_msg("%s: %d, not %d: %s", end->name, code, end->code, text);
    for (int i = 0; i < 3 && end->said[i]; i++)
        if (strstr(text, end->said[i]) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", end->name, end->said[i], text);
    if (count(text, "error[") + count(text, "bug[") != errors)
        fail_msg("%s: not %d errors: %s", end->name, errors, text);
    double slow = getenv("TEST_SAMPLE") ? 2 : 1; /* builds that check every access */
    if (seconds > slow * (end->timeout + more + 2))
        fail_msg("%s: %g s: %s", end->name, seconds, text);
}

void process_expect_end(const ProcessEnd *end, double more)
{
    bool second = end->said[1] && strncmp(end->said[1], "error[", 6) == 0;
    process_expect_errors(end, more, (end->said[0] != NULL) + second);
}
