/* control.h -- what the hosts of a world agree on between steps: small values in host memory. All
 * ranks make the same calls in the same order; each returns the same on all ranks. */
#ifndef PARALLEL_GRID_CONTROL_H
#define PARALLEL_GRID_CONTROL_H

#include "model/core/check.h"
#include "parallel/comm/comm.h"

/* The largest of the ranks' values: any wish, any failure. */
int64_t control_max(Comm *world, int64_t value);
/* The sum of the ranks' values. */
int64_t control_sum(Comm *world, int64_t value);
/* Rank 0's `bytes` bytes on all ranks. */
void control_share(Comm *world, void *data, size_t bytes);
/* Rank 0's text on all ranks: NULL stays NULL. What it returns is the caller's to free; `text` is
 * only read, and on rank 0 alone. */
char *control_share_text(Comm *world, const char *text);
/* Whether all ranks are `good`. Else false on all, and err[0..n) is that of the lowest rank which
 * is not. */
bool control_agree(Comm *world, bool good, char *err, size_t n);

/* All ranks end the program with `code`, and rank 0 prints the sentence: for what all ranks have
 * found out. A single rank fails like any program. */
void control_fail(const Comm *world, ExitCode code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* Ends the program (EXIT_CONFIG) where `value` is not the same on all ranks: `what` the ranks do
 * with it ("compute on"), both values, and `advice`, what to write. */
void control_require_alike(Comm *world, const char *what, const char *value, const char *advice);

#endif
