/* best.h -- reads and writes the content of RUN/checkpoints/best.json. Private to
 * parallel/checkpoint; other folders include checkpoint.h. */
#ifndef PARALLEL_CHECKPOINT_BEST_H
#define PARALLEL_CHECKPOINT_BEST_H

#include "parallel/checkpoint/checkpoint.h"

/* Parses the text of best.json. Returns false and clears *best unless the text is one JSON object
 * that has all members of the struct, with possible values. */
bool best_parse(CheckpointBest *best, const char *text, size_t bytes);
/* Returns the text of best.json; the caller frees it. */
char *best_text(const CheckpointBest *best);

#endif
