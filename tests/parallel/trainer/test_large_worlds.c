/* test_large_worlds.c -- what one rank of a world of 65,536 computes before it allocates anything:
 * its place and groups, its part of the model, the schedules, the sizes of its memory, and the
 * layout of a checkpoint. Each must take little time and memory, and agree with formulas. The other
 * ranks do not exist (parallel/comm/counted.h). */
#include "model/core/check.h"
#include "parallel/checkpoint/layout.h"
#include "parallel/comm/counted.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/memory/saved_bytes.h"
#include "parallel/run/print_ranks.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

/* ---- one rank -------------------------------------------------------------------------------- */

typedef struct {
    const char *config; /* a preset */
    int pp, dp, tp, stage, micros;
    const char *more; /* another --set argument */
} World;

static const World worlds[] = {
    {"configs/gpt2_124m.json", 1, 65536, 1, 0, 1, "seed=1"},
    {"configs/gpt2_124m.json", 1, 65536, 1, 1, 1, "seed=1"},
    {"configs/gpt2_124m.json", 1, 65536, 1, 3, 1, "seed=1"},
    {"configs/gpt2_124m.json", 4, 4096, 4, 2, 8, "seed=1"},
    {"configs/llama_8b.json", 1, 8192, 8, 3, 2, "seed=1"},
    {"configs/llama_8b.json", 16, 512, 8, 1, 64, "seed=1"},
    {"configs/llama_8b.json", 8, 1024, 8, 1, 64, "parallel.pipeline_chunks=4"},
    {"configs/llama_8b.json", 126, 64, 8, 1, 512, "model.num_layers=126"},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static const Config *read_config(const World *w)
{
    char set[7][64];
    const char *sets[7];
    snprintf(set[0], sizeof set[0], "parallel.pipeline=%d", w->pp);
    snprintf(set[1], sizeof set[1], "parallel.tensor=%d", w->tp);
    snprintf(set[2], sizeof set[2], "zero_optimization.stage=%d", w->stage);
    snprintf(set[3], sizeof set[3], "gradient_accumulation_steps=%d", w->micros);
    snprintf(set[4], sizeof set[4], "train_batch_size=null");
    snprintf(set[5], sizeof set[5], "bf16.enabled=true");
    snprintf(set[6], sizeof set[6], "%s", w->more);
    for (int i = 0; i < 7; i++)
        sets[i] = set[i];
    char *text = config_test_file(w->config);
    ConfigReport report;
    const ConfigContext context = {.world = (int64_t)w->pp * w->dp * w->tp};
    const Config *config = config_parse(&context, "c.json", text, strlen(text), 7, sets, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    free(text);
    return config_settle(config, &(ConfigFacts){.vocab_size = config->model.vocab_size}, NULL, 0);
}

/* Returns the elements of all parameters of the model. */
static int64_t elements_of(const ParamTable *table)
{
    int64_t n = 0;
    for (int i = 0; i < table->n_params; i++) {
        int64_t of = 1;
        for (int d = 0; d < table->param[i].ndim; d++)
            of *= table->param[i].dim[d];
        n += of;
    }
    return n;
}

/* A rank has the units of its stage, each padded so that the shards of all data-parallel ranks are
 * equal and aligned; at ZeRO 3 it has its shard of most of them. */
static void check_memory(const Session *s, const World *w)
{
    ZeroBytes bytes = zero_bytes(s->store);
    size_t weights = 0;
    for (int u = 0; u < s->table.n_units; u++) {
        const Unit *unit = &s->table.unit[u];
        if (!home_is(&unit->home, s->grid.at.pp)) continue;
        int64_t grain = (int64_t)PARAM_ALIGNMENT * w->dp,
                size = (unit->size + grain - 1) / grain * grain;
        weights += (size_t)size * dtype_size(unit->dtype);
    }
    if (w->stage < 3)
        assert_int_equal(bytes.weights, weights);
    else
        assert_in_range(bytes.weights, weights / (size_t)w->dp, weights / 8);
}

/* Lays out a checkpoint of the model as this rank does. */
static void check_layout(const Trainer *t, int ranks)
{
    const ParamTable *table = &t->session.table;
    Piece *weights = must_calloc((size_t)table->n_params, sizeof *weights);
    StepState state = {.steps = 7};
    for (int p = 0; p < table->n_params; p++)
        weights[p] = piece_of_row(table->param[p].name, &table->param[p], BF16);
    CheckpointContents contents = {.weights = weights,
                                   .n_weights = table->n_params,
                                   .state = &state,
                                   .config = "{}",
                                   .machine = "{}",
                                   .code = "",
                                   .data = "",
                                   .grid = t->session.grid.size,
                                   .writers = 64};
    Layout layout;
    int last = -1;
    layout_build(&layout, &contents, ranks, "0123456789abcdef");
    assert_int_equal(layout.manifest.world.ranks, ranks);
    for (int f = 0; f < layout.manifest.n_files && layout.file[f].writer > last; f++)
        last = layout.file[f].writer;
    assert_in_range(last, 0, ranks - 1);
    layout_free(&layout);
    free(weights);
}

static void check_rank(const World *w, const Config *config, int rank)
{
    int ranks = w->pp * w->dp * w->tp;
    Comm world = comm_counted(rank, ranks);
    Trainer t = {.config = config};
    session_build(&t.session, config, &world, true);
    GridPlace at = t.session.grid.at;
    assert_int_equal(((int64_t)at.pp * w->dp + at.dp) * w->tp + at.tp, rank);
    assert_int_equal(t.session.grid.dp.rank, at.dp);
    assert_int_equal(t.session.grid.dp.size, w->dp);
    assert_true(elements_of(&t.session.table) > 100000000);
    check_memory(&t.session, w);
    assert_true(optimizer_bytes(config, t.session.params).device > 0);
    assert_true(saved_bytes_of(config, &t.session.table) > 200000000);
    check_layout(&t, ranks);
    session_close(&t.session);
    comm_close(&world);
}

static double megabytes_used(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Limits the processor time and the memory that a rank takes. Anything that grew with the square of
 * the number of ranks would take minutes and gigabytes. */
static void a_rank_of_65536_opens_quickly_in_little_memory(void **state)
{
    (void)state;
    /* Builds that check every access are slower, and keep memory that has been released. */
    const bool checked = getenv("TEST_SAMPLE") != NULL;
    double before = megabytes_used(), most = checked ? 20 : 1;
    for (int i = 0; i < WORLDS; i++) {
        const World *w = &worlds[i];
        int ranks = w->pp * w->dp * w->tp;
        const Config *config = read_config(w);
        const int rank[] = {0, ranks / 2 + 1, ranks - 1};
        for (int k = 0; k < 3; k++) {
            clock_t begun = clock();
            check_rank(w, config, rank[k]);
            double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
            if (seconds > most) fail_msg("world %d, rank %d takes %.1f s", i, rank[k], seconds);
        }
        clock_t begun = clock();
        run_check_schedules(config);
        double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
        if (seconds > most) fail_msg("world %d: checking schedules takes %.1f s", i, seconds);
        config_free(config);
    }
    double used = megabytes_used() - before;
    if (used > (checked ? 1000 : 100)) fail_msg("it takes %.0f MB", used);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_of_65536_opens_quickly_in_little_memory),
    };
    return cmocka_run_group_tests_name("large worlds", tests, NULL, NULL);
}
