/* model_inside.h -- gives tests access to the memory of a model and of a store: to fill unused
 * memory with NaN, to measure it, and to compute logits. */
#ifndef TESTS_SUPPORT_MODEL_MODEL_INSIDE_H
#define TESTS_SUPPORT_MODEL_MODEL_INSIDE_H

#include "model/gpt.h"
#include "parallel/zero/zero.h"

/* Fills all activations and all scratch with 0xFF bytes, which are NaN in every float type. While
 * no micro-batch is between its forward and its backward pass, nothing there may be read again, so
 * results must not change. */
void model_poison(const Gpt *gpt);
/* model_poison_scratch fills only scratch and may be called between any two actions.
 * model_poison_slot may be called before a forward pass, and fills the slot that it will write. */
void model_poison_scratch(const Gpt *gpt);
void model_poison_slot(const Gpt *gpt, const Action *action);
/* Fills all buffers of a store that hold nothing between two uses. */
void store_poison(ZeroStore *store, Device *dev);

/* Returns how much of gpt_bytes has been used so far. */
GptBytes model_used(const Gpt *gpt);

/* Computes the logits (N, Vp) of one batch by a separate forward pass on the model's first slot.
 * All layers must be in one chunk. */
void model_logits(const Gpt *gpt, const GptBatch *batch, Tensor logits);

#endif
