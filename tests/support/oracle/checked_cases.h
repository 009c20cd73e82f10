/* checked_cases.h -- the calls of each op that are checked against its oracle. */
#ifndef TESTS_SUPPORT_ORACLE_CHECKED_CASES_H
#define TESTS_SUPPORT_ORACLE_CHECKED_CASES_H

#include "model/kernels/op_cases.h"

/* Odd, tiny and irregular calls, every op among them; returns how many there are. Whoever adds an
 * op gives it calls here and, for timing, in model/kernels/op_cases_table.c. */
int checked_cases(const OpCase **cases);
/* Word `word` of a table of segments (FILL_SEGMENTS): one segment begins before the range, one cuts
 * columns from an odd border on, and one begins at a multiple of 4. */
int64_t checked_segment_word(const OpCase *c, int64_t word);

#endif
