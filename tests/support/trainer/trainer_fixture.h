/* trainer_fixture.h -- a trainer of one rank over a training (training.h), and what is left of it
 * after some steps, to compare bit by bit. */
#ifndef TESTS_SUPPORT_TRAINER_TRAINER_FIXTURE_H
#define TESTS_SUPPORT_TRAINER_TRAINER_FIXTURE_H

#include "parallel/memory/memory_plan.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/save.h"
#include "tests/support/trainer/training.h"

typedef struct {
    const Config *config;
    DataSet data;
    Trainer trainer;
    MemoryPlan plan; /* made before anything was allocated */
} Opened;

/* A trainer of one rank over training_of_text. */
void trainer_run_open(Opened *o, const Folder *folder, const char *const *sets);
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
