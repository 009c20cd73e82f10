/* model_inside.h -- the memory of a model and of a store, seen by tests: filled with NaN where
 * nothing may be read again, measured, and used for logits. */
#ifndef TESTS_SUPPORT_MODEL_MODEL_INSIDE_H
#define TESTS_SUPPORT_MODEL_MODEL_INSIDE_H

#include "model/gpt.h"
#include "parallel/zero/zero.h"

/* Fills all activations and all scratch with 0xFF bytes, NaN in every type. Where no micro-batch is
 * between its forward and its backward nothing there is read again, so no result may change. */
void model_poison(const Gpt *gpt);
/* The same of scratch alone, between any two actions; and before a forward of the slot that it will
 * fill. */
void model_poison_scratch(const Gpt *gpt);
void model_poison_slot(const Gpt *gpt, const Action *action);
/* The same of all buffers of a store that hold nothing between two uses. */
void store_poison(ZeroStore *store, Device *dev);

/* What of gpt_bytes has been used so far, by the layout and by the steps since. */
GptBytes model_used(const Gpt *gpt);

/* Logits (N, Vp) of one batch, where all layers are one chunk: a forward pass of its own, on the
 * model's first slot. */
void model_logits(const Gpt *gpt, const GptBatch *batch, Tensor logits);

#endif
