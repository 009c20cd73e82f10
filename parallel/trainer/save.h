/* save.h -- saves a trainer's state to a checkpoint and loads it. All ranks call these functions.
 * The number of ranks that load may differ from the number that saved. */
#ifndef PARALLEL_TRAINER_SAVE_H
#define PARALLEL_TRAINER_SAVE_H

#include "parallel/trainer/trainer.h"

/* Creates what a trainer needs to load and save: pieces that describe all weights and optimizer
 * states that this rank keeps, and the staging buffer. Call it after the trainer's memory has been
 * allocated. */
void save_open(Trainer *trainer);
void save_close(Trainer *trainer);

/* Commits a checkpoint of the present state below `run`, the folder of the run. Then, unless
 * keep_all is set, removes older checkpoints as config->checkpoint.keep says. All ranks return the
 * same result. */
bool trainer_save(Trainer *trainer, const char *run, const char *config_text, const char *machine,
                  char *err, size_t n);
/* Begins an asynchronous save of the present state below `run`; `hook` is called before the
 * checkpoint is committed. The trainer must have been allocated for asynchronous saves
 * (Trainer.async) and have no pending save. If there is a single rank, the host does not wait for
 * the device. config_text and machine must stay valid until the save has ended. Returns false on
 * all ranks if the save cannot begin; the caller then calls trainer_save, which saves or says why
 * it cannot. */
bool trainer_save_begin(Trainer *trainer, const char *run, const char *config_text,
                        const char *machine, CheckpointHook hook);
/* trainer_save_advance continues the pending save, and trainer_save_await waits until it has ended;
 * see async_save_advance. As in trainer_save, older checkpoints are not removed if `keep_all` is
 * set. */
AsyncState trainer_save_advance(Trainer *trainer, bool meet, bool drop, AsyncResult *result);
AsyncState trainer_save_await(Trainer *trainer, bool drop, AsyncResult *result);
/* Writes a checkpoint of the present state below `run` like trainer_save, and removes it again. All
 * ranks return the same result. */
bool trainer_try_save(Trainer *trainer, const char *run, const char *config_text,
                      const char *machine, char *err, size_t n);
/* Loads weights, optimizer states and StepState from a checkpoint, so that training continues from
 * there. If the checkpoint holds only weights (checkpoint_weights_only), training begins with these
 * weights at step 0, with the optimizer states of a new trainer. */
bool trainer_load(Trainer *trainer, Checkpoint *checkpoint, char *err, size_t n);
/* Replaces the weights that trainer_allocate has initialised by those of a source; master copies of
 * 16-bit weights get the source's values in full precision. Optimizer states and StepState stay
 * those of a new trainer. Call it after trainer_allocate and before the first step. Each rank
 * passes its own source. Returns false and sets `err` if the weights do not fit (take.h) or cannot
 * be read. */
bool trainer_begin_with(Trainer *trainer, WeightSource *source, Take *take, char *err, size_t n);

#endif
