/* save.h -- a trainer's state to a checkpoint, and back: of any number of ranks, all of which call
 * it, from one of any other. */
#ifndef PARALLEL_TRAINER_SAVE_H
#define PARALLEL_TRAINER_SAVE_H

#include "parallel/trainer/trainer.h"

/* What a trainer holds for its saves: pieces of all that this rank keeps, and the staging buffer.
 * Once its memory is there. */
void save_open(Trainer *trainer);
void save_close(Trainer *trainer);

/* Commits a checkpoint of the present state below `run` and, unless keep_all, prunes by
 * config->checkpoint.keep. All ranks return the same. */
bool trainer_save(Trainer *trainer, const char *run, const char *config_text, const char *machine,
                  char *err, size_t n);
/* Goes on from a checkpoint: weights, optimizer slots, state. */
bool trainer_load(Trainer *trainer, Checkpoint *checkpoint, char *err, size_t n);

#endif
