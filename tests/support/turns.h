/* turns.h -- selects which of many cases a test tries in one run, so a long list of cases is spread
 * over several runs of the tests. */
#ifndef TESTS_SUPPORT_TURNS_H
#define TESTS_SUPPORT_TURNS_H

#include <stdint.h>

/* Returns n such that every n-th case is tried: the environment variable TEST_EVERY; else `sample`
 * if TEST_SAMPLE is set; else 1, which means all cases. */
int64_t turns_every(int64_t sample);
/* Returns the number of the first case to try: (TEST_TURN + TEST_LATER) modulo `every`; both are 0
 * unless set. scripts/test.sh sets TEST_TURN to the number of commits, so a commit always tries the
 * same cases, and `every` commits in a row try all. TEST_LATER=N tries the cases that the commit N
 * commits later would try, for a second run of the same test. */
int64_t turns_first(int64_t every);

#endif
