/* saved_bytes.h -- the size of a run's checkpoints. */
#ifndef PARALLEL_MEMORY_SAVED_BYTES_H
#define PARALLEL_MEMORY_SAVED_BYTES_H

#include "configs/config.h"
#include "model/param/param.h"

#include <stddef.h>

/* Returns the bytes of the tensors in a checkpoint, which are those of all ranks, whole and without
 * padding; SIZE_MAX if they do not fit into 64 bits. `table` may be any rank's: each has the rows
 * of all parameters. */
size_t saved_bytes_of(const Config *config, const ParamTable *table);
/* Returns the bytes of host memory in which rank `rank` of `ranks` stores a snapshot
 * (async_save.h); SIZE_MAX if a checkpoint is absurdly large. */
size_t snapshot_bytes_of(const Config *config, const ParamTable *table, int ranks, int rank);
/* Returns the most that the snapshots of the ranks of one node take, if each node has
 * `ranks_of_node` of the `ranks`; 0 if saves shall not be asynchronous. config->model.vocab_size
 * must be set. */
int64_t snapshot_bytes_of_node(const Config *config, int64_t ranks, int64_t ranks_of_node);
/* Returns the most that one of `ranks` ranks writes of a checkpoint, as bytes of a snapshot,
 * whether saves are asynchronous or not. config->model.vocab_size must be set. */
int64_t saved_bytes_of_writer(const Config *config, int64_t ranks);
/* Returns whether saves of such a run shall be asynchronous: checkpoint.async, unless it saves only
 * at its end. */
bool snapshot_wanted(const Config *config);
/* Returns how many seconds a save of so many bytes is assumed to take as long as none has been
 * measured: with 200 MB/s, which a shared file system takes from one writer. */
double saved_seconds(double bytes);
/* Returns the bytes for a config alone. config->model.vocab_size must be set. */
size_t saved_bytes(const Config *config);

#endif
