/* cut.c -- checks the sizes of a grid (parallel.tensor and parallel.pipeline): can the model be
 * divided that way, and is the number of ranks a multiple of tensor x pipeline? Errors suggest the
 * nearest sizes that pass both checks. */
#include "configs/reader/load.h"

#include <stdio.h>
#include <string.h>

static const char tensor_key[] = "parallel.tensor", stages_key[] = "parallel.pipeline",
                  data_key[] = "parallel.data", chunks_key[] = "parallel.pipeline_chunks",
                  layers_key[] = "model.num_layers", schedule_key[] = "parallel.schedule";

/* Reports an error at the position of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)
#define UNUSABLE(load, ...)   load_any_wrong(load, (const char *const[]){__VA_ARGS__, NULL})

static int64_t less(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- checking sizes -------------------------------------------------------------------------- */

/* The first size of the model that a number of tensor-parallel ranks cannot share evenly. */
typedef enum { ALL_CUT, HEADS_UNCUT, GROUPS_UNCUT, WIDTH_UNCUT } Uncut;

/* Sizes that were already refused are not checked. The numbers are compared first, because searches
 * call this for each size that a grid may have. */
static Uncut uncut(const Load *load, int64_t tp)
{
    static const char heads[] = "model.num_attention_heads", groups[] = "model.num_key_value_heads",
                      width[] = "model.intermediate_size";
    const Config *c = load->config;
    int64_t kv = c->model.num_key_value_heads;
    if (c->model.num_attention_heads % tp != 0 && !load_wrong(load, heads)) return HEADS_UNCUT;
    if (kv % tp != 0 && tp % kv != 0 && !UNUSABLE(load, heads, groups)) return GROUPS_UNCUT;
    if (c->model.intermediate_size % tp != 0 && !UNUSABLE(load, "model.hidden_size", width))
        return WIDTH_UNCUT;
    return ALL_CUT;
}

/* Writes the size with its value, as "num_attention_heads 12". */
static void print_uncut(const Load *load, Uncut size, char *out, size_t n)
{
    const Config *c = load->config;
    if (size == HEADS_UNCUT)
        snprintf(out, n, "num_attention_heads %lld", (long long)c->model.num_attention_heads);
    else if (size == GROUPS_UNCUT)
        snprintf(out, n, "num_key_value_heads %lld", (long long)c->model.num_key_value_heads);
    else
        snprintf(out, n, "intermediate_size %lld", (long long)c->model.intermediate_size);
}

static bool shares_model(const Load *load, int64_t tp)
{
    return uncut(load, tp) == ALL_CUT;
}

bool cut_has_blocks(const Load *load, int64_t stages, int64_t chunks)
{
    return stages * chunks <= load->config->model.num_layers || load_wrong(load, layers_key);
}

/* Returns whether parallel.tensor is impossible for this model on any number of ranks. */
static bool tensor_impossible(const Load *load)
{
    return !load_wrong(load, tensor_key) && !shares_model(load, load->config->parallel.tensor);
}

/* Returns whether parallel.pipeline is impossible for this model on any number of ranks. (Several
 * chunks on one stage are a different error; see refuse_chunks.) */
static bool stages_impossible(const Load *load)
{
    const Config *c = load->config;
    int64_t stages = c->parallel.pipeline, chunks = c->parallel.pipeline_chunks;
    return !UNUSABLE(load, stages_key, chunks_key) && (stages > 1 || chunks == 1) &&
           !cut_has_blocks(load, stages, chunks);
}

/* Returns whether the number of ranks is known and will not change. */
static bool knows_world(const Load *load)
{
    bool looked_at = load->context.stored && load->context.opened == 0;
    return !looked_at && load->context.world > 0;
}

/* Returns whether the number of ranks is a multiple of `cut` = tensor x pipeline, or is not known.
 * If `exactly` and parallel.data was given, it must equal parallel.data x cut. */
static bool makes_world(const Load *load, int64_t cut, bool exactly)
{
    int64_t world = load->context.world;
    /* If the number of ranks is not known, any size may fit. */
    if (!knows_world(load)) return true;
    if (exactly && load_given(load, data_key)) return load->config->parallel.data * cut == world;
    return world % cut == 0;
}

static bool tensor_fits(const Load *load, int64_t tp)
{
    /* If the number of stages was refused, use 1, so that it does not restrict the tensor size. */
    int64_t stages = load_wrong(load, stages_key) ? 1 : load->config->parallel.pipeline;
    return shares_model(load, tp) && makes_world(load, tp * stages, true);
}

static bool stages_fit(const Load *load, int64_t stages)
{
    const Config *c = load->config;
    int64_t chunks = load_wrong(load, chunks_key) ? 1 : c->parallel.pipeline_chunks,
            tp = load_wrong(load, tensor_key) ? 1 : c->parallel.tensor;
    return cut_has_blocks(load, stages, chunks) && (chunks == 1 || stages > 1) &&
           makes_world(load, tp * stages, true);
}

/* ---- finding values to suggest --------------------------------------------------------------- */

/* Writes the values nearest to `x`, below and above it, for which `fits` is true, as "2 or 4".
 * Returns false if there is none. `x` itself does not fit. */
static bool nearest(const Load *load, bool (*fits)(const Load *load, int64_t x), int64_t x,
                    char *out, size_t n)
{
    enum { FAR = CONFIG_MAX_RANKS }; /* no axis of a grid is longer */
    /* Above, search only up to twice the value: 64 would be no useful suggestion instead of 7. */
    int64_t low = x <= FAR ? x - 1 : FAR, high = x + 1;
    while (low > 0 && !fits(load, low))
        low--;
    while (high < 2 * x && high <= FAR && !fits(load, high))
        high++;
    bool above = high < 2 * x && high <= FAR;
    if (low > 0 && above)
        snprintf(out, n, "%lld or %lld", (long long)low, (long long)high);
    else if (low > 0 || above)
        snprintf(out, n, "%lld", (long long)(low > 0 ? low : high));
    return low > 0 || above;
}

static bool gives_schedule(const Load *load)
{
    return load_given(load, schedule_key) && !load_wrong(load, schedule_key);
}

/* Returns whether the given schedule needs exactly one layer range per stage. */
static bool asks_for_one_run(const Load *load)
{
    return gives_schedule(load) && load->config->parallel.schedule != SCHEDULE_INTERLEAVED;
}

/* Returns what else to write if pipeline_chunks is set to 1: a schedule for one layer range per
 * stage, if another schedule was given. */
static const char *with_one_run(const Load *load)
{
    return gives_schedule(load) && !asks_for_one_run(load) ? " and schedule \"1f1b\"" : "";
}

/* Finds the largest sizes, up to those given, that fit the model and the number of ranks. One rank
 * without chunks always fits. */
static void largest_sizes(const Load *load, int64_t *tp, int64_t *stages, int64_t *chunks)
{
    const Config *c = load->config;
    int64_t most_tp = less(c->parallel.tensor, CONFIG_MAX_RANKS),
            most_stages = less(c->parallel.pipeline, CONFIG_MAX_RANKS);
    *chunks = asks_for_one_run(load) ? 1 : c->parallel.pipeline_chunks;
    /* The tensor size is reduced first, then the number of stages. pipeline_chunks is set to 1 only
     * if no sizes fit it. Numbers of stages that fit no tensor size are passed over at once: a grid
     * may have thousands of each. */
    for (;; *chunks = 1) {
        for (*stages = most_stages; *stages > (*chunks > 1); (*stages)--) {
            if (!cut_has_blocks(load, *stages, *chunks) || !makes_world(load, *stages, false))
                continue;
            for (*tp = most_tp; *tp > 0; (*tp)--)
                if (makes_world(load, *tp * *stages, false) && shares_model(load, *tp)) return;
        }
        if (*chunks == 1) break;
    }
    *tp = *stages = 1;
}

/* Writes all sizes that have to change, for the case that changing one key alone cannot help. */
static void all_sizes(Load *load, char *out, size_t n)
{
    const Config *c = load->config;
    int64_t tp, stages, chunks;
    largest_sizes(load, &tp, &stages, &chunks);
    const struct {
        const char *name;
        int64_t was, is;
    } sizes[] = {{"tensor", c->parallel.tensor, tp},
                 {"pipeline", c->parallel.pipeline, stages},
                 {"pipeline_chunks", c->parallel.pipeline_chunks, chunks}};
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < 3; i++)
        if (sizes[i].was != sizes[i].is && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s %lld", at ? " and " : "", sizes[i].name,
                                   (long long)sizes[i].is);
    bool unites = chunks != c->parallel.pipeline_chunks;
    if (at < n && unites) at += (size_t)snprintf(out + at, n - at, "%s", with_one_run(load));
    load->other_chunks |= unites;
    if (at < n && !makes_world(load, tp * stages, true))
        snprintf(out + at, n - at, " without parallel.data");
}

bool check_tensor(Load *load)
{
    int64_t tp = load->config->parallel.tensor;
    char what[64], near[160];
    if (load_wrong(load, tensor_key) || shares_model(load, tp)) return true;
    Uncut size = uncut(load, tp);
    print_uncut(load, size, what, sizeof what);
    /* If the number of stages is refused as well, changing only the tensor size would just lead to
     * the next error. */
    if (stages_impossible(load) || !nearest(load, tensor_fits, tp, near, sizeof near))
        all_sizes(load, near, sizeof near);
    WRONG(load, tensor_key, "%lld %s %s; write %s", (long long)tp,
          size == GROUPS_UNCUT ? "neither divides nor is a multiple of" : "does not divide", what,
          near);
    return false;
}

/* Reports that pipeline_chunks is above 1 although there is only one stage. */
static void refuse_chunks(Load *load)
{
    const Config *c = load->config;
    char other[64] = "";
    int64_t stages = 2, most = load_most_ranks(load->context.world);
    while (stages <= most && !stages_fit(load, stages))
        stages++;
    /* Suggest more stages only if pipeline_chunks is the only mistake: sizes that are refused
     * elsewhere get their own suggestions. */
    bool alone = !tensor_impossible(load) && makes_world(load, c->parallel.tensor, true) &&
                 !asks_for_one_run(load);
    if (stages <= most && alone)
        snprintf(other, sizeof other, ", or pipeline %lld%s", (long long)stages,
                 knows_world(load) ? "" : " or more");
    WRONG(load, chunks_key,
          "%lld runs of layers a stage are for several stages, and pipeline is 1; write 1%s%s",
          (long long)c->parallel.pipeline_chunks, with_one_run(load), other);
    load->origin[option_find(chunks_key)].wrong = true;
}

/* Checks that every layer range has at least one block, in addition to the embedding or the head
 * that it may contain. */
void check_stages(Load *load)
{
    const Config *c = load->config;
    int64_t stages = c->parallel.pipeline, chunks = c->parallel.pipeline_chunks,
            blocks = c->model.num_layers, fewer = blocks / stages;
    char near[160] = "", other[64] = "";
    if (UNUSABLE(load, stages_key, chunks_key)) return;
    /* Here the mistake is pipeline_chunks, not the number of blocks. */
    if (chunks > 1 && stages == 1) {
        refuse_chunks(load);
        return;
    }
    if (!stages_impossible(load)) return;
    /* There are two remedies: fewer stages, or fewer chunks per stage. A remedy that would cause
     * another error, because it does not fit the tensor size or the number of ranks, is not
     * suggested. If neither works, new values for all sizes are suggested together. */
    bool sole = chunks > 1 && asks_for_one_run(load),
         one = !tensor_impossible(load) && !sole &&
               nearest(load, stages_fit, stages, near, sizeof near);
    /* The schedule that was given allows only one chunk per stage. */
    if (sole && fewer > 1) fewer = 1;
    if (!tensor_impossible(load) && chunks > 1 && fewer > 0 &&
        makes_world(load, stages * c->parallel.tensor, true))
        snprintf(other, sizeof other, "pipeline_chunks %lld%s", (long long)fewer,
                 fewer == 1 ? with_one_run(load) : "");
    if (!one && *other == '\0') all_sizes(load, near, sizeof near);
    load->other_chunks |= *other != '\0';
    WRONG(load, stages_key,
          "%lld stages x %lld run%s of layers need a block each, and num_layers is %lld; write "
          "%s%s%s%s",
          (long long)stages, (long long)chunks, chunks == 1 ? "" : "s", (long long)blocks,
          one ? "pipeline " : "", near, *near && *other ? ", or " : "", other);
}

/* Writes what to change if tensor x pipeline does not divide the number of ranks: another number of
 * ranks, or another value of the key. */
static void say_cut_remedy(Load *load, bool tensor, char *out, size_t n)
{
    const Config *c = load->config;
    int64_t tp = c->parallel.tensor, stages = c->parallel.pipeline, cut = tp * stages,
            most = load_most_ranks(load->context.world), world = less(load->context.world, most),
            unit = cut;
    char ranks[64] = "", near[160];
    bool data = load_given(load, data_key); /* if it is given, only one number of ranks is right */
    if (data) unit = grid_ranks(config_grid(c, 0));
    int64_t low = data ? unit : world / unit * unit, high = data ? most + 1 : low + unit;
    if (low > most || load->context.launched) low = 0;
    if (load->context.launched) high = most + 1;
    if (low > 0 && high <= most)
        snprintf(ranks, sizeof ranks, "--ranks %lld or %lld", (long long)low, (long long)high);
    else if (low > 0 || high <= most)
        snprintf(ranks, sizeof ranks, "--ranks %lld", (long long)(low > 0 ? low : high));
    /* the split has exactly this many layer ranges */
    bool split = !tensor && c->parallel.pipeline_split.count > 0;
    bool here = !split && nearest(load, tensor ? tensor_fits : stages_fit, tensor ? tp : stages,
                                  near, sizeof near);
    if (!here && *ranks == '\0') all_sizes(load, near, sizeof near);
    snprintf(out, n, "%s%s%s%s", ranks, *ranks && here ? ", or " : "",
             here || *ranks == '\0' ? near : "", here ? " here" : "");
}

bool check_cut(Load *load)
{
    const Config *c = load->config;
    int64_t tp = c->parallel.tensor, stages = c->parallel.pipeline, world = load->context.world;
    bool impossible = tensor_impossible(load) || stages_impossible(load);
    char product[64], remedy[256];
    /* check_tensor and check_stages report sizes that the model cannot have on any number of ranks.
     * Relating such a size to the number of ranks would not help. */
    if (impossible && knows_world(load) && !load->context.alone) return false;
    if (makes_world(load, tp * stages, false)) return true;
    const char *key = tp > 1 ? tensor_key : stages_key;
    snprintf(product, sizeof product, "%lld", (long long)(tp * stages));
    if (tp > 1 && stages > 1)
        snprintf(product, sizeof product, "%lld x pipeline %lld = %lld", (long long)tp,
                 (long long)stages, (long long)(tp * stages));
    say_cut_remedy(load, tp > 1, remedy, sizeof remedy);
    if (load->context.alone)
        WRONG(load, key, "%s, but there is 1 rank here; write 1%s", product,
              tp > 1 && stages > 1 ? " for both" : "");
    else
        WRONG(load, key, "%s, but there %s %lld rank%s; write %s", product,
              world == 1 ? "is" : "are", (long long)world, world == 1 ? "" : "s", remedy);
    if (!load->context.alone && tp * stages <= CONFIG_MAX_RANKS)
        load_remedy(load, "--ranks %lld", (long long)(tp * stages));
    load->origin[option_find(key)].wrong = true; /* one mistake gives one error */
    return false;
}
