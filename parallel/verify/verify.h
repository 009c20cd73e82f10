/* verify.h -- checks that a config's grid of ranks trains like a single rank: trains the same small
 * model on the same sequences on both, and compares the results tensor by tensor. */
#ifndef PARALLEL_VERIFY_VERIFY_H
#define PARALLEL_VERIFY_VERIFY_H

#include "model/core/args.h"
#include "parallel/verify/compare.h"

typedef enum { VERIFY_DEFAULT, VERIFY_F64, VERIFY_CONFIG } VerifyDtype;

typedef struct {
    const char *config; /* path of the config file */
    ArgList set;
    int64_t ranks;
    LaunchKind kind;   /* ranks are threads or processes */
    bool full;         /* use the config's own model instead of a small one of its kind */
    VerifyDtype dtype; /* default: f64, but on CUDA the config's dtype */
    /* For tests: every rank calls this with the trainer of the grid before it is allocated. */
    void (*opened)(Trainer *trainer, void *context);
    void *context;
} VerifyOptions;

/* Number of steps that are compared. */
enum { VERIFY_STEPS = 3 };

/* Trains VERIFY_STEPS steps on the config's grid of ranks and on a single rank, and prints what was
 * compared and the largest deviation. Returns EXIT_OK, or EXIT_REPLICAS after printing the first
 * difference to stderr. Returns EXIT_CONFIG after printing error messages if the config is refused,
 * or if nothing could be compared because both sides skipped a step.
 *
 * Unless `full`, the model has two blocks, or one for each layer range (chunk) of the pipeline if
 * there are more than two ranges. Heads have size 8, the vocabulary is below 510, and there are at
 * most 64 positions. The width of the MLP and the number of positions are rounded down to a
 * multiple of what tensor-parallel ranks need.
 *
 * In any case, a micro-batch has at most 2 sequences, a step has at most 2 micro-batches per stage,
 * and tokens are random. The dynamic scale of fp16 begins at 2^10 or below, so no step overflows.
 * In f64, AdamW's eps is at least 1e-4 and at least a tenth of lr, so an lr above 10 is refused. A
 * smaller eps would turn the noise of gradients that are zero in theory into updates. */
int verify_config(const VerifyOptions *options);

#endif
