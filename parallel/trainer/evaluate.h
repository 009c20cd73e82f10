/* evaluate.h -- what a model can do so far: its loss on validation data, and a text of its own. */
#ifndef PARALLEL_TRAINER_EVALUATE_H
#define PARALLEL_TRAINER_EVALUATE_H

#include "parallel/trainer/trainer.h"

/* Mean loss and bits per byte over `batches` validation micro-batches (0: all), summed in `stats`
 * on the device; `cut` where the watch ended it, and then its figures are no result. The model's
 * feed is `feed`. Changes nothing that training reads. */
EvalRecord evaluate_model(Feed *feed, Session *session, Gpt *gpt, StepStats *stats,
                          int64_t batches);

/* Mean loss and bits per byte over `batches` validation micro-batches (0: all), or less where the
 * feed's watch ends it (`cut`). Changes nothing that training reads. */
EvalRecord trainer_evaluate(Trainer *trainer, int64_t batches);
/* A sample of config->eval's prompt and length; the caller frees. NULL without a tokenizer, or when
 * the feed's watch ended it. */
char *trainer_sample(Trainer *trainer, const char *prompt, int64_t tokens);

#endif
