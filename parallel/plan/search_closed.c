/* search_closed.c -- closed forms of a layout's time and memory: lower bounds, and estimates that
 * order the layouts; see search.h. */
#include "parallel/plan/search.h"

#include "model/core/min_max.h"
#include "model/kernels/ops.h"
#include "optim/optimizer.h"
#include "parallel/plan/cost.h"

#include <math.h>

/* ---- lower bounds ---------------------------------------------------------------------------- */

/* The sizes of a block on one rank. */
typedef struct {
    /* `rows`: rows of a micro-batch. The others are numbers of columns: `hidden` of the hidden
     * state, `heads` of all heads of queries, `qkv` of queries, keys and values together, `width`
     * of the result of the first product of the MLP. */
    int64_t rows, hidden, heads, qkv, width;
    int64_t layers; /* the stage with the most blocks has at least this many */
    /* micro-batches of a step; data-parallel ranks; ranks of a shard group */
    int64_t micros, dp, shard;
} BlockPart;

static BlockPart part_of_block(const Config *c, const PlanLayout *l, int64_t ranks)
{
    int64_t queries = c->model.num_attention_heads * c->model.head_dim / l->tensor,
            keys = c->model.num_key_value_heads * c->model.head_dim / l->tensor;
    int64_t dp = ranks / (l->tensor * l->pipeline);
    bool gated = c->model.activation == ACTIVATION_SWIGLU;
    return (BlockPart){.rows = l->micro * c->data.seq_length,
                       .hidden = c->model.hidden_size,
                       .heads = queries,
                       .qkv = queries + 2 * keys,
                       .width = c->model.intermediate_size / l->tensor * (gated ? 2 : 1),
                       .layers = (c->model.num_layers - 1) / l->pipeline + 1,
                       .micros = c->train_batch_size / (l->micro * dp),
                       .dp = dp,
                       .shard = l->zero > 0 && c->parallel.shard > 0 ? c->parallel.shard : dp};
}

/* Returns the traits of products in this config: in f32 they may use TF32. */
static CostTraits traits_of(const Config *c)
{
    CostTraits traits = COST_OWN;
    traits.tf32 = c->cuda.tf32;
    return traits;
}

/* Returns the seconds of the products of a block for one micro-batch: forward, or backward with
 * recomputed products. In a plan a product may be split into several parts, which takes longer. */
static double block_seconds(const Config *c, const Hardware *h, const PlanLayout *l,
                            const BlockPart *b, bool backward)
{
    DType dtype = config_dtype(c);
    const CostTraits traits = traits_of(c);
    bool gated = c->model.activation == ACTIVATION_SWIGLU;
    double again = cost_product(h, &traits, dtype, b->rows, b->qkv, b->hidden, 0) +
                   cost_product(h, &traits, dtype, b->rows, b->hidden, b->heads, 0) +
                   cost_product(h, &traits, dtype, b->rows, b->width, b->hidden, 0);
    double down =
        cost_product(h, &traits, dtype, b->rows, b->hidden, b->width / (gated ? 2 : 1), 0);
    if (!backward) return again + down;
    return 2 * (again + down) + (l->recompute == RECOMPUTE_FULL ? again : 0);
}

/* Returns the bytes of optimizer states per element. */
static double slot_bytes(const Config *c)
{
    DType storage = config_dtype(c);
    size_t bytes = 0;
    for (int slot = 0; slot < SLOT_MAX; slot++)
        if (optimizer_has_slot(c, storage, slot))
            bytes += dtype_size(optimizer_slot_dtype(c, storage, slot));
    return (double)bytes;
}

/* Returns the share of the states that is on the device or, if `least` is true, the smallest share
 * that is possible. The smallest share is 0 if states are offloaded: only whole shards are put on
 * the host, so it may happen that all of them are. */
static double states_on_device(const Config *c, bool least)
{
    const OffloadConfig *offload = &c->zero_optimization.offload_optimizer;
    if (offload->device != OFFLOAD_CPU) return 1;
    return least ? 0 : 1 - offload->ratio;
}

/* Returns the seconds in which a step moves the states of `elements` elements over the link to the
 * host, both ways at once. */
static double linked(const Config *c, const Hardware *h, const PlanLayout *l, const BlockPart *b,
                     double elements)
{
    if (!h->cuda) return 0;
    return elements * slot_bytes(c) / (l->zero > 0 ? (double)b->dp : 1) / h->host_bandwidth;
}

/* Returns the bytes of weights, gradients and the given share of optimizer states per element of a
 * block: weights and gradients are divided in each shard group, optimizer states among all
 * data-parallel ranks. */
static double state_bytes(const Config *c, const PlanLayout *l, const BlockPart *b, double share)
{
    double weight = (double)dtype_size(config_dtype(c)),
           gradient = (double)dtype_size(config_grad_dtype(c)), states = share * slot_bytes(c),
           group = (double)b->shard;
    return (l->zero == 3 ? weight / group : weight) + (l->zero >= 2 ? gradient / group : gradient) +
           (l->zero >= 1 ? states / (double)b->dp : states);
}

/* Returns the bytes that a block keeps for the backward pass of one micro-batch. */
static double kept_bytes(const Config *c, const PlanLayout *l, const BlockPart *b)
{
    double size = (double)dtype_size(config_dtype(c)), rows = (double)b->rows,
           input = rows * (double)b->hidden / (double)(l->sequence_parallel ? l->tensor : 1);
    return size *
           (input + (l->recompute == RECOMPUTE_FULL ? 0 : rows * (double)(b->qkv + b->width)));
}

static double weights_of(const Config *c, const BlockPart *b)
{
    bool gated = c->model.activation == ACTIVATION_SWIGLU;
    int64_t down = b->width / (gated ? 2 : 1);
    return (double)b->hidden * (double)(b->qkv + b->heads + b->width + down);
}

/* Why this is a lower bound: the stage with the most blocks computes all their products one after
 * the other. If all states are on the host, the states of a step have crossed the link before the
 * backward passes of the next step begin. */
double plan_least_seconds(const Config *config, const Hardware *hardware, const PlanLayout *layout,
                          int64_t ranks)
{
    const OffloadConfig *offload = &config->zero_optimization.offload_optimizer;
    BlockPart b = part_of_block(config, layout, ranks);
    double blocks = (double)(b.layers * b.micros),
           forward = blocks * block_seconds(config, hardware, layout, &b, false),
           backward = blocks * block_seconds(config, hardware, layout, &b, true), states = 0;
    if (offload->device == OFFLOAD_CPU && offload->ratio == 1)
        states = linked(config, hardware, layout, &b, (double)b.layers * weights_of(config, &b));
    return fmax(forward, states) + backward;
}

/* Why this is a lower bound: the stage with the most blocks has their states, and the activations
 * that one micro-batch keeps in them. */
double plan_least_bytes(const Config *config, const PlanLayout *layout, int64_t ranks)
{
    BlockPart b = part_of_block(config, layout, ranks);
    double states = state_bytes(config, layout, &b, states_on_device(config, true));
    return (double)b.layers * (weights_of(config, &b) * states + kept_bytes(config, layout, &b));
}

/* Compares stage3_max_live_parameters with two blocks, or with the token table and a block. The
 * other tensors of these units are small: a fiftieth at most. */
bool plan_gathers_pairs(const Config *config, const PlanLayout *layout, int64_t ranks)
{
    BlockPart b = part_of_block(config, layout, ranks);
    double block = weights_of(config, &b),
           table = (double)config->model.vocab_size * (double)b.hidden / (double)layout->tensor;
    return layout->zero < 3 || 1.02 * (block + fmax(block, table)) <=
                                   (double)config->zero_optimization.stage3_max_live_parameters;
}

/* ---- estimates ------------------------------------------------------------------------------- */

/* The estimated times of a layout, in seconds. */
typedef struct {
    double forward, backward; /* of a block for one micro-batch, with recomputation */
    double head;    /* of the loss and its products for one micro-batch, forward and backward */
    double message; /* from a stage to the next */
} Parts;

static double product(const Config *c, const Hardware *h, int64_t m, int64_t n, int64_t k)
{
    DType dtype = config_dtype(c);
    const CostTraits traits = traits_of(c);
    return cost_product(h, &traits, dtype, m, n, k,
                        (m * n + n * k + m * k) * (int64_t)dtype_size(dtype));
}

/* Returns the seconds of `kernels` kernels that together move `bytes` bytes. */
static double moved(const Hardware *h, int kernels, double bytes)
{
    return kernels * h->launch + bytes / (h->memory_bandwidth * h->memory_efficiency);
}

static double attention_seconds(const Config *c, const Hardware *h, const PlanLayout *l,
                                const BlockPart *b, bool forward)
{
    double length = (double)c->data.seq_length,
           pairs = (double)b->rows * length / 2 * (double)b->heads;
    const GraphNode node = {.kind = NODE_OP,
                            .code = forward ? OP_attention_forward : OP_attention_backward,
                            .dtype = config_dtype(c),
                            .m = l->micro * b->heads / c->model.head_dim,
                            .n = c->data.seq_length,
                            .k = c->model.head_dim,
                            .flops = (forward ? 4 : 10) * pairs};
    return cost_of_node(h, &COST_OWN, NULL, &node);
}

/* Returns the seconds in which the tensor-parallel ranks sum the rows of one half of a block
 * (attention or MLP). With sequence parallelism they gather and scatter these rows instead, which
 * moves as much. */
static double region_seconds(const Config *c, const Hardware *h, const PlanLayout *l,
                             const BlockPart *b)
{
    const GraphGroup group = {.size = (int)l->tensor, .stride = 1};
    int64_t bytes = b->rows * b->hidden * (int64_t)dtype_size(config_dtype(c));
    if (!l->sequence_parallel) return cost_collective(h, &COST_OWN, COMM_ALL_REDUCE, bytes, &group);
    return cost_collective(h, &COST_OWN, COMM_ALL_GATHER, bytes, &group) +
           cost_collective(h, &COST_OWN, COMM_REDUCE_SCATTER, bytes, &group);
}

static Parts parts_of(const Config *c, const Hardware *h, const PlanLayout *l, const BlockPart *b)
{
    DType dtype = config_dtype(c);
    bool gated = c->model.activation == ACTIVATION_SWIGLU, full = l->recompute == RECOMPUTE_FULL;
    int64_t down = b->width / (gated ? 2 : 1), vocabulary = c->model.vocab_size / l->tensor;
    double size = (double)dtype_size(dtype), rows = (double)b->rows, hidden = (double)b->hidden;
    double before_down = product(c, h, b->rows, b->qkv, b->hidden) +
                         product(c, h, b->rows, b->hidden, b->heads) +
                         product(c, h, b->rows, b->width, b->hidden);
    double last = product(c, h, b->rows, b->hidden, down);
    double own_rows = rows / (double)(l->sequence_parallel ? l->tensor : 1);
    /* stream: the seconds of the norms and the sums of the residual stream; inner: those of the
     * activation function and of rotary positions. */
    double stream = moved(h, 3, size * own_rows * 8 * hidden),
           inner = moved(h, 3, size * rows * (double)(b->width + down + 2 * b->qkv));
    double region = region_seconds(c, h, l, b),
           forward = attention_seconds(c, h, l, b, true) + before_down + stream + inner,
           again = l->recompute == RECOMPUTE_NONE ? 0
                   : full                         ? forward + 1.5 * region
                                                  : 0.5 * (stream + inner);
    Parts p = {.forward = forward + last + 2 * region};
    p.backward = 2 * (before_down + last) + attention_seconds(c, h, l, b, false) +
                 1.5 * (stream + inner) + (l->sequence_parallel ? 3 : 2) * region + again;
    p.head = 3 * product(c, h, b->rows, vocabulary, b->hidden) +
             moved(h, 4, 4 * size * rows * (double)vocabulary);
    const bool near = l->pipeline * l->tensor * b->dp <= h->devices_per_node;
    double link =
        near ? h->inside.bandwidth : h->between.bandwidth * h->nics_per_node / h->devices_per_node;
    p.message =
        l->pipeline == 1 ? 0 : h->collective + h->between.latency + size * own_rows * hidden / link;
    return p;
}

/* Returns the seconds of the busiest stage for one micro-batch. If there are enough blocks, the
 * chunk with the head gets fewer of them, and later chunks get more than earlier ones. */
static double stage_seconds(const Config *c, const PlanLayout *l, const Parts *p)
{
    double block = p->forward + p->backward, head = p->head / block, busiest = 0;
    int64_t runs = l->pipeline * l->chunks, layers = c->model.num_layers, most = layers / runs;
    int64_t last = most;
    while ((runs - 1) * most + last < layers)
        most++, last = max_i64(1, most - (int64_t)head);
    last = max_i64(1, min_i64(last, (int64_t)((double)most - head)));
    if ((runs - 1) * most + last < layers) last = layers - (runs - 1) * most;
    int64_t others = layers - last, fewer = runs > 1 ? others / (runs - 1) : 0,
            longer = runs > 1 ? others % (runs - 1) : 0;
    for (int64_t stage = 0; stage < l->pipeline; stage++) {
        double of_stage = stage == l->pipeline - 1 ? (double)last + head : 0;
        for (int64_t run = stage; run < runs - 1; run += l->pipeline)
            of_stage += (double)(fewer + (run >= runs - 1 - longer));
        busiest = fmax(busiest, of_stage);
    }
    return busiest * block;
}

/* Returns the seconds for which forward passes of the first stage wait for the updates of the step
 * before. The states cross the link unit by unit (the token table, then block by block), in the
 * order in which the units are used; the states on the device are those of the units that are used
 * first. A chunk begins when the chunk before it has computed as many micro-batches as there are
 * stages. */
static double exposed_states(const Config *c, const Hardware *h, const PlanLayout *l,
                             const BlockPart *b, const Parts *p)
{
    double block = weights_of(c, b),
           table = (double)c->model.vocab_size * (double)b->hidden / (double)l->tensor,
           of_device = states_on_device(c, false) * (table + (double)b->layers * block),
           updated = 0, late = 0, run = (double)b->layers / (double)l->chunks * p->forward;
    int64_t turns = min_i64(l->pipeline, b->micros);
    for (int64_t unit = -1; unit < b->layers; unit++) {
        double size = unit < 0 ? table : block, moved = fmax(0, size - of_device);
        /* number of chunks before the unit */
        int64_t done = max_i64(unit, 0) * l->chunks / b->layers;
        double begin = (double)max_i64(unit, 0) * p->forward + (double)(done * (turns - 1)) * run;
        of_device = fmax(0, of_device - size);
        updated += linked(c, h, l, b, moved);
        if (moved > 0) late = fmax(late, updated - begin);
    }
    return late;
}

/* Returns the seconds of the data-parallel ranks' collectives that computation does not hide, and
 * of the optimizer. */
static double update_seconds(const Config *c, const Hardware *h, const PlanLayout *l,
                             const BlockPart *b, const Parts *p)
{
    double parameters = (double)b->layers * weights_of(c, b), dp = (double)b->dp,
           layers = (double)b->layers;
    double size = (double)dtype_size(config_dtype(c)),
           grad = (double)dtype_size(config_grad_dtype(c));
    const GraphGroup group = {.size = (int)b->shard, .stride = l->tensor},
                     between = {.size = (int)(b->dp / b->shard),
                                .stride = l->tensor * (int)b->shard};
    double share = l->zero > 0 ? dp : 1;
    double states = states_on_device(c, false),
           late = states < 1 ? exposed_states(c, h, l, b, p) : 0;
    double seconds = moved(h, 20, parameters / share * ((1 + 5 * states) * grad + 2 * size));
    if (b->dp == 1) return seconds + late;
    double gather =
               cost_collective(h, &COST_OWN, COMM_ALL_GATHER, (int64_t)(parameters * size), &group),
           scatter = cost_collective(h, &COST_OWN, COMM_REDUCE_SCATTER,
                                     (int64_t)(parameters * grad), &group),
           sum =
               cost_collective(h, &COST_OWN, COMM_ALL_REDUCE, (int64_t)(parameters * grad), &group);
    /* Between shard groups each part is summed once a step, and gathered once. */
    if (between.size > 1)
        seconds += cost_collective(h, &COST_OWN, COMM_REDUCE_SCATTER,
                                   (int64_t)(parameters / (double)b->shard * grad), &between) /
                       layers +
                   cost_collective(h, &COST_OWN, COMM_ALL_GATHER,
                                   (int64_t)(parameters / (double)b->shard * size), &between) /
                       layers;
    double forward = layers * p->forward, backward = layers * p->backward,
           micros = (double)b->micros;
    if (l->zero == 0)
        return seconds + late + fmax(sum - backward / (double)l->chunks, sum / layers);
    /* A unit is gathered as soon as it has been updated, while the next units are updated. */
    if (l->zero == 1)
        return seconds + fmax(scatter - backward / (double)l->chunks, scatter / layers) +
               fmax(gather - forward / (double)l->chunks, gather / layers + late);
    seconds += fmax(scatter - backward, 0.1 * scatter) * micros;
    if (l->zero == 2) return seconds + fmax(gather - forward, gather / layers + late);
    /* The gathers for forward and for backward share a stream with the sums, which delay them. */
    return seconds + fmax(0, late - gather) + 2 * gather * micros;
}

double plan_estimate_seconds(const Config *config, const Hardware *hardware,
                             const PlanLayout *layout, int64_t ranks)
{
    BlockPart b = part_of_block(config, layout, ranks);
    Parts p = parts_of(config, hardware, layout, &b);
    double stage = stage_seconds(config, layout, &p), stages = (double)layout->pipeline,
           even = (double)config->model.num_layers / stages * (p.forward + p.backward);
    double micros = (double)b.micros, runs = (double)layout->chunks, waits = stages - 1,
           sent = micros * runs * p.message;
    /* A chunk has to wait for the same micro-batch in the chunk before it, which all stages compute
     * in turn. */
    if (layout->chunks > 1 && micros < stages) {
        waits = micros - 1;
        micros = stages;
    }
    return micros * stage + waits * even / runs + 2 * (stages - 1) * p.message + sent +
           update_seconds(config, hardware, layout, &b, &p);
}

/* The first stage keeps the most micro-batches, because its schedule begins with the most forward
 * passes. */
double plan_estimate_bytes(const Config *config, const PlanLayout *layout, int64_t ranks)
{
    BlockPart b = part_of_block(config, layout, ranks);
    double stages = (double)layout->pipeline, chunks = (double)layout->chunks,
           flight = layout->chunks > 1 ? (stages * (chunks + 1) - 1) / chunks : stages;
    double size = (double)dtype_size(config_dtype(config)), rows = (double)b.rows,
           sp = (double)(layout->sequence_parallel ? layout->tensor : 1), kept = 0;
    kept = kept_bytes(config, layout, &b);
    if (layout->recompute != RECOMPUTE_FULL) kept += size * rows * (double)b.hidden / sp;
    if (layout->recompute == RECOMPUTE_NONE)
        kept += size * rows * ((double)(2 * b.hidden) / sp + (double)(b.heads + b.width));
    flight = fmin((double)b.micros, flight);
    double states = state_bytes(config, layout, &b, states_on_device(config, false));
    return (double)b.layers * (weights_of(config, &b) * states + flight * kept);
}
