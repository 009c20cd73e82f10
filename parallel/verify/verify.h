/* verify.h -- proof that a config's grid trains as a single rank does: the same small model on the
 * same sequences on both, compared tensor by tensor. */
#ifndef PARALLEL_VERIFY_VERIFY_H
#define PARALLEL_VERIFY_VERIFY_H

#include "model/core/args.h"
#include "parallel/verify/compare.h"

typedef enum { VERIFY_DEFAULT, VERIFY_F64, VERIFY_CONFIG } VerifyDtype;

typedef struct {
    const char *config; /* path */
    ArgList set;
    int64_t ranks;
    bool full;         /* the model as it is; else a small one of its kind */
    VerifyDtype dtype; /* by default f64, on CUDA the config's */
    /* For tests: called by every rank with the trainer of the grid before it is allocated. */
    void (*opened)(Trainer *trainer, void *context);
    void *context;
} VerifyOptions;

/* Steps that are compared. */
enum { VERIFY_STEPS = 3 };

/* Trains VERIFY_STEPS steps on the config's grid of ranks and on a single rank and prints what was
 * compared and the worst deviation. Returns EXIT_OK, or EXIT_REPLICAS with the first difference on
 * stderr; a config that is refused ends with its sentences and EXIT_CONFIG, and so
 * does one that left nothing to compare, because both skipped a step.
 *
 * Unless `full`: two blocks, or one for each run of layers of the pipeline, heads of 8, vocabulary
 * below 510, at most 64 positions; the width of the mlp and the positions are rounded down to what
 * tensor-parallel ranks can share. Always: micro-batches of at most 2 sequences, at most 2 of them
 * a stage, random tokens; fp16's dynamic scale begins at 2^10 or below, so that no step overflows.
 * In f64 AdamW's eps is at least 1e-4, and a tenth of lr, because a smaller one turns the noise of
 * gradients that are zero in theory into updates. */
int verify_config(const VerifyOptions *options);

#endif
