/* take.h -- fills the weights of a run from a WeightSource: a checkpoint of another run or dtype,
 * or another program's files. Nothing else is taken: steps, data and optimizer states begin anew.
 */
#ifndef PARALLEL_CHECKPOINT_TAKE_H
#define PARALLEL_CHECKPOINT_TAKE_H

#include "model/weights/source.h"
#include "parallel/checkpoint/checkpoint.h"

/* What is taken, and the outcome. */
typedef struct {
    const char *from; /* where the weights come from, for messages: "checkpoint.init_from out/d" */
    /* true: token ids mean the same in the source and in the run, or the user says so
     * (checkpoint.init_from_tokenizer). Then rows of the source beyond the run's vocabulary belong
     * to no token of the run, and are left out. false: a tensor with such rows does not fit. */
    bool same_ids;
    char notice[512]; /* set by take_fits: a sentence about rows that are left out; "": none are */
    /* Set if the source is intact but unsuitable for this config: a tensor does not fit, or this
     * rank has found a value that its dtype cannot represent. */
    bool refused;
} Take;

/* Compares the source with a run's weights by name and shape; dtypes may differ. Two kinds of rows
 * may be left out, at the end of the tensors that have them: positions beyond the run's maximum,
 * and, with same_ids, token ids beyond its vocabulary. If tensors do not fit, returns false and
 * sets `err`, which names each of them with both shapes and, if it is known, what to write instead.
 * Reads no data. */
bool take_fits(const WeightSource *source, Take *take, const Piece *weights, int n_weights,
               char *err, size_t n);

/* Fills weights[0..n_weights) from the source, which take_fits has accepted, and masters[i] too if
 * weight i has a master copy (otherwise its name is NULL). Masters get the source's values in their
 * own dtype, and weights get the masters' values, rounded to nearest even. Each rank reads only the
 * rows that contain some of its elements. All ranks of `io` must call it, each with its own source,
 * and get the same result. A finite value that a dtype cannot represent is an error. After false,
 * the contents of the pieces are undefined. */
bool take_weights(CheckpointIo *io, WeightSource *source, Take *take, const Piece *weights,
                  const Piece *masters, int n_weights, char *err, size_t n);

#endif
