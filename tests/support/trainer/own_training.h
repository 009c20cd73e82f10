/* own_training.h -- training put together once more, by the tests: a fixture's model, norm,
 * decision and optimizer in a plain loop, and windows cut from the token files. Trainer, session,
 * feed and loader are compared with it; it has code of its own for all. */
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
    /* Device memory. */
    StepState *state;
    StepDecision *decision;
    Tensor lr;
} OwnTraining;

/* An optimizer in its first state over the model's weights, and the learning rates of `steps`
 * updates. The fixture's micro-batches are the step's; its scale is 1 / targets. */
void own_training_open(OwnTraining *t, Fixture *model, const Config *config, int64_t steps);
void own_training_close(OwnTraining *t);
/* One step over the fixture's micro-batches. model->stats are those of the step. */
StepDecision own_training_step(OwnTraining *t);

/* All tokens of a set, read from its files by the test. */
typedef struct {
    int32_t *id;
    int64_t n;
} OwnTokens;
OwnTokens own_tokens_read(const TokenSet *set);
void own_tokens_free(OwnTokens *tokens);

/* Puts window w, tokens wT ... wT + T, into row `row` of the fixture's micro-batches, each of which
 * has one row. */
void own_window(Fixture *f, const OwnTokens *tokens, int64_t w, int64_t row);

/* Loss and text of windows [0, windows), one after the other: summed nats from logits in double,
 * and the length of the decoded targets. The fixture's first row is overwritten. */
typedef struct {
    double nats;
    int64_t targets, bytes;
} OwnEvaluation;
OwnEvaluation own_evaluate(Fixture *f, const OwnTokens *tokens, int64_t windows,
                           const Tokenizer *tokenizer);

#endif
