/* source.h -- the weights of a checkpoint as a WeightSource: for export, and for a run that begins
 * with the weights of another one. */
#ifndef PARALLEL_CHECKPOINT_SOURCE_H
#define PARALLEL_CHECKPOINT_SOURCE_H

#include "model/weights/source.h"
#include "parallel/checkpoint/checkpoint.h"

/* Presents the weights of an open checkpoint, which may be in several files, in the order of the
 * files. It is not collective: each rank may open its own source and read what it needs.
 *
 * Each time a chunk is read, its checksum is compared before any of its rows is returned; damage is
 * reported with the file and the tensor. The last chunk stays in memory, so reading a tensor from
 * its first row to its last reads each chunk once. The source holds at most one chunk:
 * MANIFEST_CHUNK_BYTES and a row.
 *
 * The source borrows the checkpoint, which the caller closes after the source. Returns false and
 * sets `err` if a tensor is no weight of this program: more than two dimensions, no floating-point
 * type, or a longer name than SourceTensor holds. */
bool checkpoint_source_open(Checkpoint *c, WeightSource **out, char *err, size_t n);
/* Like checkpoint_source_open, but if the checkpoint has a master copy of a weight, presents that
 * copy instead of the weight. It has the values before rounding to 16 bits, which a run that begins
 * with these weights needs. */
bool checkpoint_source_open_masters(Checkpoint *c, WeightSource **out, char *err, size_t n);

#endif
