/* evaluate.h -- evaluates a model during training: its loss on validation data, and a sample of its
 * text. */
#ifndef PARALLEL_TRAINER_EVALUATE_H
#define PARALLEL_TRAINER_EVALUATE_H

#include "parallel/trainer/trainer.h"

/* Runs the first validation micro-batch once, so that whatever happens only at a first use, such as
 * loading a kernel, happens here. The loss is discarded. All ranks must call it together. */
void evaluate_warm_up(Session *session, Gpt *gpt);
/* Evaluates the first `batches` micro-batches of each rank, in groups (evaluate_group). They come
 * from the feed to which the model is connected; `feed` is used only for its watch (FeedWatch),
 * which may end the evaluation early. Returns how many micro-batches were evaluated: fewer than
 * `batches` if the watch ended the evaluation. All ranks must call it together. */
int64_t evaluate_batches(Feed *feed, Session *session, Gpt *gpt, int64_t batches);
/* Computes the mean loss (nats per target) and the bits per byte over the first `batches`
 * validation micro-batches of each rank (0: all that the feed's loader has). `feed` must be the
 * feed that is connected to the model. The sums are computed in `stats` on the device.
 *
 * All ranks must call this function and those below together, and all get the same result. If the
 * feed's watch returns false on any rank, all ranks stop there: then `cut` is set in the record,
 * and its figures must not be used. Leaves `stats` connected to the model; changes nothing else
 * that training reads. */
EvalRecord evaluate_model(Feed *feed, Session *session, Gpt *gpt, StepStats *stats,
                          int64_t batches);

/* Evaluates the trainer's model on its validation data, with statistics of its own, so that nothing
 * that training reads is changed. The validation loader has at most eval.steps micro-batches, added
 * up over all ranks. */
EvalRecord trainer_evaluate(Trainer *trainer, int64_t batches);
/* Does the same on all of validation set number `set` of data->sets. Each set is limited to
 * eval.steps micro-batches in the same way. */
EvalRecord trainer_evaluate_set(Trainer *trainer, int set);
/* Returns the text of up to `tokens` tokens that follow the prompt, drawn as config->eval says; the
 * caller frees it. Returns NULL if there is no tokenizer or no decoder, or if the feed's watch
 * ended the sample. */
char *trainer_sample(Trainer *trainer, const char *prompt, int64_t tokens);

#endif
