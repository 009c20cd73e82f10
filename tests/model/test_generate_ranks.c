/* test_generate_ranks.c -- tests decoding on tensor-parallel ranks: every rank must get all logits,
 * equal to those of a single rank, whether or not training uses sequence parallelism. */
#include "model/core/check.h"
#include "model/generate.h"
#include "tests/support/model/tensor_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Passes of several tokens and of a single token, whose one row cannot be split among ranks. */
static const int64_t passes[] = {5, 1, 1, 3, 1};
enum { PASSES = sizeof passes / sizeof *passes, TOKENS = 11 };

typedef struct {
    const RankedCase *c;
    GptShape shape;
    double *logits; /* (PASSES, V), from one rank */
} Job;

/* Feeds the tokens and stores the logits after each pass. */
static void decode(Fixture *f, Comm *world, double *logits)
{
    int64_t V = f->layers.shape.V, fed = 0;
    int32_t tokens[TOKENS];
    Region whole = f->tp;
    whole.parts = 1;
    whole.part = 0;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)((i * 37 + 5) % V);
    f->params->step_begin(f->params, NULL, 0);
    Decoder *d = decoder_create(&f->dev, &f->layers, f->params, &whole, NULL, TOKENS + 1);
    for (int p = 0; p < PASSES; fed += passes[p++]) {
        Tensor x = decoder_feed(d, tokens + fed, passes[p]);
        for (int64_t i = 0; i < V; i++)
            logits[p * V + i] = dtype_get(x.dtype, x.data, i);
    }
    size_t plan = decoder_bytes(&f->layers, TOKENS + 1), used = decoder_used(d);
    if (used > plan) rank_wrong(world, "planned %zu bytes, used %zu", plan, used);
    decoder_destroy(d);
    f->params->step_end(f->params);
}

static void on_rank(Comm *world, void *context)
{
    const Job *job = context;
    int64_t V = job->shape.V, n = PASSES * V;
    double *logits = must_calloc((size_t)n, sizeof *logits);
    Fixture f;
    ranked_open(&f, world, &job->shape, job->c);
    decode(&f, world, logits);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(logits[i] - job->logits[i]) <= 1e-12 * (1 + fabs(job->logits[i]))))
            rank_wrong(world, "pass %lld, logit %lld: %.17g, one rank has %.17g",
                       (long long)(i / V), (long long)(i % V), logits[i], job->logits[i]);
    fixture_close(&f);
    free(logits);
}

static void one_rank(Comm *world, void *context)
{
    Job *job = context;
    RankedCase one = {.dp = 1, .tp = 1, .B = 1, .T = 12, .micros = 1};
    Fixture f;
    ranked_open(&f, world, &job->shape, &one);
    decode(&f, world, job->logits);
    fixture_close(&f);
}

static void test_decoding_on_tensor_parallel_ranks_equals_one_rank(void **state)
{
    (void)state;
    static const int kv[] = {12, 1, 12};
    for (int i = 0; i < 3 * 2 * 3; i++) {
        RankedCase c = {
            .dp = 1, .tp = 2 + i % 3, .sequence_parallel = i / 3 % 2, .B = 1, .T = 12, .micros = 1};
        Job job = {.c = &c, .shape = ranked_shape()};
        job.shape.V = 300;
        job.shape.G = kv[i / 6];
        job.shape.position = i / 6 == 2 ? POSITION_ROPE : POSITION_LEARNED;
        job.shape.qk_norm = i / 6 == 2;
        job.shape.tied = i / 6 < 2;
        job.logits = must_calloc((size_t)(PASSES * job.shape.V), sizeof *job.logits);
        thread_ranks(1, 60, one_rank, &job);
        thread_ranks(c.tp, 60, on_rank, &job);
        free(job.logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoding_on_tensor_parallel_ranks_equals_one_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
