/* test_key_buckets.c -- tests how the bucket sizes of a config group ZeRO's collective calls on
 * grids: which units share a group of calls, with and without overlap_comm, on every axis. The test
 * records each rank's calls. */
#include "model/core/check.h"
#include "parallel/trainer/trainer.h"
#include "tests/support/files/config_support.h"
#include "tests/support/grid/comm_spy.h"
#include "tests/support/grid/grid_world.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BATCH = 4, MOST_CALLS = 512 };

typedef struct {
    const Config *config;
    const DataSet *data;
} Job;

/* One rank's calls of one collective in a step: the elements and the group of each. */
typedef struct {
    int n;
    int64_t elements[MOST_CALLS], group[MOST_CALLS];
} Calls;

/* The calls that this rank has made on its data-parallel communicator. */
static _Thread_local Calls sums, gathers;
static _Thread_local const Comm *shard;

static void note(const CommSpied *call)
{
    Calls *to = call->verb == COMM_ALL_GATHER ? &gathers : &sums;
    if (call->comm != shard || call->verb >= COMM_VERBS || to->n == MOST_CALLS) return;
    to->group[to->n] = call->bundle;
    to->elements[to->n++] = tensor_count(call->x);
}

/* Consecutive units share a group as long as they fit into a bucket. A group is sent only when the
 * next unit does not fit, or after the last unit. Checks the calls from `first` on. */
static void check_groups(const Comm *world, const Calls *c, int first, int64_t most,
                         const char *what)
{
    for (int i = first; i < c->n; i++) {
        int64_t together = c->elements[i];
        int end = i + 1;
        for (; end < c->n && c->group[end] == c->group[i]; end++)
            together += c->elements[end];
        if (end > i + 1 && together > most)
            rank_wrong(world, "%s: a group of %lld elements, more than %lld", what,
                       (long long)together, (long long)most);
        if (end < c->n && together < most && together + c->elements[end] <= most)
            rank_wrong(world, "%s: %lld more would have fitted beside %lld of %lld", what,
                       (long long)c->elements[end], (long long)together, (long long)most);
        i = end - 1;
    }
}

static void train(Comm *world, void *context)
{
    const Job *job = context;
    const Config *c = job->config;
    Trainer t;
    StepRecord record[TRAINER_HISTORY];
    char err[1024];
    CHECK(trainer_open(&t, c, world, err, sizeof err) &&
              trainer_allocate(&t, c, job->data, err, sizeof err),
          "%s", err);
    comm_spy(&t.session.grid);
    shard = &t.session.grid.shard;
    comm_spy_note(note);
    trainer_step(&t); /* afterwards the gathers of the initial weights have ended */
    sums = gathers = (Calls){0};
    trainer_step(&t);
    trainer_read_all(&t, record);
    comm_spy_note(NULL);
    /* The units of this rank, padded so that all shards are aligned. */
    const ParamTable *table = &t.session.table;
    int64_t grain = (int64_t)PARAM_ALIGNMENT * t.session.grid.size.dp, all = 0, units = 0;
    for (int u = 0; u < table->n_units; u++) {
        if (!home_is(&table->unit[u].home, t.session.grid.at.pp)) continue;
        all += (table->unit[u].size + grain - 1) / grain * grain;
        units++;
    }
    int64_t most = c->zero_optimization.overlap_comm ? all / 8 + 1 : INT64_MAX,
            reduce = c->zero_optimization.reduce_bucket_size,
            gather = c->zero_optimization.allgather_bucket_size;
    bool several = t.session.grid.size.dp > 1, sharded = c->zero_optimization.stage == 1;
    if (sums.n != (several ? units : 0))
        rank_wrong(world, "%d sums of %lld units", sums.n, (long long)units);
    if (gathers.n != (several && sharded ? units : 0))
        rank_wrong(world, "%d gathers of %lld units", gathers.n, (long long)units);
    check_groups(world, &sums, 0, reduce < most ? reduce : most, "sums");
    /* If states on the host are updated while the forward pass runs, the first gather of this pass
     * contains only one unit, so that it does not wait for the updates of others. */
    int alone = gathers.n > 0 && c->zero_optimization.overlap_comm &&
                c->zero_optimization.offload_optimizer.device == OFFLOAD_CPU;
    if (alone && gathers.n > 1 && gathers.group[0] == gathers.group[1])
        rank_wrong(world, "the first unit is gathered together with another");
    check_groups(world, &gathers, alone, gather < most ? gather : most, "gathers");
    trainer_close(&t);
}

static void bucket_sizes_decide_which_units_share_a_group_of_calls(void **state)
{
    (void)state;
    static const GridWorld worlds[] = {
        {1, 2, 1, false, 1, 0, 2, 1, 0, 0}, {1, 2, 2, false, 1, 1, 2, 1, 0, 0},
        {2, 2, 1, false, 1, 1, 2, 1, 0, 0}, {2, 2, 2, true, 1, 0, 2, 1, 0, 0},
        {2, 2, 1, false, 2, 1, 2, 1, 0, 0}, {1, 1, 2, false, 1, 1, 2, 1, 0, 0},
        {2, 1, 1, false, 1, 1, 2, 1, 0, 0}};
    static const int64_t sizes[][2] = {
        {1000000, 1000000}, {0, 1000000}, {1000000, 0}, {6000, 9000}, {9000, 6000}};
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (int i = 0; i < 10; i++) {
            GridModel model = {.model = i % 2, .dtype = 0};
            if (!grid_world_fits(&worlds[w], &model)) continue;
            Config *c = grid_world_config(&worlds[w], &model, BATCH);
            DataSet data;
            c->zero_optimization.reduce_bucket_size = sizes[i / 2][0];
            c->zero_optimization.allgather_bucket_size = sizes[i / 2][1];
            for (int way = 0; way < 4; way++) {
                c->zero_optimization.overlap_comm = way % 2;
                c->zero_optimization.offload_optimizer.device =
                    way < 2 ? OFFLOAD_NONE : OFFLOAD_CPU;
                data_open_random(&data, c->model.vocab_size);
                Job job = {.config = c, .data = &data};
                thread_ranks(grid_world_ranks(&worlds[w]), 60, train, &job);
                data_close(&data);
            }
            config_free(c);
        }
}

/* Without overlap_comm only the config's bucket size counts. With it, the buckets of a small model
 * hold an eighth of its elements, and those of a large model 40 million. The wire buffer in bf16
 * shows the size, because it holds one bucket. */
static void measure_bucket(Comm *world, void *context)
{
    const Config *c = context;
    GridGroups groups = {0};
    Grid grid = grid_open(world, config_grid(c, world->size), &groups);
    GptShape shape = gpt_shape(c, 1);
    ParamTable table = {0};
    GptLayers layers;
    gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
    ZeroOptions options = zero_options(c, true);
    ZeroStore *store = zero_create(&table, &grid, &options);
    int64_t all = 0, largest = 0, elements = (int64_t)zero_bytes(store).wire / 2;
    for (int u = 0; u < table.n_units; u++) {
        all += table.unit[u].size;
        if (table.unit[u].size > largest) largest = table.unit[u].size;
    }
    if (all > c->zero_optimization.reduce_bucket_size)
        all = c->zero_optimization.reduce_bucket_size;
    int64_t eighth = all / 8, most = eighth < 40000000 ? eighth : 40000000;
    int64_t expected = !c->zero_optimization.overlap_comm ? all : most > largest ? most : largest;
    if (elements < expected || elements > expected + 100000)
        rank_wrong(world, "a bucket of %lld elements, %lld expected", (long long)elements,
                   (long long)expected);
    zero_destroy(store);
    gpt_layers_free(&layers);
    param_table_free(&table);
    grid_close(&grid);
}

static void buckets_hold_at_most_40_million_elements_with_overlap_comm(void **state)
{
    (void)state;
    static const struct {
        int64_t layers, hidden;
        bool overlap;
    } cases[] = {{48, 768, true}, {48, 768, false}, {96, 1024, true}, {96, 1024, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *given = config_test_keys("\"communication_data_type\": \"bf16\"");
        Config c = *given;
        c.model.num_layers = cases[i].layers;
        c.model.hidden_size = cases[i].hidden;
        c.model.intermediate_size = 4 * cases[i].hidden;
        c.model.head_dim = cases[i].hidden / c.model.num_attention_heads;
        c.model.vocab_size = 1024;
        c.zero_optimization.overlap_comm = cases[i].overlap;
        thread_ranks(2, 60, measure_bucket, &c);
        config_free(given);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_sizes_decide_which_units_share_a_group_of_calls),
        cmocka_unit_test(buckets_hold_at_most_40_million_elements_with_overlap_comm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
