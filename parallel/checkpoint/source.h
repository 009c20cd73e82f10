/* source.h -- the weights of a checkpoint as a WeightSource: for export, and for a run that begins
 * with the weights of another one. */
#ifndef PARALLEL_CHECKPOINT_SOURCE_H
#define PARALLEL_CHECKPOINT_SOURCE_H

#include "model/weights/source.h"
#include "parallel/checkpoint/checkpoint.h"

/* Presents the weights of an open checkpoint, however many files they are in, in the order of the
 * files. It is not collective: each rank may read what it needs from a source of its own.
 *
 * Every row that is read belongs to a chunk whose checksum has been compared after the chunk was
 * read for the last time; damage is reported with the file and the tensor. The last chunk stays in
 * memory, so reading a tensor from its first row to its last reads each chunk once. The source
 * holds at most one chunk: MANIFEST_CHUNK_BYTES and a row.
 *
 * The source borrows the checkpoint, which the caller closes after the source. Returns false and
 * sets `err` if a tensor is no weight of this program: more than two dimensions, no floating-point
 * type, or a longer name than SourceTensor holds. */
bool checkpoint_source_open(Checkpoint *c, WeightSource **out, char *err, size_t n);
/* Does the same, but presents a weight's master copy in its place if the checkpoint has one: the
 * values before they were rounded to 16 bits, as another run that begins with them needs them. */
bool checkpoint_source_open_masters(Checkpoint *c, WeightSource **out, char *err, size_t n);

#endif
