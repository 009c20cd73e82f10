/* control.h -- exchanges small values in host memory between the ranks' CPU threads, between steps,
 * so that all ranks come to the same decisions. All ranks make the same calls in the same order,
 * and each call returns the same on all ranks. */
#ifndef PARALLEL_GRID_CONTROL_H
#define PARALLEL_GRID_CONTROL_H

#include "model/core/check.h"
#include "parallel/comm/comm.h"

/* Returns the largest of the ranks' values, for example whether any rank wants to stop. */
int64_t control_max(Comm *world, int64_t value);
/* Returns the sum of the ranks' values. */
int64_t control_sum(Comm *world, int64_t value);
/* Copies rank 0's `bytes` bytes to all ranks. */
void control_share(Comm *world, void *data, size_t bytes);
/* Returns a copy of rank 0's `text` on all ranks, which the caller frees, or NULL if rank 0's
 * `text` is NULL. `text` is read only on rank 0. */
char *control_share_text(Comm *world, const char *text);
/* Returns whether `good` is true on all ranks. If not, sets err[0..n) on all ranks to the message
 * of the lowest rank on which it is false. */
bool control_agree(Comm *world, bool good, char *err, size_t n);

/* Ends the program on all ranks with `code`; rank 0 prints the error message. For errors that all
 * ranks have found. With a single rank it is the same as fail(). */
void control_fail(const Comm *world, ExitCode code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* Ends the program (EXIT_CONFIG) if `value` is not the same on all ranks. The message contains
 * `what`, the verb of the message ("computes on"), both values, and `advice` on what to write. */
void control_require_alike(Comm *world, const char *what, const char *value, const char *advice);

#endif
