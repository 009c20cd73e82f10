/* turns.h -- which of many cases a run tries. */
#ifndef TESTS_SUPPORT_TURNS_H
#define TESTS_SUPPORT_TURNS_H

#include <stdint.h>

/* Returns n if every n-th case is to be tried: TEST_EVERY, or `sample` if TEST_SAMPLE is set, or 1
 * for all cases. */
int64_t turns_every(int64_t sample);
/* Returns the number of the first case to try: (TEST_TURN + TEST_LATER) modulo `every`; both are 0
 * unless set. scripts/test.sh sets TEST_TURN to the number of commits, so a commit always tries the
 * same cases, and `every` commits in a row try all. TEST_LATER=N tries the cases that the commit N
 * commits later would try, for a second run of the same test. */
int64_t turns_first(int64_t every);

#endif
