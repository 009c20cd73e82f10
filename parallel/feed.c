/* feed.c -- see feed.h. */
#include "parallel/feed.h"

#include <math.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void feed_open(Feed *f, Device *dev, int64_t N)
{
    *f = (Feed){.dev = dev, .bytes = 3 * ((size_t)N * sizeof(int32_t) + ARENA_ALIGNMENT)};
    f->memory = device_alloc(dev, f->bytes, "a micro-batch");
    Arena arena = arena_over(f->memory, f->bytes);
    f->batch.tokens = arena_tensor(&arena, I32, 1, N, 0, 0);
    f->batch.targets = arena_tensor(&arena, I32, 1, N, 0, 0);
    f->batch.positions = arena_tensor(&arena, I32, 1, N, 0, 0);
}

void feed_close(Feed *f)
{
    if (f->dev) device_release(f->dev, f->memory, f->bytes);
    *f = (Feed){0};
}

GptBatch feed_batch(void *context, const Action *action)
{
    Feed *f = context;
    bool evaluate = action->kind == ACT_EVALUATE;
    Batch batch;
    char err[1024];
    double start = now();
    if (!loader_next(evaluate ? f->val : f->train, evaluate ? 0 : *f->samples, action->micro,
                     &batch, err, sizeof err))
        fail(EXIT_DAMAGED, "%s", err);
    f->seconds += now() - start;
    f->target_bytes += batch.target_bytes;
    device_copy(f->dev, f->batch.tokens, tensor_flat(batch.tokens));
    device_copy(f->dev, f->batch.targets, tensor_flat(batch.targets));
    device_copy(f->dev, f->batch.positions, tensor_flat(batch.positions));
    return f->batch;
}

EvalRecord feed_evaluate(Feed *f, Session *session, Gpt *gpt, StepStats *stats, int64_t batches)
{
    Device *dev = &session->dev;
    Stage stage = gpt_stage(gpt);
    StepStats sums = {0};
    double start = now(), waited = f->seconds;
    int64_t all = loader_batches(f->val), words = sizeof sums / sizeof(double);
    Tensor on_device = tensor_1d(stats, F64, words), on_host = tensor_1d(&sums, F64, words);
    if (batches == 0 || batches > all) batches = all;
    device_copy(dev, on_device, on_host);
    gpt_set_stats(gpt, stats);
    f->target_bytes = 0;
    session->params->step_begin(session->params, NULL, 0);
    for (int64_t i = 0; i < batches; i++) {
        Action action = {.kind = ACT_EVALUATE, .micro = i};
        pipeline_run(&stage, &action, 1);
    }
    session->params->step_end(session->params);
    device_copy(dev, on_host, on_device);
    device_synchronize(dev);
    f->seconds = waited;
    EvalRecord r = {.targets = (int64_t)sums.targets,
                    .bytes = f->target_bytes,
                    .loss = sums.nats / sums.targets,
                    .bits_per_byte = -1,
                    .seconds = now() - start};
    if (r.bytes > 0) r.bits_per_byte = sums.nats / log(2.0) / (double)r.bytes;
    return r;
}
