/* search_config.c -- searches the layouts of a config: reads it again for each layout that is
 * planned, and bounds the others by closed forms; see search.h. */
#include "parallel/plan/search.h"

#include "model/core/check.h"
#include "model/core/min_max.h"
#include "parallel/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A plan of a large model takes from some hundredths of a second to some tenths. */
enum { MOST_PLANS = 120, MOST_SECONDS = 7 };

/* ---- closed forms ---------------------------------------------------------------------------- */

/* Sizes of a block on one rank. */
typedef struct {
    int64_t rows, hidden, heads, qkv, width; /* rows of a micro-batch; columns of the products */
    int64_t layers;                          /* of the stage that has the most, at least */
    int64_t micros, dp;
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
                       .dp = dp};
}

/* Returns the seconds of the products of a block for one micro-batch: forward, twice as many
 * backward, and those that are made again. A product in several parts takes longer. */
static double block_seconds(const Config *c, const Hardware *h, const PlanLayout *l,
                            const BlockPart *b)
{
    DType dtype = config_dtype(c);
    bool gated = c->model.activation == ACTIVATION_SWIGLU;
    double again = cost_product(h, &COST_OWN, dtype, b->rows, b->qkv, b->hidden, 0) +
                   cost_product(h, &COST_OWN, dtype, b->rows, b->hidden, b->heads, 0) +
                   cost_product(h, &COST_OWN, dtype, b->rows, b->width, b->hidden, 0);
    double down =
        cost_product(h, &COST_OWN, dtype, b->rows, b->hidden, b->width / (gated ? 2 : 1), 0);
    return 3 * (again + down) + (l->recompute == RECOMPUTE_FULL ? again : 0);
}

/* The stage with the most blocks computes all their products in turn. */
double plan_least_seconds(const Config *config, const Hardware *hardware, const PlanLayout *layout,
                          int64_t ranks)
{
    BlockPart b = part_of_block(config, layout, ranks);
    return (double)(b.layers * b.micros) * block_seconds(config, hardware, layout, &b);
}

/* Returns the bytes of weights, gradients and optimizer states per element of a block. */
static double state_bytes(const Config *c, const PlanLayout *l, int64_t dp)
{
    double weight = (double)dtype_size(config_dtype(c)),
           gradient = (double)dtype_size(config_grad_dtype(c)),
           moments = c->optimizer.type == OPTIMIZER_SGD ? 0 : 2 * gradient, share = (double)dp;
    return (l->zero == 3 ? weight / share : weight) + (l->zero >= 2 ? gradient / share : gradient) +
           (l->zero >= 1 ? moments / share : moments);
}

/* Returns the bytes that one micro-batch keeps in a block for backward. */
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

/* The stage with the most blocks has their states, and keeps what one micro-batch leaves there. */
double plan_least_bytes(const Config *config, const PlanLayout *layout, int64_t ranks)
{
    BlockPart b = part_of_block(config, layout, ranks);
    return (double)b.layers * (weights_of(config, &b) * state_bytes(config, layout, b.dp) +
                               kept_bytes(config, layout, &b));
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct {
    const SearchSource *source;
    const Config *config; /* as given, settled for this hardware */
    Hardware hardware, rank;
    int64_t ranks;
    double room; /* bytes of device memory of a rank; of a node, divided by its ranks */
} Search;

/* Reads the config with these further --set; NULL, and the first error in `err`, if it has any. */
static const Config *read_config(const SearchSource *source, const Hardware *hardware,
                                 const StringList *more, char *err, size_t n)
{
    StringList sets = {0};
    ConfigReport report;
    ConfigContext context = plan_context(hardware, source->world);
    for (int i = 0; i < source->n_sets; i++)
        string_list_add(&sets, source->sets[i]);
    for (int i = 0; more != NULL && i < more->count; i++)
        string_list_add(&sets, more->item[i]);
    context.own_sets = more != NULL ? more->count : 0;
    const Config *c =
        config_load(source->path, sets.count, (const char *const *)sets.item, &context, &report);
    if (c == NULL) snprintf(err, n, "%s", report.error[0]);
    config_report_free(&report);
    string_list_free(&sets);
    return c;
}

/* Returns whether the config has a value of its own for the key: given, or the key's default. */
static bool keeps(const Config *config, const char *key)
{
    return strncmp(config_origin(config, key), "derived", strlen("derived")) != 0;
}

static void add_set(StringList *out, const char *key, const char *value)
{
    char *set = text_format("%s=%s", key, value);
    string_list_add(out, set);
    free(set);
}

void plan_layout_sets(const Config *config, const PlanLayout *layout, StringList *out)
{
    static const char *const policies[] = {"none", "selective", "full"},
                             *const dropped[] = {"parallel.data", "parallel.schedule",
                                                 "parallel.pipeline_split",
                                                 "gradient_accumulation_steps"};
    const struct {
        const char *key;
        int64_t was, value;
    } numbers[] = {
        {"parallel.tensor", config->parallel.tensor, layout->tensor},
        {"parallel.pipeline", config->parallel.pipeline, layout->pipeline},
        {"parallel.pipeline_chunks", config->parallel.pipeline_chunks, layout->chunks},
        {"train_batch_size", config->train_batch_size, config->train_batch_size},
        {"train_micro_batch_size_per_gpu", config->train_micro_batch_size_per_gpu, layout->micro},
        {"zero_optimization.stage", config->zero_optimization.stage, layout->zero}};
    char text[32];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].was == numbers[i].value && keeps(config, numbers[i].key)) continue;
        snprintf(text, sizeof text, "%lld", (long long)numbers[i].value);
        add_set(out, numbers[i].key, text);
    }
    if (config->parallel.sequence_parallel != layout->sequence_parallel)
        add_set(out, "parallel.sequence_parallel", layout->sequence_parallel ? "true" : "false");
    if (config->activation_checkpointing.policy != layout->recompute)
        add_set(out, "activation_checkpointing.policy", policies[layout->recompute]);
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (keeps(config, dropped[i]) && strcmp(config_origin(config, dropped[i]), "default") != 0)
            add_set(out, dropped[i], "null");
}

static double planned_seconds(void *context, const PlanLayout *layout)
{
    const Search *s = context;
    StringList sets = {0};
    char err[1024];
    plan_layout_sets(s->config, layout, &sets);
    const Config *read = read_config(s->source, &s->hardware, &sets, err, sizeof err);
    CHECK(read != NULL, "a legal layout is refused: %s", err);
    const Config *config = plan_settle(read, &s->hardware, err, sizeof err);
    CHECK(config != NULL, "%s", err);
    Plan plan;
    CHECK(plan_make(&plan, config, &s->hardware, err, sizeof err), "%s", err);
    double seconds = plan.fits ? plan.step.seconds : INFINITY;
    plan_free(&plan);
    config_free(config);
    string_list_free(&sets);
    return seconds;
}

/* Returns whether ZeRO stage 3 can gather two units that are used one after the other: blocks, or
 * the token table and a block. Their other tensors are small: a fiftieth at most. */
static bool gathers_pairs(const Config *c, const PlanLayout *l, const BlockPart *b)
{
    double block = weights_of(c, b),
           table = (double)c->model.vocab_size * (double)b->hidden / (double)l->tensor;
    return l->zero < 3 || 1.02 * (block + fmax(block, table)) <=
                              (double)c->zero_optimization.stage3_max_live_parameters;
}

static double bound_of(void *context, const PlanLayout *layout)
{
    const Search *s = context;
    BlockPart b = part_of_block(s->config, layout, s->ranks);
    if (!gathers_pairs(s->config, layout, &b)) return INFINITY;
    if (plan_least_bytes(s->config, layout, s->ranks) > s->room) return INFINITY;
    return plan_least_seconds(s->config, &s->rank, layout, s->ranks);
}

/* Adds to the products the pipeline's bubble, and what each rank sends at the link's bandwidth:
 * rows of tensor-parallel regions, and gradients and weights of the data-parallel ranks. A layout
 * that seems not to fit comes last. */
static double guess_of(void *context, const PlanLayout *l)
{
    const Search *s = context;
    const Config *c = s->config;
    const Hardware *h = &s->hardware;
    BlockPart b = part_of_block(c, l, s->ranks);
    double size = (double)dtype_size(config_dtype(c)), seconds = bound_of(context, l),
           weights = (double)b.layers * weights_of(c, &b), micros = (double)b.micros;
    double between = h->between.bandwidth * h->nics_per_node / h->devices_per_node;
    double sums = l->zero >= 2 && l->pipeline > 1 ? micros : l->zero == 3 ? 3 * micros : 1;
    double sent = b.dp > 1 ? 2 * sums * weights * size / fmax(between, 1) : 0;
    double rows = l->tensor > 1 ? 8 * (double)(b.layers * b.micros * b.rows * b.hidden) * size /
                                      h->inside.bandwidth
                                : 0;
    double bubble = (double)(l->pipeline - 1) / ((double)l->chunks * micros);
    double again = l->recompute == RECOMPUTE_SELECTIVE ? 1.02 : 1;
    double flight = fmin(micros, (double)l->pipeline),
           bytes =
               weights * state_bytes(c, l, b.dp) + (double)b.layers * flight * kept_bytes(c, l, &b);
    double all = (seconds * again + rows) * (1 + bubble) + (l->zero == 0 ? 1 : 0.5) * sent;
    return bytes > s->room ? all * 1e3 : all;
}

bool plan_search(const SearchSource *source, const Hardware *hardware, PlanSearch *out,
                 const Config **settled, char *err, size_t n)
{
    const Config *given = read_config(source, hardware, NULL, err, n);
    if (given == NULL) return false;
    if (given->world <= 0) {
        config_free(given);
        return error_set(err, n, "the number of ranks is not known; write --world N");
    }
    Candidate base = candidate_of_config(given, given->world);
    const Config *config = plan_settle(given, hardware, err, n);
    if (config == NULL) {
        config_free(given);
        return false;
    }
    int64_t on_node = min_i64(config->world, hardware->devices_per_node);
    Search s = {.source = source,
                .config = config,
                .hardware = *hardware,
                .rank = hardware_of_rank(hardware, config->world),
                .ranks = config->world,
                .room = hardware->cuda ? (double)hardware->device.bytes
                                       : (double)hardware->host_bytes / (double)on_node};
    s.room *= 1 - config->memory_margin;
    const SearchCosts costs = {planned_seconds, bound_of, guess_of, &s, MOST_SECONDS};
    *out = search_layouts(&base, hardware->devices_per_node, &costs, MOST_PLANS);
    *settled = config;
    return true;
}
