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

/* Work is counted in nodes of graphs that are recorded. What is planned without them, a config that
 * is read and stages that are laid out, takes about as long as so many nodes. */
enum { MOST_WORK = 14000000, WORK_OF_CONFIG = 1500, WORK_OF_STAGE = 1500 };

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

static double planned_seconds(void *context, const PlanLayout *layout, int64_t *work)
{
    const Search *s = context;
    StringList sets = {0};
    char err[1024];
    plan_layout_sets(s->config, layout, &sets);
    const Config *read = read_config(s->source, &s->hardware, &sets, err, sizeof err);
    CHECK(read != NULL, "a legal layout is refused: %s", err);
    const Config *config = plan_settle(read, &s->hardware, err, sizeof err);
    CHECK(config != NULL, "%s", err);
    double seconds = plan_seconds_if_fits(config, &s->hardware, work);
    *work += WORK_OF_CONFIG + WORK_OF_STAGE * layout->pipeline;
    config_free(config);
    string_list_free(&sets);
    return seconds;
}

static double bound_of(void *context, const PlanLayout *layout)
{
    const Search *s = context;
    if (!plan_gathers_pairs(s->config, layout, s->ranks)) return INFINITY;
    if (plan_least_bytes(s->config, layout, s->ranks) > s->room) return INFINITY;
    return plan_least_seconds(s->config, &s->rank, layout, s->ranks);
}

/* A layout that seems not to fit comes last. */
static double guess_of(void *context, const PlanLayout *layout)
{
    const Search *s = context;
    double seconds = plan_estimate_seconds(s->config, &s->rank, layout, s->ranks);
    return plan_estimate_bytes(s->config, layout, s->ranks) > s->room ? 1e3 * seconds : seconds;
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
    const SearchCosts costs = {planned_seconds, bound_of, guess_of, &s};
    *out = search_layouts(&base, hardware->devices_per_node, &costs,
                          source->work > 0 ? source->work : MOST_WORK);
    *settled = config;
    return true;
}
