/* saved_bytes.h -- the size of a run's checkpoints. */
#ifndef PARALLEL_MEMORY_SAVED_BYTES_H
#define PARALLEL_MEMORY_SAVED_BYTES_H

#include "configs/config.h"
#include "model/param/param.h"

#include <stddef.h>

/* Returns the bytes of the tensors in a checkpoint: the whole tensors of all ranks, without
 * padding; SIZE_MAX if they do not fit into 64 bits. `table` may be the table of any rank, because
 * each has the rows of all parameters. */
size_t saved_bytes_of(const Config *config, const ParamTable *table);
/* Returns the bytes of host memory in which rank `rank` of `ranks` stores a snapshot
 * (async_save.h); SIZE_MAX if a checkpoint has 2^61 bytes or more. */
size_t snapshot_bytes_of(const Config *config, const ParamTable *table, int ranks, int rank);
/* Returns the largest number of bytes that snapshots take on a node, if each node has
 * `ranks_of_node` of the `ranks`; 0 if saves are not to be asynchronous. config->model.vocab_size
 * must be set. */
int64_t snapshot_bytes_of_node(const Config *config, int64_t ranks, int64_t ranks_of_node);
/* Returns the largest number of bytes of a checkpoint that one of `ranks` ranks writes. They are
 * counted as in a snapshot, whether or not saves are asynchronous. config->model.vocab_size must be
 * set. */
int64_t saved_bytes_of_writer(const Config *config, int64_t ranks);
/* Returns whether saves of a run with this config are to be asynchronous: checkpoint.async, unless
 * the run saves only at its end. */
bool snapshot_wanted(const Config *config);
/* Returns how many seconds a save of `bytes` bytes is assumed to take before a save has been
 * measured: at 200 MB/s, which a shared file system accepts from one writer. */
double saved_seconds(double bytes);
/* Does the same as saved_bytes_of, but needs only a config. config->model.vocab_size must be
 * set. */
size_t saved_bytes(const Config *config);

#endif
