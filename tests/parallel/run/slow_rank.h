/* slow_rank.h -- lets work that takes no time seem to take long. */
#ifndef TESTS_PARALLEL_RUN_SLOW_RANK_H
#define TESTS_PARALLEL_RUN_SLOW_RANK_H

/* The rank on which every call of seconds_now advances its clock by a minute; negative: none. Set
 * it in a child process only. Defined in test_clocks.c. */
extern int slow_rank;

/* Advances the clock (seconds_now) of the calling thread, which is a rank, by `seconds`. */
void seconds_pass(double seconds);

#endif
