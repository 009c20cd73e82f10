/* test_golden_ranks.c -- compares the model on tensor-parallel ranks with PyTorch (see
 * test_golden.c). Whole weights are loaded into the ranks' parts; logits, loss and every gradient
 * are compared. */
#include "model/core/check.h"
#include "tests/support/model/golden.h"
#include "tests/support/model/tensor_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BATCH = 3, LENGTH = 16, TOKENS = BATCH * LENGTH };

typedef struct {
    const Golden *golden;
    GptShape shape;
    RankedCase c;
    double rms; /* over all gradients */
} Job;

/* State of one rank during the comparison. */
typedef struct {
    const Job *job;
    Comm *world;
} Here;

static void load(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                 void *context)
{
    const Here *here = context;
    Tensor x = golden_tensor(here->job->golden, f->table.param[extent->param].name);
    for (int64_t i = 0; i < extent->count; i++)
        dtype_set(values.dtype, values.data, extent->offset - shard->offset + i,
                  ((double *)x.data)[param_extent_element(extent, i)]);
}

static Tensor gradient_of(const Golden *golden, const char *row)
{
    char key[80];
    snprintf(key, sizeof key, "%s.grad", row);
    return golden_tensor(golden, key);
}

static double rms_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

/* Compares values with the bound of test_golden.c. */
static void compare(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                    void *context)
{
    const Here *here = context;
    const char *name = f->table.param[extent->param].name;
    Tensor want = gradient_of(here->job->golden, name);
    const double *x = want.data;
    double all = here->job->rms, bound = 1e-9 * fmax(rms_of(x, tensor_count(want)), 1e-6 * all);
    bound = fmax(bound, 32 * dtype_info[F64].roundoff * all);
    for (int64_t i = 0; i < extent->count; i++) {
        int64_t element = param_extent_element(extent, i);
        double is = ((double *)values.data)[extent->offset - shard->offset + i];
        if (!(fabs(is - x[element]) <= bound))
            rank_wrong(here->world, "gradient of %s[%lld]: %.17g, PyTorch says %.17g", name,
                       (long long)element, is, x[element]);
    }
}

/* Loads the first batch of the recorded tokens (steps, B, T + 1). */
static void set_batch(Fixture *f, const Golden *golden)
{
    const double *at = golden_tensor(golden, "tokens").data;
    for (int64_t i = 0; i < TOKENS; i++) {
        int64_t from = i / LENGTH * (LENGTH + 1) + i % LENGTH;
        f->tokens[i] = (int32_t)at[from];
        f->targets[i] = (int32_t)at[from + 1];
    }
}

static void check_logits(Fixture *f, const Here *here)
{
    int64_t V = here->job->shape.V, Vp = here->job->shape.Vp;
    const double *want = golden_tensor(here->job->golden, "logits").data;
    double bound = 1e-10 * rms_of(want, TOKENS * V);
    Tensor logits = tensor_2d(must_calloc((size_t)(TOKENS * Vp), sizeof(double)), F64, TOKENS, Vp);
    fixture_logits(f, 0, logits);
    for (int64_t i = 0; i < TOKENS * V; i++) {
        double is = ((double *)logits.data)[i / V * Vp + i % V];
        if (!(fabs(is - want[i]) <= bound))
            rank_wrong(here->world, "logit %lld: %.17g, PyTorch says %.17g", (long long)i, is,
                       want[i]);
    }
    free(logits.data);
}

static void on_rank(Comm *world, void *context)
{
    const Job *job = context;
    Here here = {job, world};
    Fixture f;
    ranked_open(&f, world, &job->shape, &job->c);
    visit_extents(&f, false, load, &here);
    for (int u = 0; u < f.table.n_units; u++)
        f.params->publish(f.params, u, NULL);
    set_batch(&f, job->golden);
    check_logits(&f, &here);
    double loss = fixture_backward(&f), want = *(double *)golden_tensor(job->golden, "loss").data;
    if (!(fabs(loss - want) <= 1e-12 * fabs(want)))
        rank_wrong(world, "loss %.17g, PyTorch says %.17g", loss, want);
    visit_extents(&f, true, compare, &here);
    fixture_close(&f);
}

static void check_model(const char *name, int tp, bool sequence_parallel)
{
    Golden *golden = golden_open(name);
    const Config *config = golden_config(golden, true);
    Job job = {.golden = golden,
               .shape = gpt_shape(config, tp),
               .c = {.dp = 1,
                     .tp = tp,
                     .sequence_parallel = sequence_parallel,
                     .B = BATCH,
                     .T = LENGTH,
                     .micros = 1}};
    ParamTable table = {0};
    GptLayers layers;
    double squares = 0, count = 0;
    gpt_layers_build(&layers, &table, &job.shape, &LAYERS_WHOLE);
    for (int p = 0; p < table.n_params; p++) {
        double n = (double)param_count(&table.param[p]),
               rms = rms_of(gradient_of(golden, table.param[p].name).data, (int64_t)n);
        squares += rms * rms * n;
        count += n;
    }
    job.rms = sqrt(squares / count);
    gpt_layers_free(&layers);
    param_table_free(&table);
    thread_ranks(tp, 60, on_rank, &job);
    config_free(config);
    golden_close(golden);
}

/* Bug 27 of tests/README.md. The cases include four heads on two ranks and on four, where two ranks
 * share a kv head; three heads with one kv head that all ranks share; and models in which only q, k
 * and v have biases, also with a shared kv head. */
static void test_bug_27_ranks_that_load_parts_of_whole_weights_agree_with_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int tp;
    } is[] = {{"gpt2", 1},  {"gpt2", 2},  {"gpt2", 4},  {"llama", 1},     {"llama", 2},
              {"llama", 4}, {"relu2", 1}, {"relu2", 3}, {"llama_gqa", 3}, {"llama3", 2},
              {"qwen2", 2}, {"qwen2", 4}, {"qwen3", 4}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        for (int sp = 0; sp < 1 + (is[i].tp > 1); sp++)
            check_model(is[i].name, is[i].tp, sp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_27_ranks_that_load_parts_of_whole_weights_agree_with_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
