/* counted.h -- a simulated world of which only one rank exists. With it, one rank's layout, memory
 * and calls can be computed without the other ranks, in a world of any size. Its calls are counted
 * as in any group. */
#ifndef PARALLEL_COMM_COUNTED_H
#define PARALLEL_COMM_COUNTED_H

#include "parallel/comm/comm.h"

/* Returns the world of `size` ranks as its rank `rank` sees it; comm_close closes it. Groups must
 * be made by comm_line, not by comm_split, because it is unknown which ranks would pass the same
 * color.
 *
 * Calls return at once. A host call acts as if all ranks had passed the same value: a sum is `size`
 * times the value (f64, f32, i64, i32), a maximum the value, an all-gather makes `size` copies, a
 * broadcast leaves the tensor unchanged, and a receive writes nothing. Calls that a device carries
 * move no data. */
Comm comm_counted(int rank, int size);
/* Returns whether the group belongs to a world that comm_counted has made. Returns false for a
 * group of one rank made by comm_line, which is the same in all worlds. */
bool comm_is_counted(const Comm *comm);

#endif
