/* training.h -- how a test opens trainers: config and data once, then a trainer on each of its
 * ranks, which are threads. */
#ifndef TESTS_SUPPORT_TRAINER_TRAINING_H
#define TESTS_SUPPORT_TRAINER_TRAINING_H

#include "parallel/trainer/trainer.h"
#include "tests/support/grid/thread_ranks.h"

/* A folder of this program's own, with a text of drawn words. */
typedef struct {
    char folder[64], text[96], cache[96];
} Folder;

/* Setup of a group of tests: makes the folder, *state; teardown removes it. */
int trainer_folder_setup(void **state);
int trainer_folder_teardown(void **state);

/* What all ranks share. The config is settled, and belongs to the training. */
typedef struct {
    const Config *config;
    DataSet data;
    int ranks;
} Training;

/* A small GPT over the folder's text, for so many ranks; sets ("key=value", over the config of this
 * file) end with NULL. On TEST_DEVICE where that is set and the sets name no device; doubles are
 * the CPU's. A config that is refused fails the test. */
void training_of_text(Training *t, const Folder *folder, int ranks, const char *const *sets);
/* The same over another config than this file's, JSON without data.text, on the device it names. */
void training_of_config(Training *t, const char *json, const Folder *folder, int ranks,
                        const char *const *sets);
/* Over drawn tokens instead of a text. Takes the config. */
void training_of_tokens(Training *t, const Config *config, int ranks);
void training_close(Training *t);

/* Runs body(world, context) on all ranks at once, rank 0 on the calling thread; no wait is longer
 * than 60 seconds. In bodies no assertion of cmocka's may fail: they report with rank_wrong. */
void training_run(const Training *t, RankBody body, void *context);

/* Opens this rank's trainer, which trainer_close ends. What is refused ends the program with its
 * sentence. World NULL: a single rank. */
void training_open_rank(Trainer *trainer, Comm *world, const Training *t);
/* The same in two parts, for tests that do something between: all is laid out, but no memory is
 * taken; then it is. */
void training_lay_out(Trainer *trainer, Comm *world, const Training *t);
void training_allocate(Trainer *trainer, const Training *t);

#endif
