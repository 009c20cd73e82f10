/* checked_cases.h -- the list of op calls (shapes and options) that tests compare with the oracle.
 */
#ifndef TESTS_SUPPORT_ORACLE_CHECKED_CASES_H
#define TESTS_SUPPORT_ORACLE_CHECKED_CASES_H

#include "model/kernels/op_cases.h"

/* Sets *cases to calls with tiny, odd and irregular shapes, several for every op, and returns their
 * number. A new op needs calls here and, for benchmarks, in model/kernels/op_cases_table.c. */
int checked_cases(const OpCase **cases);
/* Returns word `word` of the table of segments for case `c` (FILL_SEGMENTS). The first segment
 * begins before the range, the second is a column slice that begins at an odd position, and the
 * third begins at a multiple of 4. */
int64_t checked_segment_word(const OpCase *c, int64_t word);

#endif
