/* evaluate.h -- evaluates a model during training: its loss on validation data, and a sample of its
 * text. */
#ifndef PARALLEL_TRAINER_EVALUATE_H
#define PARALLEL_TRAINER_EVALUATE_H

#include "parallel/trainer/trainer.h"

/* Runs the first validation micro-batch once, so that everything that happens only at the first use
 * happens here. The sums are discarded. All ranks must call it together. */
void evaluate_warm_up(Session *session, Gpt *gpt);
/* Evaluates the next `batches` micro-batches of each rank, in groups, from the feed to which the
 * model is connected. Returns how many were evaluated: fewer if `feed`'s watch ended the
 * evaluation. All ranks must call it together. */
int64_t evaluate_batches(Feed *feed, Session *session, Gpt *gpt, int64_t batches);
/* Computes the mean loss (nats per target) and the bits per byte over `batches` validation
 * micro-batches of each rank (0: all that the feed's loader has). `feed` must be the feed that is
 * connected to the model. The sums are computed in `stats` on the device.
 *
 * All ranks must call this function and the two below together, and all get the same result. If the
 * feed's watch returns false on any rank, all ranks stop there, `cut` is set and the figures must
 * not be used. Leaves `stats` connected to the model; otherwise changes nothing that training
 * reads. */
EvalRecord evaluate_model(Feed *feed, Session *session, Gpt *gpt, StepStats *stats,
                          int64_t batches);

/* Evaluates a trainer's model with separate statistics; the trainer's validation loader ends after
 * eval.steps micro-batches of all ranks. Changes nothing that training reads. */
EvalRecord trainer_evaluate(Trainer *trainer, int64_t batches);
/* Does the same on set number `set` of data->sets; each set has its own eval.steps. */
EvalRecord trainer_evaluate_set(Trainer *trainer, int set);
/* Returns the text of up to `tokens` tokens that follow the prompt, drawn as config->eval says; the
 * caller frees it. Returns NULL if there is no tokenizer or no decoder, or if the feed's watch
 * ended the sample. */
char *trainer_sample(Trainer *trainer, const char *prompt, int64_t tokens);

#endif
