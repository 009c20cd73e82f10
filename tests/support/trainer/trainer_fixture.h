/* trainer_fixture.h -- a trainer of one rank over a training (training.h), and its state after some
 * steps, to compare bit for bit. */
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
    MemoryPlan plan; /* computed before anything was allocated */
} Opened;

/* Opens a trainer of one rank over training_of_text. */
void trainer_run_open(Opened *o, const Folder *folder, const char *const *sets);
void trainer_run_close(Opened *o);

/* Returns the allocated host memory that the plan counts: page-locked memory, and the lists of
 * actions and uses. */
size_t trainer_run_host_bytes(const Opened *o);

/* Weights, optimizer states and StepState after a run, with its records. */
typedef struct {
    unsigned char *bytes;
    size_t size;
    StepState state;
    StepRecord record[64];
    int n;
} Trained;

/* Makes steps until `until` have been made, and adds their records. */
void trainer_run_steps(Opened *o, Trained *out, int64_t until);
/* Fills in everything except the records; the caller frees `bytes`. */
void trainer_run_read(Opened *o, Trained *out);
/* Fails unless every field of the `n` records has the same bits. */
void step_records_equal(const StepRecord *a, const StepRecord *b, int n, const char *what);
/* Fails unless weights, optimizer states, StepState and records have the same bits. */
void trained_equal(const Trained *a, const Trained *b, const char *what);

#endif
