/* process_ends.h -- expects how ranks that are processes end: with which code, which message, and
 * how soon. */
#ifndef TESTS_SUPPORT_GRID_PROCESS_ENDS_H
#define TESTS_SUPPORT_GRID_PROCESS_ENDS_H

#include "tests/support/grid/process_ranks.h"

typedef struct {
    const char *name;
    RankBody body;
    int ranks;
    double timeout; /* seconds */
    int code;
    /* stderr must contain these; if there are none, it must be empty. If the first two begin with
     * "error[", they are two messages. */
    const char *said[3];
} ProcessEnd;

/* In the next expectation, this rank must end with this code, too. At most twice. */
void process_expect_code(int rank, int code);
/* In the next expectation, the ranks may also end with this code: if a rank ends because another
 * one has been killed, the kernel may report its end first. */
void process_allow_code(int code);
/* Runs the body on these ranks in a child process. The test fails unless they end so, with so many
 * messages, and within two seconds and `more` after the timeout. */
void process_expect_end(const ProcessEnd *end, double more);
/* The same with so many messages. */
void process_expect_errors(const ProcessEnd *end, double more, int errors);

#endif
