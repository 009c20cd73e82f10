/* zero_run.h -- trains a small model on several ranks, which are threads, with a ZeRO store of
 * chosen options. The results are logical tensors, so stores with any options can be compared. */
#ifndef TESTS_SUPPORT_TRAINER_ZERO_RUN_H
#define TESTS_SUPPORT_TRAINER_ZERO_RUN_H

#include "tests/support/model/model_fixture.h"

enum { ZERO_MOST_STEPS = 4, ZERO_MOST_RANKS = 8 };

typedef struct {
    int ranks, steps;
    int64_t micros, B, T; /* micro-batches per step and rank; rows of a micro-batch */
    GptShape shape;
    /* grad_dtype is taken from the shape, and so is wire_dtype unless `wire` is set. */
    ZeroOptions zero;
    bool wire;
    double factor; /* factor on the loss, and so on all gradients */
    /* Buffers in which the store keeps nothing between two uses are filled with NaN before each
     * use. */
    bool poison;
} ZeroCase;

/* Weights and last gradients of all parameters, in table order and in their own dtypes. They are
 * assembled from the extents that the ranks count, so each element comes from exactly one rank. */
typedef struct {
    double loss[ZERO_MOST_STEPS], sq_norm[ZERO_MOST_STEPS]; /* summed over the ranks */
    double after;                                           /* loss with the last weights */
    /* Logits of rank 0's first micro-batch with the last weights; n_logits. */
    double *logit;
    int64_t n_logits;
    unsigned char *first, *weights, *gradients; /* `first` are the weights before step 0 */
    size_t weight_bytes, gradient_bytes;
    int64_t elements;
    ZeroBytes bytes[ZERO_MOST_RANKS];
    size_t held[ZERO_MOST_RANKS]; /* bytes allocated on the device for the store */
    CommCounts counts;            /* of rank 0's shard group, only during the steps */
} ZeroResult;

/* Returns shape i: a GPT-2 with a tied table, a Llama with an untied one, or a model of odd sizes
 * in which some shards are only padding. */
enum { ZERO_SHAPES = 3 };
GptShape zero_shape(int i);
/* Returns a case with one micro-batch, two steps, one collective per unit, and nothing gathered
 * ahead or kept. */
ZeroCase zero_case(GptShape shape, int ranks, int stage);
/* Trains with AdamW. Fails the test if an element is counted by two ranks or by none, or if ranks
 * end with different weights. */
ZeroResult zero_run(const ZeroCase *c);
void zero_result_free(ZeroResult *r);
/* Fails the test with a message that contains `what`, unless losses, norms, gradients and weights
 * have the same bits. */
void assert_same_bits(const ZeroResult *a, const ZeroResult *b, const char *what);

/* Returns the largest difference between two arrays of n elements, divided by the rms of the
 * first. */
double zero_distance(const unsigned char *a, const unsigned char *b, DType dtype, int64_t n);

#endif
