/* test_grid_wire.c -- checks how much data the ranks of a grid send in a training step: for each
 * group, operation and dtype, the number of elements must be what this test computes from the
 * layers and micro-batches. */
#include "model/core/check.h"
#include "parallel/trainer/trainer.h"
#include "tests/support/grid/grid_world.h"
#include "tests/support/grid/zero_grid.h"
#include "tests/support/support.h"
#include "tests/support/trainer/counted_step.h"
#include "tests/support/trainer/training.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    BATCH = 12,
    MOST_USES = 256,
    GROUP_PP = 0,
    GROUP_DP,
    GROUP_CP,
    GROUP_TP,
    GROUP_SHARD,
    GROUP_REPLICATE,
    GROUP_KV,
    GROUP_TIE
};

typedef struct {
    int64_t elements[GRID_COMMS][COMM_VERBS][DTYPE_COUNT];
} Wire;

typedef struct {
    const GridWorld *world;
    const GridModel *model;
    RecomputePolicy recompute;
} Case;

static Wire count(const Grid *grid)
{
    const Comm *comm[GRID_COMMS];
    Wire w;
    grid_comms(grid, comm);
    for (int g = 0; g < GRID_COMMS; g++)
        for (int v = 0; v < COMM_VERBS; v++)
            for (int t = 0; t < DTYPE_COUNT; t++)
                w.elements[g][v][t] = comm_counts(comm[g])->of[v][t].elements;
    return w;
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* The state of the computation of expected numbers for one rank and step. */
typedef struct {
    Wire *wire;
    const Trainer *t;
    const Case *c;
    int64_t micros, rows, width; /* number of micro-batches; size of the whole residual stream */
    DType storage, compute, grads;
} Hand;

/* Adds the traffic of `sums` sums and `gathers` gathers at the borders of tensor-parallel regions,
 * in all micro-batches. A sum is an all-reduce; with sequence parallelism, it is a reduce-scatter,
 * and the other direction is an all-gather. */
static void add_borders(Hand *h, int sums, int gathers)
{
    int64_t each = h->micros * h->rows * h->width;
    int64_t(*tp)[DTYPE_COUNT] = h->wire->elements[GROUP_TP];
    if (!h->c->world->sequence_parallel) {
        tp[COMM_ALL_REDUCE][h->storage] += sums * each;
        return;
    }
    tp[COMM_REDUCE_SCATTER][h->storage] += sums * each;
    tp[COMM_ALL_GATHER][h->storage] += gathers * each;
}

/* Adds the regions of one layer. The embedding is a region of which only the exit sends anything. A
 * block has two regions, each with an entry and an exit, forward and backward; it gathers the
 * inputs of the entries again for the gradients of their weights. The head has only an entry, and
 * three numbers per row for the loss: the maximum, the sum and the target. */
static void add_layer(Hand *h, int row)
{
    const GptLayers *layers = &h->t->session.layers;
    if (row == 0) {
        add_borders(h, 1, 1);
    } else if (row == layers->n_rows - 1) {
        add_borders(h, 1, 1);
        h->wire->elements[GROUP_TP][COMM_ALL_REDUCE][h->compute] += 3 * h->micros * h->rows;
    } else {
        add_borders(h, 4, 6);
        if (h->c->recompute == RECOMPUTE_FULL)
            add_borders(h, 1, 2); /* recomputes the forward pass up to the last exit */
    }
}

/* Adds activations sent to the next run of layers, and their gradients sent to the previous one. */
static void add_messages(Hand *h)
{
    const GridWorld *w = h->c->world;
    int64_t each = h->micros * h->rows * h->width / (w->sequence_parallel ? w->tp : 1);
    int64_t(*pp)[DTYPE_COUNT] = h->wire->elements[GROUP_PP];
    for (int run = 0, runs = w->pp * w->chunks; run < runs && w->pp > 1; run++) {
        if (run % w->pp != h->t->session.grid.at.pp) continue;
        int neighbours = (run > 0) + (run + 1 < runs);
        pp[COMM_SEND][h->storage] += neighbours * each;
        pp[COMM_RECEIVE][h->storage] += neighbours * each;
    }
}

/* Lists the uses of weights, in the order of the stage's actions. A forward pass uses all layers
 * except the head, whose forward pass is part of its backward pass. A backward pass uses all layers
 * except the embedding, whose gradient needs no weights. */
static int64_t list_uses(const Session *s, Use *use)
{
    const GptLayers *layers = &s->layers;
    const Schedule *schedule = &s->step.schedule;
    int64_t n = 0;
    for (const Action *a = schedule->action; a < schedule->action + schedule->n; a++) {
        if (a->kind == ACT_EXCHANGE) continue;
        const LayerRange *rows = &layers->chunk[a->chunk];
        bool forward = a->kind == ACT_FORWARD;
        for (int i = rows->first; i < rows->end; i++) {
            int row = forward ? i : rows->first + rows->end - 1 - i;
            const Layer *layer = &layers->row[row];
            if (row == (forward ? layers->n_rows - 1 : 0)) continue;
            CHECK(n + layer->n_units <= MOST_USES, "%lld uses", (long long)n);
            for (int u = 0; u < layer->n_units; u++)
                use[n++] = (Use){.unit = layer->unit[u]};
        }
    }
    return n;
}

/* Adds the sums of gradients, and the gathers of updated weights, over the ranks that share a unit.
 * At ZeRO stage 3 weights are gathered for each use. Between shard groups each part of a unit is
 * summed and gathered once. */
static void add_units(Hand *h)
{
    const Session *s = &h->t->session;
    const GridWorld *w = h->c->world;
    ZeroGridCase c = {.size = s->grid.size,
                      .shard = w->shard,
                      .micros = h->micros,
                      .tied = s->layers.whole.tied,
                      .zero = {.stage = w->stage, .sequence_parallel = w->sequence_parallel}};
    int64_t(*shard)[DTYPE_COUNT] = h->wire->elements[GROUP_SHARD],
    (*replicate)[DTYPE_COUNT] = h->wire->elements[GROUP_REPLICATE];
    Use use[MOST_USES];
    ZeroGridWire finish = zero_grid_wire(&c, &s->table, &s->grid.at);
    shard[w->stage ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE][h->grads] += finish.sums;
    replicate[COMM_REDUCE_SCATTER][h->grads] += finish.replicate.elements;
    replicate[COMM_ALL_GATHER][h->storage] += finish.replicate.elements;
    if (w->stage > 0)
        shard[COMM_ALL_GATHER][h->storage] +=
            w->stage < 3 ? finish.units : zero_grid_gathered(&c, &s->table, use, list_uses(s, use));
    h->wire->elements[GROUP_TP][COMM_ALL_REDUCE][h->grads] += finish.tp.elements;
    h->wire->elements[GROUP_KV][COMM_ALL_REDUCE][h->grads] += finish.kv.elements;
    h->wire->elements[GROUP_TIE][COMM_ALL_REDUCE][h->grads] += finish.tie.elements;
}

static Wire by_hand(const Trainer *t, const Case *c)
{
    const Session *s = &t->session;
    Wire wire = {0};
    Hand h = {.wire = &wire,
              .t = t,
              .c = c,
              .micros = t->config->gradient_accumulation_steps,
              .rows = t->config->train_micro_batch_size_per_gpu * GRID_WORLD_TOKENS,
              .width = s->layers.whole.C,
              .storage = s->layers.whole.dtype,
              .compute = dtype_compute(s->layers.whole.dtype),
              .grads = s->layers.whole.grad_dtype};
    for (int chunk = 0; chunk < s->layers.n_chunks; chunk++)
        for (int row = s->layers.chunk[chunk].first; row < s->layers.chunk[chunk].end; row++)
            add_layer(&h, row);
    add_messages(&h);
    add_units(&h);
    /* Squared norm, nats and targets are summed over one axis after the other. */
    for (int axis = GROUP_PP; axis <= GROUP_TP; axis++)
        wire.elements[axis][COMM_ALL_REDUCE][F64] += 3;
    /* Groups of more than two ranks may have added in different orders, so the sums of the first
     * group are sent to the others. */
    if (s->grid.size.pp > 2) wire.elements[GROUP_DP][COMM_BROADCAST][F64] += 3;
    if (s->grid.size.pp > 2 || s->grid.size.dp > 2)
        wire.elements[GROUP_TP][COMM_BROADCAST][F64] += 3;
    return wire;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void compare(const Comm *world, const Case *c, const Grid *grid, const Wire *before,
                    const Wire *after, const Wire *want)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    for (int g = 0; g < GRID_COMMS; g++) {
        for (int v = 0; v < COMM_VERBS && comm[g]->size > 1; v++) {
            for (int t = 0; t < DTYPE_COUNT; t++) {
                int64_t got = after->elements[g][v][t] - before->elements[g][v][t];
                if (got != want->elements[g][v][t])
                    rank_wrong(world,
                               "pp %d x dp %d x tp %d%s, ZeRO %d, groups of %d, model %d: %s over "
                               "%s: %lld %s, not %lld",
                               c->world->pp, c->world->dp, c->world->tp,
                               c->world->sequence_parallel ? " sp" : "", c->world->stage,
                               c->world->shard, c->model->model, comm_verb_name[v], comm[g]->name,
                               (long long)got, dtype_name((DType)t),
                               (long long)want->elements[g][v][t]);
            }
        }
    }
}

typedef struct {
    const Case *c;
    Training training;
} Job;

static void train(Comm *world, void *context)
{
    const Job *job = context;
    Trainer t;
    CountedStep counted;
    StepRecord record[TRAINER_HISTORY];
    training_lay_out(&t, world, &job->training);
    counted_step_open(&counted, &t, &job->training.data);
    training_allocate(&t, &job->training);
    Wire want = by_hand(&t, job->c);
    for (int step = 0; step < 2; step++) {
        Wire before = count(&t.session.grid);
        trainer_step(&t);
        trainer_read_all(&t, record);
        Wire after = count(&t.session.grid);
        compare(world, job->c, &t.session.grid, &before, &after, &want);
    }
    counted_step_check(&counted, world, &t);
    trainer_close(&t);
}

static void check(const GridWorld *world, const GridModel *model, RecomputePolicy recompute)
{
    Case c = {world, model, recompute};
    /* Emulated devices are slow, so micro-batches have one sequence there. */
    int64_t batch = getenv("TEST_DEVICE") ? (int64_t)world->dp * world->micros : BATCH;
    Config *config = grid_world_config(world, model, batch);
    Job job = {.c = &c};
    config->activation_checkpointing.policy = recompute;
    config->zero_optimization.stage3_max_reuse_distance = 0;
    training_of_tokens(&job.training, config, grid_world_ranks(world));
    training_run(&job.training, train, &job);
    training_close(&job.training);
}

/* Returns whether the devices of TEST_DEVICE, if it is set, compute this dtype and are enough for
 * the ranks. */
static bool on_device(const GridWorld *world, const GridModel *model)
{
    if (getenv("TEST_DEVICE") == NULL) return true;
    int devices = cuda_devices();
    return grid_world_dtype(model) != F64 && (devices == 1 || grid_world_ranks(world) <= devices);
}

static void test_a_step_sends_exactly_the_expected_number_of_elements(void **state)
{
    (void)state;
    static const GridWorld worlds[] = {
        {1, 3, 1, false, 1, 2, 2, 1, 0, 0}, {1, 1, 2, false, 1, 0, 2, 1, 0, 0},
        {1, 1, 2, true, 1, 0, 2, 1, 0, 0},  {1, 2, 4, false, 1, 1, 1, 1, 0, 0},
        {1, 2, 4, true, 1, 3, 1, 1, 0, 0},  {1, 1, 3, true, 1, 0, 3, 1, 0, 0},
        {2, 1, 1, false, 1, 0, 4, 1, 0, 0}, {4, 1, 1, false, 1, 0, 2, 1, 0, 0},
        {3, 2, 1, false, 1, 2, 3, 1, 0, 0}, {2, 1, 1, false, 2, 0, 4, 1, 0, 0},
        {2, 1, 2, false, 2, 0, 3, 1, 0, 0}, {2, 2, 2, true, 1, 3, 2, 1, 0, 0},
        {2, 2, 2, true, 2, 1, 3, 1, 0, 0},  {2, 1, 4, false, 1, 0, 2, 1, 0, 0},
        {3, 1, 4, true, 1, 0, 3, 1, 0, 0},  {4, 1, 2, true, 1, 0, 6, 1, 0, 0},
        {2, 3, 2, false, 1, 2, 2, 1, 0, 0}, {3, 2, 1, false, 1, 3, 3, 1, 0, 0},
        {2, 2, 2, false, 2, 3, 6, 1, 0, 0}, {1, 4, 1, false, 1, 3, 3, 1, 2, 0},
        {1, 4, 1, false, 1, 1, 3, 1, 2, 0}, {1, 6, 1, false, 1, 2, 2, 1, 3, 0},
        {2, 4, 1, false, 1, 3, 3, 1, 2, 0}, {1, 2, 2, true, 1, 2, 2, 1, 1, 0},
    };
    int seen = 0, every = (int)turns_every(5), first = (int)turns_first(every);
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (int i = 0; i < GRID_WORLD_MODELS * 2; i++) {
            GridModel model = {.model = i / 2, .dtype = i % 2};
            if (!grid_world_fits(&worlds[w], &model) || !on_device(&worlds[w], &model)) continue;
            if (seen++ % every != first) continue;
            check(&worlds[w], &model, (RecomputePolicy)((w + (size_t)i) % 3));
        }
    assert_true(seen == 142 || getenv("TEST_DEVICE") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_sends_exactly_the_expected_number_of_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
