/* tensor_ranks.h -- a small GPT on tensor-parallel thread ranks, held to the same model on one. */
#ifndef TESTS_SUPPORT_MODEL_TENSOR_RANKS_H
#define TESTS_SUPPORT_MODEL_TENSOR_RANKS_H

#include "model/param/extents.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_fixture.h"

/* A grid of dp x tp ranks, and how much they may differ from one rank: losses relatively, gradients
 * relative to the row's rms. */
typedef struct {
    int dp, tp;
    bool sequence_parallel;
    int zero_stage;
    int64_t B, T, micros;                             /* micro-batches of a data-parallel rank */
    void (*change)(const Param *row, double *weight); /* of each weight; NULL: none is changed */
    double tolerance;
    const char *what; /* said with what differs */
} RankedCase;

/* A shape that up to four ranks divide: 12 heads of 4, an mlp of 48, a vocabulary padded to 384. */
GptShape ranked_shape(void);

/* Calls extent_of for every extent in this rank's shards, with a host copy of the shard's
 * gradients, or of its weights, which are written back. */
typedef void (*VisitExtent)(Fixture *f, const Shard *shard, const ParamExtent *extent,
                            Tensor values, void *context);
void visit_extents(Fixture *f, bool gradients, VisitExtent extent_of, void *context);
/* Opens this rank's fixture of the case. */
void ranked_open(Fixture *f, Comm *world, const GptShape *shape, const RankedCase *c);
/* Trains and evaluates on the ranks of the case, all scratch poisoned before each micro-batch:
 * losses and every element of every gradient, on every rank that holds it, must be one rank's,
 * padding rows' gradients zero, the plan of memory what was used, and logits alike. Fails the test
 * otherwise. */
void check_ranked(const GptShape *shape, const RankedCase *c);

#endif
