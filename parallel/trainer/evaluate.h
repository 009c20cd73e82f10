/* evaluate.h -- evaluation of a model: its loss on validation data, and a sample of its text. */
#ifndef PARALLEL_TRAINER_EVALUATE_H
#define PARALLEL_TRAINER_EVALUATE_H

#include "parallel/trainer/trainer.h"

/* Mean loss (nats per target) and bits per byte over `batches` validation micro-batches of each
 * rank (0: all that the feed's loader has), which `feed`, the model's own, brings; summed in
 * `stats` on the device. All ranks call it, as the two below, and get the same figures. If the
 * feed's watch ends it early on any rank, all end there, `cut` is set and the figures are no
 * result. Leaves `stats` connected to the model; apart from that it changes nothing that training
 * reads. */
EvalRecord evaluate_model(Feed *feed, Session *session, Gpt *gpt, StepStats *stats,
                          int64_t batches);

/* The same for a trainer, whose loader ends after eval.steps micro-batches, with statistics of its
 * own. Changes nothing that training reads. */
EvalRecord trainer_evaluate(Trainer *trainer, int64_t batches);
/* Up to `tokens` tokens that follow the prompt, drawn as config->eval says; the caller frees. NULL
 * without a tokenizer, or when the feed's watch ended it. */
char *trainer_sample(Trainer *trainer, const char *prompt, int64_t tokens);

#endif
