/* zero_run.h -- a small model trained by several ranks, as threads, over a store of chosen options.
 * The results are logical tensors, so that any two ways to store can be compared. */
#ifndef TESTS_SUPPORT_TRAINER_ZERO_RUN_H
#define TESTS_SUPPORT_TRAINER_ZERO_RUN_H

#include "tests/support/model/model_fixture.h"

enum { ZERO_MOST_STEPS = 4, ZERO_MOST_RANKS = 8 };

typedef struct {
    int ranks, steps;
    int64_t micros, B, T; /* micro-batches a step and rank; rows of a micro-batch */
    GptShape shape;
    ZeroOptions zero; /* grad_dtype is the shape's; wire_dtype too, unless wire is true */
    bool wire;
    double factor; /* on the loss, and so on all gradients */
    /* Before each use, buffers in which the store keeps nothing between two uses are filled with
     * NaN. */
    bool poison;
} ZeroCase;

/* Weights and last gradients of all parameters, in the table's order and their own types, put
 * together from the extents that the ranks count: each element from one rank. */
typedef struct {
    double loss[ZERO_MOST_STEPS], sq_norm[ZERO_MOST_STEPS]; /* sums over the ranks */
    double after;                                           /* the loss with the last weights */
    double *logit; /* of rank 0's first micro-batch with them; n_logits */
    int64_t n_logits;
    unsigned char *first, *weights, *gradients; /* first: weights before step 0 */
    size_t weight_bytes, gradient_bytes;
    int64_t elements;
    ZeroBytes bytes[ZERO_MOST_RANKS];
    size_t held[ZERO_MOST_RANKS]; /* by the device for the store */
    CommCounts counts;            /* of rank 0's shard group, in the steps alone */
} ZeroResult;

/* A GPT-2 with a tied table, a Llama with an untied one, and one of odd sizes, with shards of
 * padding alone. */
enum { ZERO_SHAPES = 3 };
GptShape zero_shape(int i);
/* One micro-batch, two steps, collectives unit by unit, nothing gathered ahead or kept. */
ZeroCase zero_case(GptShape shape, int ranks, int stage);
/* Trains with AdamW. Fails the test where a number is counted by two ranks or by none, or where
 * ranks end with different weights. */
ZeroResult zero_run(const ZeroCase *c);
void zero_result_free(ZeroResult *r);
/* Fails the test, naming `what`, unless losses, norms, gradients and weights have the same bits. */
void assert_same_bits(const ZeroResult *a, const ZeroResult *b, const char *what);

/* Largest difference of two arrays of n, beside the rms of the first. */
double zero_distance(const unsigned char *a, const unsigned char *b, DType dtype, int64_t n);

#endif
