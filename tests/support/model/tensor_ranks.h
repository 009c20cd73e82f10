/* tensor_ranks.h -- compares a small GPT on tensor-parallel ranks (threads) with the same model on
 * one rank. */
#ifndef TESTS_SUPPORT_MODEL_TENSOR_RANKS_H
#define TESTS_SUPPORT_MODEL_TENSOR_RANKS_H

#include "model/param/extents.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_fixture.h"

/* A grid of dp x tp ranks, and how much it may differ from one rank: losses relative to their
 * value, gradients relative to the row's rms. */
typedef struct {
    int dp, tp;
    bool sequence_parallel;
    int zero_stage;
    int64_t B, T, micros; /* micro-batches per data-parallel rank */
    /* Changes each weight; NULL: none is changed. */
    void (*change)(const Param *row, double *weight);
    double tolerance;
    const char *what; /* printed if something differs */
} RankedCase;

/* Returns a shape that up to four ranks can split: 12 heads of size 4, an MLP of size 48, a
 * vocabulary padded to 384. */
GptShape ranked_shape(void);

/* Calls extent_of for every extent in this rank's shards, with a host copy of the shard's
 * gradients, or of its weights, which are then written back. */
typedef void (*VisitExtent)(Fixture *f, const Shard *shard, const ParamExtent *extent,
                            Tensor values, void *context);
void visit_extents(Fixture *f, bool gradients, VisitExtent extent_of, void *context);
/* Opens this rank's fixture for the case. */
void ranked_open(Fixture *f, Comm *world, const GptShape *shape, const RankedCase *c);
/* Trains and evaluates on the ranks of the case, with scratch filled with NaN before each
 * micro-batch. Losses, logits, and every element of every gradient, on each rank that has it, must
 * equal those of one rank; gradients of padding rows must be zero, and the bytes used must equal
 * the memory plan. Fails the test otherwise. */
void check_ranked(const GptShape *shape, const RankedCase *c);

#endif
