/* planted_run.h -- runs whose loss or gradients go wrong at a chosen place of their data on a
 * chosen rank, on several grids. */
#ifndef TESTS_SUPPORT_TRAINER_PLANTED_RUN_H
#define TESTS_SUPPORT_TRAINER_PLANTED_RUN_H

#include "tests/support/trainer/run_fixture.h"

/* The samples of a step, and the steps of a run. */
enum { PLANTED_SAMPLES = 4, PLANTED_STEPS = 26 };

/* Plants a fault in the data of `count` steps, of which the first is `step` as long as none was
 * left out: the gradients are not finite, or else the loss is far too large. Sets `disturbance` to
 * run on `ranks` ranks, with the fault on `rank`. */
void plant_fault(int64_t step, int64_t count, bool gradients, int ranks, int rank);
/* Is called on each rank before each step as well; or NULL. */
extern void (*planted_act)(Run *run);

/* Runs 26 steps that save every fifth one and evaluate nothing, with up to four further settings
 * (or NULL), and fails unless the run exits with `code`. Returns what it printed; the caller frees
 * it. */
char *planted_run(const char *run, const char *a, const char *b, const char *c, const char *d,
                  int code);

/* A single rank; dp, tp, pp and ZeRO 3 on two; fp16. */
typedef struct {
    const char *name, *set[2];
    int ranks, rank; /* the rank on which the fault is planted */
} PlantedGrid;
enum { PLANTED_GRIDS = 6 };
extern const PlantedGrid planted_grids[PLANTED_GRIDS];

/* Returns the name of the run folder of a grid; the caller frees it. */
char *planted_name(int grid, const char *what);
/* Runs on a grid with a fault in `count` steps from `step` on (0: none), under a policy. */
char *planted_run_on(int grid, const char *what, int64_t step, int64_t count, bool gradients,
                     const char *policy, int code);

/* Returns "STEP "loss": ..., "lr": ..." of each step from `first` on in RUN/metrics.jsonl, as
 * lines; the caller frees it. */
char *planted_losses(const char *run, int64_t first);
/* Fails unless both runs have the same losses, to the last bit, from step `first` on. */
void planted_same_losses(const char *a, const char *b, int64_t first);

#endif
