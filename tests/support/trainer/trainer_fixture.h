/* trainer_fixture.h -- a small training run for tests: its text, its opening over a config with
 * changes, and what is left after some steps, to compare bit by bit. */
#ifndef TESTS_SUPPORT_TRAINER_TRAINER_FIXTURE_H
#define TESTS_SUPPORT_TRAINER_TRAINER_FIXTURE_H

#include "parallel/memory/memory_plan.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/save.h"

/* A folder of this program's own, with a text of drawn words. */
typedef struct {
    char folder[64], text[96], cache[96];
} Folder;

/* Setup of a group of tests: makes the folder, *state; teardown removes it. */
int trainer_folder_setup(void **state);
int trainer_folder_teardown(void **state);

typedef struct {
    const Config *config;
    DataSet data;
    Trainer trainer;
    MemoryPlan plan; /* made before anything was allocated */
} Opened;

/* Config and data alone, for so many ranks, which open trainers of their own over them. */
void trainer_run_prepare(Opened *o, const Folder *p, int ranks, const char *const *sets);
/* A trainer over the folder's text; sets ("key=value", over the fixture's config) end with NULL. On
 * TEST_DEVICE where that is set and the sets name no device; doubles are the CPU's. */
void trainer_run_open(Opened *o, const Folder *p, const char *const *sets);
void trainer_run_close(Opened *o);

/* Bytes of the host's memory that the plan knows of, as they were taken: page-locked ones, and the
 * lists of actions and uses. */
size_t trainer_run_host_bytes(const Opened *o);

/* Weights, slots and state after a run, with its records. */
typedef struct {
    unsigned char *bytes;
    size_t size;
    StepState state;
    StepRecord record[64];
    int n;
} Trained;

/* Takes steps until `until` are done, and adds their records. */
void trainer_run_steps(Opened *o, Trained *out, int64_t until);
/* Fills in all but the records; the caller frees the bytes. */
void trainer_run_read(Opened *o, Trained *out);
/* Fails unless weights, slots, state and records are the same bits. */
void trained_equal(const Trained *a, const Trained *b, const char *what);

#endif
