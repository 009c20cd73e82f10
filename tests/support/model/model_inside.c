/* model_inside.c -- implements model_inside.h: fills a model's unused memory with NaN, and measures
 * it. */
#include "tests/support/model/model_inside.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

static void poison(Device *dev, Tensor bytes)
{
    size_t n = tensor_bytes(bytes);
    if (n == 0) return;
    unsigned char *nan = must_alloc(n);
    memset(nan, 0xff, n);
    bytes.place = dev->backend->place;
    device_copy(dev, bytes, tensor_1d(nan, U8, (int64_t)n));
    device_synchronize(dev);
    free(nan);
}

void model_poison(const Gpt *gpt)
{
    GptInside inside = gpt_inside(gpt, 0, 0);
    poison(inside.work.pass->dev, inside.slots);
    poison(inside.work.pass->dev, inside.scratch);
}

void model_poison_scratch(const Gpt *gpt)
{
    GptInside inside = gpt_inside(gpt, 0, 0);
    poison(inside.work.pass->dev, inside.scratch);
}

void model_poison_slot(const Gpt *gpt, const Action *action)
{
    GptInside inside = gpt_inside(gpt, action->chunk, action->slot);
    poison(inside.work.pass->dev, inside.slot);
}

void store_poison(ZeroStore *store, Device *dev)
{
    Tensor idle[ZERO_MOST_IDLE];
    int n = zero_idle_buffers(store, idle);
    for (int i = 0; i < n; i++)
        poison(dev, idle[i]);
}

GptBytes model_used(const Gpt *gpt)
{
    return gpt_inside(gpt, 0, 0).used;
}

void model_logits(const Gpt *gpt, const GptBatch *batch, Tensor logits)
{
    LayerWork work = gpt_inside(gpt, 0, 0).work;
    Pass pass = *work.pass;
    CHECK(layers_begin(work.layers, 0) && layers_end(work.layers, 0), "logits of part of a model");
    pass.tokens = batch->tokens;
    pass.targets = batch->targets;
    pass.positions = batch->positions;
    work.pass = &pass;
    layers_logits(&work, 0, logits);
}
