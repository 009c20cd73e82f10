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

/* Work is counted in graph nodes that are recorded. Reading a config takes about as long as
 * recording WORK_OF_CONFIG nodes, and laying out a stage as long as WORK_OF_STAGE nodes. */
enum { MOST_WORK = 14000000, WORK_OF_CONFIG = 1500, WORK_OF_STAGE = 1500 };

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct {
    const SearchSource *source;
    const Config *config; /* as given, settled for this hardware */
    Config bounded;       /* a copy for the closed forms, see open_search */
    Hardware hardware, rank;
    int64_t ranks;
    double room;  /* bytes of device memory per rank; on CPUs, a node's memory divided by its
                   * ranks */
    bool on_host; /* each layout has the smallest part of the optimizer states on the host with
                   * which it fits (PlanLayout.host) */
} Search;

/* Reads the config with these additional --set arguments. Returns NULL and writes the first error
 * to `err` if it has any. */
static const Config *read_config(const SearchSource *source, int64_t world,
                                 const Hardware *hardware, const StringList *more, char *err,
                                 size_t n)
{
    StringList sets = {0};
    ConfigReport report;
    ConfigContext context = plan_context(hardware, world);
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

/* Returns whether the key's value in the config was given or is the default; false if it was
 * derived from other keys. */
static bool keeps(const Config *config, const char *key)
{
    return strncmp(config_origin(config, key), "derived", strlen("derived")) != 0;
}

static bool origin_is_given(const Config *config, const char *key)
{
    return keeps(config, key) && strcmp(config_origin(config, key), "default") != 0;
}

static void add_set(StringList *out, const char *key, const char *value)
{
    char *set = text_format("%s=%s", key, value);
    string_list_add(out, set);
    free(set);
}

const char *plan_policy_word(const Config *config, const PlanLayout *layout)
{
    Config with = *config;
    with.activation_checkpointing.policy = layout->recompute;
    return config_word(&with, "activation_checkpointing.policy");
}

/* If the search has chosen where the layout has its optimizer states, adds the settings that say
 * so. */
static void add_host(const Config *config, const PlanLayout *layout, StringList *out)
{
    static const char device[] = "zero_optimization.offload_optimizer.device",
                      ratio[] = "zero_optimization.offload_optimizer.ratio";
    bool on = config->zero_optimization.offload_optimizer.device == OFFLOAD_CPU;
    char text[32];
    if (layout->host == HOST_GIVEN || (!on && layout->host == 0)) return;
    if (!on) add_set(out, device, "cpu");
    snprintf(text, sizeof text, "%g", layout->host / 100.0);
    if (config->zero_optimization.offload_optimizer.ratio != layout->host / 100.0)
        add_set(out, ratio, text);
}

void plan_layout_sets(const Config *config, const PlanLayout *layout, StringList *out)
{
    static const char *const dropped[] = {"parallel.data", "parallel.schedule",
                                          "parallel.pipeline_split", "gradient_accumulation_steps"};
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
    add_host(config, layout, out);
    if (config->parallel.sequence_parallel != layout->sequence_parallel)
        add_set(out, "parallel.sequence_parallel", layout->sequence_parallel ? "true" : "false");
    if (config->activation_checkpointing.policy != layout->recompute)
        add_set(out, "activation_checkpointing.policy", plan_policy_word(config, layout));
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (origin_is_given(config, dropped[i])) add_set(out, dropped[i], "null");
}

/* Returns the settled config of a legal layout. */
static const Config *config_of(const Search *s, const PlanLayout *layout)
{
    StringList sets = {0};
    char err[1024];
    plan_layout_sets(s->config, layout, &sets);
    const Config *read = read_config(s->source, s->ranks, &s->hardware, &sets, err, sizeof err);
    CHECK(read != NULL, "a legal layout is refused: %s", err);
    /* The vocabulary size was found for the config as given, and is the same for all layouts. */
    const ConfigFacts facts = {.vocab_size = s->config->model.vocab_size,
                               .known = &s->hardware.device};
    const Config *config = config_settle(read, &facts, err, sizeof err);
    CHECK(config != NULL, "%s", err);
    string_list_free(&sets);
    return config;
}

/* Returns the config with the optimizer states where the layout has them. If it is the search that
 * decides where they are, sets layout->host to the fewest hundredths on the host with which the
 * layout fits. The result shares the strings of `config`. */
static Config with_states(const Search *s, const Config *config, PlanLayout *layout, int64_t *work)
{
    int64_t plans = 0;
    if (!s->on_host) return *config;
    layout->host = plan_least_host(config, &s->hardware, &plans);
    *work += plans * WORK_OF_STAGE * layout->pipeline;
    return plan_with_host(config, layout->host);
}

static double planned_seconds(void *context, PlanLayout *layout, int64_t *work)
{
    const Search *s = context;
    const Config *config = config_of(s, layout), with = with_states(s, config, layout, work);
    double seconds = plan_seconds_if_fits(&with, &s->hardware, work);
    *work += WORK_OF_CONFIG + WORK_OF_STAGE * layout->pipeline;
    config_free(config);
    return seconds;
}

/* Finds the nearest alternative, if nothing was found. If the search ended before all layouts were
 * planned, the smallest layout may fit; then that layout is the result. */
static void find_nearest(Search *s, const Candidate *base, PlanSearch *out)
{
    int64_t most_tensor = s->hardware.devices_per_node, work = 0;
    if (out->space == 0) {
        out->nearest = search_nearest(base, most_tensor);
        return;
    }
    const Config all = plan_with_host(&s->bounded, 100);
    PlanLayout smallest = search_smallest(s->on_host ? &all : &s->bounded, base, most_tensor);
    const Config *config = config_of(s, &smallest), with = with_states(s, config, &smallest, &work);
    const Plan plan = plan_memory(&with, &s->hardware);
    config_free(config);
    if (plan.fits) {
        out->best[out->found] = smallest;
        out->seconds[out->found++] = planned_seconds(s, &smallest, &work);
        out->planned++;
        out->left--;
        return;
    }
    bool host = plan.device.needed <= plan.device.room;
    const PlanRoom *room = host ? &plan.host : &plan.device;
    out->nearest = (SearchNearest){.layout = smallest,
                                   .needed = room->needed,
                                   .room = room->room,
                                   .of_node = host || !s->hardware.cuda};
}

static double bound_of(void *context, const PlanLayout *layout)
{
    const Search *s = context;
    if (!plan_gathers_pairs(&s->bounded, layout, s->ranks)) return INFINITY;
    if (plan_least_bytes(&s->bounded, layout, s->ranks) > s->room) return INFINITY;
    return plan_least_seconds(&s->bounded, &s->rank, layout, s->ranks);
}

/* Returns an estimate of a step's seconds. If the estimated bytes of a layout do not fit, its
 * seconds are multiplied by 1000, so that it comes last. */
static double guess_of(void *context, const PlanLayout *layout)
{
    const Search *s = context;
    double bytes = plan_estimate_bytes(&s->bounded, layout, s->ranks);
    if (!s->on_host || bytes <= s->room) {
        double seconds = plan_estimate_seconds(&s->bounded, &s->rank, layout, s->ranks);
        return bytes > s->room ? 1e3 * seconds : seconds;
    }
    Config with = plan_with_host(&s->bounded, 100);
    double least = plan_estimate_bytes(&with, layout, s->ranks);
    with.zero_optimization.offload_optimizer.ratio = fmin(1, (bytes - s->room) / (bytes - least));
    double seconds = plan_estimate_seconds(&with, &s->rank, layout, s->ranks);
    return least > s->room ? 1e3 * seconds : seconds;
}

/* Returns whether one of the settings "key=value" in `sets` is for the key of `set`. */
static bool is_set(const StringList *sets, const char *set)
{
    size_t key = strcspn(set, "=");
    for (int i = 0; i < sets->count; i++)
        if (strcspn(sets->item[i], "=") == key && strncmp(sets->item[i], set, key) == 0)
            return true;
    return false;
}

/* Adds to `out` the settings of `sets` whose keys `more` does not have, then the settings of
 * `more`. */
static void add_replaced(int n, const char *const *sets, const StringList *more, StringList *out)
{
    for (int i = 0; i < n; i++)
        if (!is_set(more, sets[i])) string_list_add(out, sets[i]);
    for (int i = 0; i < more->count; i++)
        string_list_add(out, more->item[i]);
}

void plan_search_sets(const PlanSearch *search, const Config *settled, const PlanLayout *layout,
                      StringList *out)
{
    StringList own = {0};
    plan_layout_sets(settled, layout, &own);
    add_replaced(search->sets.count, (const char *const *)search->sets.item, &own, out);
    string_list_free(&own);
}

/* The settings of the smallest grid. With it every config is valid on some number of ranks. */
static const char *const smallest_grid[] = {"parallel.tensor=1",
                                            "parallel.pipeline=1",
                                            "parallel.pipeline_chunks=1",
                                            "parallel.data=null",
                                            "parallel.schedule=null",
                                            "parallel.pipeline_split=null",
                                            "parallel.sequence_parallel=false",
                                            "train_micro_batch_size_per_gpu=1",
                                            "gradient_accumulation_steps=null"};

/* Reads the config as given. If its own grid does not fit the number of ranks, reads it for any
 * number of ranks. If its grid fits no number of ranks, reads it with the smallest grid. The search
 * replaces the grid anyway. But in these two cases the config must give train_batch_size, which
 * would otherwise be derived from the wrong grid. Writes the --set arguments to *sets. */
static const Config *read_given(const SearchSource *source, const Hardware *hardware,
                                StringList *sets, char *err, size_t n)
{
    char other[1024];
    StringList none = {0}, smallest = {0};
    const Config *given = read_config(source, source->world, hardware, NULL, err, n);
    if (given != NULL && given->world <= 0) {
        error_set(err, n, "the number of ranks is not known; write --world N");
        config_free(given);
        return NULL;
    }
    bool again = given == NULL && source->world > 0;
    if (again) given = read_config(source, 0, hardware, NULL, other, sizeof other);
    if (given == NULL && again) {
        for (size_t i = 0; i < sizeof smallest_grid / sizeof *smallest_grid; i++)
            string_list_add(&smallest, smallest_grid[i]);
        given = read_config(source, 0, hardware, &smallest, other, sizeof other);
    }
    if (given != NULL && again && !origin_is_given(given, "train_batch_size")) {
        config_free(given);
        given = NULL;
    }
    if (given != NULL)
        add_replaced(source->n_sets, source->sets, smallest.count > 0 ? &smallest : &none, sets);
    string_list_free(&smallest);
    return given;
}

/* What decides where the optimizer states are. */
typedef enum {
    OFFLOAD_GIVEN,     /* the config */
    OFFLOAD_IF_NEEDED, /* the search, if no layout fits with the config's own setting */
    OFFLOAD_CHOSEN     /* the search, because the config offloads states but gives no ratio */
} OffloadChoice;

static OffloadChoice choice_of(const Config *config, const Hardware *hardware)
{
    static const char device[] = "zero_optimization.offload_optimizer.device",
                      ratio[] = "zero_optimization.offload_optimizer.ratio";
    if (!hardware->cuda || origin_is_given(config, ratio)) return OFFLOAD_GIVEN;
    if (config->zero_optimization.offload_optimizer.device == OFFLOAD_CPU) return OFFLOAD_CHOSEN;
    return origin_is_given(config, device) ? OFFLOAD_GIVEN : OFFLOAD_IF_NEEDED;
}

/* Prepares the search for layouts of a config that plan_settle has completed. The formulas of
 * search_closed.c, which compute lower bounds and estimates for layouts, read a copy of the config,
 * `bounded`. It differs from the config in two ways:
 *
 * If the size of shard groups was given under one of DeepSpeed's names, the copy has a single group
 * of all data-parallel ranks. The reason is that the config's reader drops the given size for
 * layouts that it does not fit. With the largest group each rank has the smallest part, so the
 * lower bounds hold for all layouts.
 *
 * On CPUs the copy offloads no optimizer states, because they are in the same memory anyway. */
static Search open_search(const SearchSource *source, const Config *config, const Candidate *base,
                          const Hardware *hardware, int64_t ranks)
{
    int64_t on_node = min_i64(ranks, hardware->devices_per_node);
    Search s = {.source = source,
                .config = config,
                .bounded = *config,
                .hardware = *hardware,
                .rank = hardware_of_rank(hardware, ranks),
                .ranks = ranks,
                .room = hardware->cuda ? (double)hardware->device.bytes
                                       : (double)hardware->host_bytes / (double)on_node};
    s.bounded.parallel.shard = base->value[CANDIDATE_SHARD];
    if (!hardware->cuda) s.bounded.zero_optimization.offload_optimizer.device = OFFLOAD_NONE;
    s.room *= 1 - config->memory_margin;
    return s;
}

/* Searches with the optimizer states where the config has them. If `on_host`, each layout has as
 * few of them on the host as it needs to fit, and the config of the closed forms (`bounded`) has
 * none there. */
static PlanSearch run_search(Search *s, const Candidate *base, bool on_host, int64_t most)
{
    const SearchCosts costs = {planned_seconds, bound_of, guess_of, s};
    s->on_host = on_host;
    if (on_host) s->bounded = plan_with_host(&s->bounded, 0);
    PlanSearch found = search_layouts(base, s->hardware.devices_per_node, &costs, most);
    found.on_host = on_host;
    if (found.found == 0) find_nearest(s, base, &found);
    return found;
}

void plan_search_free(PlanSearch *search)
{
    string_list_free(&search->sets);
}

bool plan_search(const SearchSource *source, const Hardware *hardware, PlanSearch *out,
                 const Config **settled, char *err, size_t n)
{
    StringList sets = {0};
    const Config *given = read_given(source, hardware, &sets, err, n);
    if (given == NULL) return false;
    int64_t ranks = source->world > 0 ? source->world : given->world;
    Candidate base = candidate_of_config(given, ranks);
    const Config *config = plan_settle(given, hardware, err, n);
    if (config == NULL) {
        config_free(given);
        string_list_free(&sets);
        return false;
    }
    const SearchSource read = {source->path, sets.count, (const char *const *)sets.item, ranks, 0};
    Search s = open_search(&read, config, &base, hardware, ranks);
    int64_t most = source->work > 0 ? source->work : MOST_WORK;
    const OffloadChoice choice = choice_of(config, hardware);
    *out = run_search(&s, &base, choice == OFFLOAD_CHOSEN, most);
    if (out->found == 0 && out->space > 0 && choice == OFFLOAD_IF_NEEDED) {
        bool untried = out->left > 0;
        *out = run_search(&s, &base, true, most);
        out->misses = true;
        out->untried = untried;
    }
    out->sets = sets;
    *settled = config;
    return true;
}
