/* own_training.h -- an independent training loop for tests: a fixture's model, norm, decision and
 * optimizer in a plain loop, over windows cut from the token files. Trainer, session, feed and
 * loader are compared with it; it uses none of their code. */
#ifndef TESTS_SUPPORT_TRAINER_OWN_TRAINING_H
#define TESTS_SUPPORT_TRAINER_OWN_TRAINING_H

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_set.h"
#include "optim/grad_norm.h"
#include "optim/optimizer.h"
#include "tests/support/model/model_fixture.h"

typedef struct {
    Fixture *model;
    Optimizer optimizer;
    GradNorm norm;
    StepConstants constants;
    void *memory;
    size_t bytes;
    /* In device memory. */
    StepState *state;
    StepDecision *decision;
    Tensor lr;
} OwnTraining;

/* Opens an optimizer in its initial state for the model's weights, and the learning rates of
 * `steps` updates. A step consists of the fixture's micro-batches; the fixture's scale must be 1 /
 * targets. */
void own_training_open(OwnTraining *t, Fixture *model, const Config *config, int64_t steps);
void own_training_close(OwnTraining *t);
/* Makes one step over the fixture's micro-batches. model->stats are those of this step. */
StepDecision own_training_step(OwnTraining *t);

/* All tokens of a set, read from its files by the test. */
typedef struct {
    int32_t *id;
    int64_t n;
} OwnTokens;
OwnTokens own_tokens_read(const TokenSet *set);
void own_tokens_free(OwnTokens *tokens);

/* Copies window w, which is tokens wT ... wT + T, to row `row` of the fixture's micro-batches,
 * which have one row each. */
void own_window(Fixture *f, const OwnTokens *tokens, int64_t w, int64_t row);

/* Evaluates windows [0, windows) one after the other: sums the nats from logits in doubles, and the
 * length of the decoded targets. Overwrites the fixture's first row. */
typedef struct {
    double nats;
    int64_t targets, bytes;
} OwnEvaluation;
OwnEvaluation own_evaluate(Fixture *f, const OwnTokens *tokens, int64_t windows,
                           const Tokenizer *tokenizer);

#endif
