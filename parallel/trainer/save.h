/* save.h -- a trainer's state to a checkpoint, and back. */
#ifndef PARALLEL_TRAINER_SAVE_H
#define PARALLEL_TRAINER_SAVE_H

#include "parallel/trainer/trainer.h"

/* Commits a checkpoint of the present state below `run` and, unless keep_all, prunes by
 * config->checkpoint.keep. */
bool trainer_save(Trainer *trainer, const char *run, const char *config_text, const char *machine,
                  char *err, size_t n);
/* Goes on from a checkpoint: weights, optimizer slots, state. */
bool trainer_load(Trainer *trainer, Checkpoint *checkpoint, char *err, size_t n);

#endif
