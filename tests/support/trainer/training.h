/* training.h -- opens trainers for tests: config and data once, then a trainer on each rank. */
#ifndef TESTS_SUPPORT_TRAINER_TRAINING_H
#define TESTS_SUPPORT_TRAINER_TRAINING_H

#include "parallel/trainer/trainer.h"
#include "tests/support/grid/thread_ranks.h"

/* A scratch folder of this program with a text of random words. */
typedef struct {
    char folder[64], text[96], cache[96];
} Folder;

/* Setup of a group of tests: creates the folder and stores it in *state; teardown removes it. */
int trainer_folder_setup(void **state);
int trainer_folder_teardown(void **state);

/* What all ranks share. The config is settled, and the training owns it. */
typedef struct {
    const Config *config;
    DataSet data;
    int ranks;
} Training;

/* Opens a small GPT over the folder's text, for `ranks` ranks. `sets` are settings "key=value" on
 * top of this file's config, ended by NULL. Uses TEST_DEVICE if it is set and no setting names a
 * device; f64 always runs on the CPU. A config that is refused fails the test. */
void training_of_text(Training *t, const Folder *folder, int ranks, const char *const *sets);
/* Like training_of_text, with another config: `json` without data.text, on the device that it
 * names. */
void training_of_config(Training *t, const char *json, const Folder *folder, int ranks,
                        const char *const *sets);
/* Opens a training over random tokens instead of a text. Takes ownership of the config. */
void training_of_tokens(Training *t, const Config *config, int ranks);
void training_close(Training *t);

/* Runs body(world, context) on all ranks at once, rank 0 on the calling thread; no wait may take
 * longer than 60 seconds. Bodies must not use cmocka's assertions; they report errors with
 * rank_wrong. */
void training_run(const Training *t, RankBody body, void *context);

/* Opens this rank's trainer; trainer_close closes it. An error ends the program with its message.
 * World NULL: a single rank. */
void training_open_rank(Trainer *trainer, Comm *world, const Training *t);
/* Do the same in two parts, for tests that do something in between: training_lay_out lays
 * everything out without memory, training_allocate allocates it. */
void training_lay_out(Trainer *trainer, Comm *world, const Training *t);
void training_allocate(Trainer *trainer, const Training *t);

#endif
