/* turns.h -- which of many cases a run tries. */
#ifndef TESTS_SUPPORT_TURNS_H
#define TESTS_SUPPORT_TURNS_H

#include <stdint.h>

/* Every so manyth case is tried: TEST_EVERY, or `sample` with TEST_SAMPLE, or 1: all of them. */
int64_t turns_every(int64_t sample);
/* The first of them, below `every`: TEST_TURN modulo `every`. scripts/test.sh sets TEST_TURN to the
 * number of the commit, so that every case comes within `every` commits, and a commit always has
 * the same; 0 without it. */
int64_t turns_first(int64_t every);

#endif
