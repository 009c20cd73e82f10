/* optimizer.c -- see optimizer.h. */
#include "optim/optimizer.h"

#include "model/core/check.h"
#include "optim/rounding.h"

#include <stdlib.h>

/* Whether weights of this type are rounded stochastically, without masters. */
static bool rounds_stochastically(const Config *config, DType storage)
{
    return storage == BF16 && config->bf16.bf16_master_weights_and_grads;
}

/* Whether weights of this type have a master copy in the type that updates are computed in. */
static bool keeps_masters(const Config *config, DType storage)
{
    return storage != dtype_compute(storage) && !rounds_stochastically(config, storage);
}

/* Slots and segments of the run that run->run describes; its tensors need not be there. */
static void plan_run(OptimizerRun *run, const Config *config, const ParamTable *table, Arena *arena)
{
    const Shard *shard = &run->run;
    DType storage = table->unit[shard->unit].dtype;
    int end = SLOT_FIRST + optimizer_rule_slots(optimizer_rule(config->optimizer.type), config);
    for (int slot = keeps_masters(config, storage) ? SLOT_MASTER : SLOT_FIRST; slot < end; slot++)
        run->slot[slot] = arena_tensor(arena, dtype_compute(storage), 1, shard->count, 0, 0);
    if (!rounds_stochastically(config, storage)) return;
    int segments = rounding_segments(table, shard->unit, shard->offset, shard->count, NULL, 0);
    run->rounding.seed = (uint64_t)config->seed;
    run->rounding.segments = arena_tensor(arena, I64, 2, segments, SEGMENT_WORDS, 0);
}

void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *arena)
{
    const OptimizerRule *rule = optimizer_rule(config->optimizer.type);
    *optimizer = (Optimizer){
        .rule = rule,
        .table = store->table,
        .constants = {[GROUP_DECAY] =
                          rule->constants(config, config->optimizer.params.weight_decay),
                      [GROUP_NO_DECAY] = rule->constants(config, 0.0)},
        .n_runs = store->shards(store, PURPOSE_UPDATE, NULL, 0),
    };
    size_t n = (size_t)optimizer->n_runs;
    Shard *shard = must_calloc(n, sizeof *shard);
    store->shards(store, PURPOSE_UPDATE, shard, optimizer->n_runs);
    optimizer->run = must_calloc(n, sizeof *optimizer->run);
    /* A unit's runs are adjacent, for the store lists its shards unit by unit. A unit of which this
     * rank has no shard keeps n_runs, so that a walk over its runs ends at once. */
    optimizer->first_run = must_calloc((size_t)store->table->n_units, sizeof(int));
    for (int u = 0; u < store->table->n_units; u++)
        optimizer->first_run[u] = optimizer->n_runs;
    for (int i = 0; i < optimizer->n_runs; i++) {
        OptimizerRun *run = &optimizer->run[i];
        int *first = &optimizer->first_run[shard[i].unit];
        if (i < *first) *first = i;
        run->run = shard[i];
        plan_run(run, config, store->table, arena);
    }
    free(shard);
}

void optimizer_free(Optimizer *optimizer)
{
    free(optimizer->run);
    free(optimizer->first_run);
    *optimizer = (Optimizer){0};
}

size_t optimizer_bytes(const Config *config, ParamStore *store)
{
    Optimizer measured;
    Arena arena = arena_measuring();
    optimizer_plan(&measured, config, store, &arena);
    optimizer_free(&measured);
    return arena.peak;
}

/* Puts the run's table of segments where its tensor lies. */
static void upload_segments(const Optimizer *optimizer, const OptimizerRun *run, Device *dev)
{
    const Shard *shard = &run->run;
    Tensor there = run->rounding.segments;
    if (!tensor_present(there)) return;
    int n = (int)tensor_rows(there);
    Segment *segment = must_calloc((size_t)n, sizeof *segment);
    rounding_segments(optimizer->table, shard->unit, shard->offset, shard->count, segment, n);
    device_copy(dev, there, tensor_2d(segment, I64, n, SEGMENT_WORDS));
    device_synchronize(dev);
    free(segment);
}

void optimizer_init(Optimizer *optimizer, Device *dev)
{
    for (int i = 0; i < optimizer->n_runs; i++) {
        OptimizerRun *run = &optimizer->run[i];
        upload_segments(optimizer, run, dev);
        for (int slot = 0; slot < SLOT_MAX; slot++) {
            if (!tensor_present(run->slot[slot])) continue;
            /* The master begins as the weight, which is exact; the other slots are averages of
             * nothing. */
            if (slot == SLOT_MASTER) {
                op_copy(dev, run->slot[slot], run->run.weight);
            } else {
                op_fill(dev, run->slot[slot], 0.0);
            }
        }
    }
}

/* Publishes the unit of run i if run i is its last. */
static void publish_when_done(const Optimizer *optimizer, ParamStore *store, int i)
{
    int unit = optimizer->run[i].run.unit;
    if (i + 1 == optimizer->n_runs || optimizer->run[i + 1].run.unit != unit) {
        store->publish(store, unit);
    }
}

void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision)
{
    for (int i = 0; i < optimizer->n_runs; i++) {
        OptimizerRun *run = &optimizer->run[i];
        Shard *shard = &run->run;
        OptimizerUpdate update = {
            .weight = shard->weight,
            .grad = shard->grad,
            .slot = run->slot,
            .constants = &optimizer->constants[shard->group],
            .decision = decision,
            .rounding = tensor_present(run->rounding.segments) ? &run->rounding : NULL,
        };
        optimizer->rule->update(dev, &update);
        publish_when_done(optimizer, store, i);
    }
}

bool optimizer_slot(const Optimizer *optimizer, const ParamTable *table, int param, int slot,
                    Tensor *view)
{
    const Param *row = &table->param[param];
    /* Padding rows included: they lie in the run as well, and the view below leaves them out. */
    int64_t count = row->local[0] * (row->ndim == 2 ? row->local[1] : 1);
    /* A row is looked for whole within one run; on a rank that does not own it there is none. */
    for (int i = optimizer->first_run[row->unit]; i < optimizer->n_runs; i++) {
        const Shard *shard = &optimizer->run[i].run;
        if (shard->unit != row->unit) break;
        if (row->offset < shard->offset) continue;
        if (row->offset + count > shard->offset + shard->count) continue;
        Tensor flat = optimizer->run[i].slot[slot];
        if (!tensor_present(flat)) return false;
        size_t before = (size_t)(row->offset - shard->offset) * dtype_size(flat.dtype);
        *view = flat;
        view->data = (char *)flat.data + before;
        view->ndim = row->ndim;
        view->dim[0] = row->dim[0];
        view->dim[1] = row->ndim == 2 ? row->dim[1] : 0;
        view->ld = row->ndim == 2 ? row->local[1] : row->dim[0];
        return true;
    }
    return false;
}
