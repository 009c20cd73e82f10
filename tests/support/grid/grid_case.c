/* grid_case.c -- draws combinations of a grid and a model, makes them valid, and writes their
 * configs. */
#include "tests/support/grid/grid_case.h"

#include "data/sampler.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* AdamW multiplies an error of the gradient by up to lr / eps, and the next gradients are computed
 * from the resulting weights. If the ratio is 1/10, three steps are as exact as the first one. With
 * eps 1e-8 the errors are so large that weights are not compared (grid_case_noisy). */
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
static const char *const optimizers[][2] = {
    {"AdamW, eps 1e-2", "{\"type\":\"AdamW\",\"params\":{\"lr\":" TEXT(
                            GRID_RATE) ",\"eps\":1e-2,\"weight_decay\":0.1}}"},
    {"SGD with momentum",
     "{\"type\":\"SGD\",\"params\":{\"lr\":0.05,\"momentum\":0.9,\"weight_decay\":0.01}}"},
    {"AdamW, eps 1e-8", "{\"type\":\"AdamW\",\"params\":{\"lr\":" TEXT(
                            GRID_RATE) ",\"eps\":1e-8,\"weight_decay\":0.1}}"}};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* DeepSpeed's default thresholds would keep every unit of these small models whole, so most rows
 * set other thresholds. */
static const char *const keys[][2] = {
    {"units one by one",
     ",\"reduce_bucket_size\":1,\"allgather_bucket_size\":1,\"overlap_comm\":false,"
     "\"stage3_param_persistence_threshold\":0,\"stage3_max_reuse_distance\":0"},
    {"small buckets, overlap",
     ",\"reduce_bucket_size\":700,\"allgather_bucket_size\":900,\"overlap_comm\":true,"
     "\"stage3_param_persistence_threshold\":200,\"stage3_prefetch_bucket_size\":1500"},
    {"all-reduce, no prefetch",
     ",\"reduce_scatter\":false,\"overlap_comm\":true,\"stage3_prefetch_bucket_size\":0,"
     "\"stage3_param_persistence_threshold\":0,\"stage3_max_reuse_distance\":3000"},
    {"DeepSpeed's", ""},
    /* Random cases do not use the rows below. They show the effect of overlap alone, with
     * small buckets and with buckets of DeepSpeed's sizes. */
    {"small buckets, no overlap",
     ",\"reduce_bucket_size\":700,\"allgather_bucket_size\":900,\"overlap_comm\":false,"
     "\"stage3_param_persistence_threshold\":200,\"stage3_prefetch_bucket_size\":1500"},
    {"DeepSpeed's, all sharded, overlap",
     ",\"overlap_comm\":true,\"stage3_param_persistence_threshold\":0"},
    {"DeepSpeed's, all sharded, no overlap",
     ",\"overlap_comm\":false,\"stage3_param_persistence_threshold\":0"}};
enum { KEYS = 4 }; /* random cases use so many rows, from the first */

static const struct {
    const char *name, *json;
    DType dtype;
} dtypes[] = {
    {"f64", "\"fp64\":{\"enabled\":true}", F64},
    {"f32", "\"bf16\":{\"enabled\":false}", F32},
    {"bf16", "\"bf16\":{\"enabled\":true}", BF16},
    {"f16", "\"fp16\":{\"enabled\":true,\"loss_scale\":1024}", F16},
    {"bf16 without masters", "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true}",
     BF16},
    {"bf16 without masters, with bf16 moments",
     "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true,"
     "\"bf16_optimizer_states\":true}",
     BF16},
    {"bf16 with bf16 moments", "\"bf16\":{\"enabled\":true,\"bf16_optimizer_states\":true}", BF16}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* Returns the recomputation policy. Fused GELU in 16-bit dtypes cannot be recomputed from rounded
 * values, so `selective` is replaced by `full` there. */
static const char *recompute(const GridCase *c)
{
    static const char *const name[] = {"none", "selective", "full"};
    bool fused = strstr(grid_model[c->of[GRID_MODEL]].json, "fused_gelu") != NULL;
    bool narrow = dtype_size(dtypes[c->of[GRID_DTYPE]].dtype) == 2;
    return name[fused && narrow && c->of[GRID_RECOMPUTE] == 1 ? 2 : c->of[GRID_RECOMPUTE]];
}

static const struct {
    const char *name, *kind;
    int chunks;
} schedules[] = {{"1f1b", "1f1b", 1},
                 {"gpipe", "gpipe", 1},
                 {"interleaved in 2", "interleaved", 2},
                 {"interleaved in 3", "interleaved", 3}};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static const char *const splits[] = {"best", "parameters", "uniform", "by hand"};
enum { SPLITS = sizeof splits / sizeof *splits, BY_HAND = 3 };

/* The optimizer's states on the host. */
static const char *const offloads[][2] = {
    {"", ""},
    {", states on the host", ",\"offload_optimizer\":{\"device\":\"cpu\"}"},
    {", half the states on the host", ",\"offload_optimizer\":{\"device\":\"cpu\",\"ratio\":0.5}"}};
enum { OFFLOADS = sizeof offloads / sizeof *offloads };

/* the most blocks of a model, unless its stages need more */
enum { BLOCKS = 5 };

static const int values[GRID_CHOICES] = {[GRID_DATA] = 5,        [GRID_TENSOR] = 4,
                                         [GRID_PIPELINE] = 4,    [GRID_SCHEDULE] = SCHEDULES,
                                         [GRID_SPLIT] = SPLITS,  [GRID_SEQUENCE] = 2,
                                         [GRID_STAGE] = 4,       [GRID_MICROS] = 4,
                                         [GRID_BLOCKS] = BLOCKS, [GRID_MODEL] = GRID_MODELS,
                                         [GRID_DTYPE] = DTYPES,  [GRID_RECOMPUTE] = 3,
                                         [GRID_CLIP] = 2,        [GRID_OPTIMIZER] = OPTIMIZERS,
                                         [GRID_MASKED] = 2,      [GRID_KEYS] = KEYS,
                                         [GRID_SHARD] = 3,       [GRID_OFFLOAD] = OFFLOADS};

int grid_choice_values(GridChoice choice)
{
    return values[choice];
}

int64_t grid_cases(void)
{
    int64_t n = 1;
    for (int i = 0; i < GRID_CHOICES; i++)
        n *= values[i];
    return n;
}

GridCase grid_case_drawn(uint64_t seed, int64_t i)
{
    int64_t index = sampler_permute(seed, 0, grid_cases(), i);
    GridCase c;
    for (int k = 0; k < GRID_CHOICES; k++, index /= values[k - 1])
        c.of[k] = (int)(index % values[k]);
    return grid_case_legal(c);
}

/* ---- valid cases ----------------------------------------------------------------------------- */

static int most_ranks(void)
{
    const char *most = getenv("GRID_MOST_RANKS");
    return most ? atoi(most) : 16;
}

/* Returns the number of layer ranges: one for each chunk of each stage. */
static int runs_of(const GridCase *c)
{
    return (c->of[GRID_PIPELINE] + 1) * schedules[c->of[GRID_SCHEDULE]].chunks;
}

static void fit_heads(GridCase *c)
{
    while (!(grid_model[c->of[GRID_MODEL]].tensor >> c->of[GRID_TENSOR] & 1))
        c->of[GRID_TENSOR]--;
}

/* Returns the number of rows (sequences x length) of a rank's micro-batch. */
static int64_t micro_rows(const GridCase *c)
{
    int64_t mine = grid_case_batch(c) / (c->of[GRID_DATA] + 1);
    return mine / (c->of[GRID_MICROS] + 1) * grid_model[c->of[GRID_MODEL]].seq_length;
}

GridCase grid_case_legal(GridCase c)
{
    int *data = &c.of[GRID_DATA], *tensor = &c.of[GRID_TENSOR], *stages = &c.of[GRID_PIPELINE];
    fit_heads(&c);
    while (grid_case_ranks(&c) > most_ranks()) {
        int *most = *stages > *tensor ? stages : tensor;
        --*(*data > 1 || *data >= *most ? data : most);
        fit_heads(&c);
    }
    if (*stages == 0) c.of[GRID_SCHEDULE] = c.of[GRID_SPLIT] = 0;
    if (*tensor == 0) c.of[GRID_SEQUENCE] = 0;
    /* Stage 0 divides nothing. */
    if (c.of[GRID_STAGE] == 0) c.of[GRID_SHARD] = 0;
    while ((*data + 1) % (1 << c.of[GRID_SHARD]) != 0)
        c.of[GRID_SHARD]--;
    while (c.of[GRID_SEQUENCE] && micro_rows(&c) % (*tensor + 1) != 0)
        c.of[GRID_MICROS]--;
    /* With the split "by hand" one layer range has more blocks than the others. */
    int least = runs_of(&c) + (c.of[GRID_SPLIT] == BY_HAND);
    if (c.of[GRID_BLOCKS] + 1 < least) c.of[GRID_BLOCKS] = least - 1;
    return c;
}

GridCase grid_case_here(GridCase c)
{
    if (getenv("TEST_DEVICE") == NULL) return c;
    if (grid_case_dtype(&c) == F64) c.of[GRID_DTYPE] = 1;
    c.of[GRID_MASKED] = 0;
    /* Emulated kernels are slow and use many threads, so a case has few ranks and few blocks. If
     * there are several devices, each rank needs its own. */
    int most = c.of[GRID_SCHEDULE] > 1 ? 1 : 2, *data = &c.of[GRID_DATA];
    int devices = cuda_devices(), ranks = devices > 1 ? devices : 8;
    if (c.of[GRID_SCHEDULE] > 1) c.of[GRID_SCHEDULE] = 2;
    if (c.of[GRID_PIPELINE] > most) c.of[GRID_PIPELINE] = most;
    if (c.of[GRID_PIPELINE] >= ranks) c.of[GRID_PIPELINE] = ranks - 1;
    while (grid_case_ranks(&c) > ranks)
        --*(*data > 0 ? data : &c.of[GRID_TENSOR]);
    if (c.of[GRID_BLOCKS] > 1) c.of[GRID_BLOCKS] = 1;
    return grid_case_legal(c);
}

/* Returns the number of ranks on each axis of the case's grid. */
static GridPlace grid_case_size(const GridCase *c)
{
    return (GridPlace){.pp = c->of[GRID_PIPELINE] + 1,
                       .dp = c->of[GRID_DATA] + 1,
                       .cp = 1,
                       .tp = c->of[GRID_TENSOR] + 1};
}

int grid_case_ranks(const GridCase *c)
{
    GridPlace size = grid_case_size(c);
    return size.pp * size.dp * size.tp;
}

DType grid_case_dtype(const GridCase *c)
{
    return dtypes[c->of[GRID_DTYPE]].dtype;
}

bool grid_case_noisy(const GridCase *c)
{
    return c->of[GRID_OPTIMIZER] == 2 || c->of[GRID_DTYPE] >= 4;
}

GridCase grid_case_single(const GridCase *c, int dtype)
{
    GridCase single = *c;
    for (int i = 0; i <= GRID_MICROS; i++)
        single.of[i] = 0;
    single.of[GRID_RECOMPUTE] = single.of[GRID_KEYS] = 0;
    single.of[GRID_SHARD] = single.of[GRID_OFFLOAD] = 0;
    single.of[GRID_DTYPE] = dtype;
    return single;
}

/* Returns the batch size. Each rank's part is a multiple of its number of micro-batches. With
 * sequence parallelism it is 12, so that more numbers of ranks divide the rows. */
int64_t grid_case_batch(const GridCase *c)
{
    int64_t mine = c->of[GRID_SEQUENCE] ? 12 : c->of[GRID_MICROS] == 3 ? 8 : 6;
    return mine * (c->of[GRID_DATA] + 1);
}

/* ---- configs --------------------------------------------------------------------------------- */

/* Returns the config's pipeline keys as text, which the caller frees; "" without a pipeline. With
 * the split "by hand" each layer range has one block, except one range that has all the others. */
static char *pipeline_keys(const GridCase *c)
{
    int split = c->of[GRID_SPLIT], runs = runs_of(c), blocks = c->of[GRID_BLOCKS] + 1;
    char how[200] = "";
    if (c->of[GRID_PIPELINE] == 0) return text_format("%s", "");
    snprintf(how, sizeof how, "},\"pipeline\":{\"partition\":\"%s\"", splits[split]);
    for (int r = 0; split == BY_HAND && r < runs; r++) {
        size_t used = r ? strlen(how) : 0;
        snprintf(how + used, sizeof how - used, "%s%d%s", r ? "," : ",\"pipeline_split\":[",
                 r == blocks % runs ? blocks - runs + 1 : 1, r + 1 == runs ? "]" : "");
    }
    char *text = text_format(",\"pipeline\":%d,\"schedule\":\"%s\",\"pipeline_chunks\":%d%s",
                             c->of[GRID_PIPELINE] + 1, schedules[c->of[GRID_SCHEDULE]].kind,
                             schedules[c->of[GRID_SCHEDULE]].chunks, how);
    return text;
}

/* Returns parallel.shard: 0 for all data-parallel ranks. */
static int shard_of(const GridCase *c)
{
    int shard = c->of[GRID_SHARD];
    return shard == 0 ? 0 : (c->of[GRID_DATA] + 1) >> shard;
}

static char *config_json(const GridCase *c, int64_t batch)
{
    const GridModel *m = &grid_model[c->of[GRID_MODEL]];
    int64_t mine = batch / (c->of[GRID_DATA] + 1), micros = c->of[GRID_MICROS] + 1;
    const char *device = grid_case_dtype(c) == F64 ? NULL : getenv("TEST_DEVICE");
    CHECK(batch % (c->of[GRID_DATA] + 1) == 0 && mine % micros == 0, "%lld sequences",
          (long long)batch);
    char *pipeline = pipeline_keys(c);
    char *text = text_format(
        "{\"model\":{\"num_layers\":%d,%s},\"data\":{\"text\":\"x\",\"seq_length\":%d},"
        "\"seed\":11,\"train_batch_size\":%lld,\"train_micro_batch_size_per_gpu\":%lld,"
        "\"train_steps\":100,\"optimizer\":%s,\"scheduler\":{\"type\":\"Constant\"},"
        "\"gradient_clipping\":%s,\"zero_optimization\":{\"stage\":%d%s%s},%s,"
        "\"activation_checkpointing\":{\"policy\":\"%s\"},"
        "\"parallel\":{\"shard\":%d,\"tensor\":%d%s%s},"
        "\"device\":\"%s\",\"cpu\":{\"threads\":1,\"blas\":\"builtin\"}}",
        c->of[GRID_BLOCKS] + 1, m->json, m->seq_length, (long long)batch,
        (long long)(mine / micros), optimizers[c->of[GRID_OPTIMIZER]][1],
        c->of[GRID_CLIP] ? "0.05" : "0", c->of[GRID_STAGE], keys[c->of[GRID_KEYS]][1],
        offloads[c->of[GRID_OFFLOAD]][1], dtypes[c->of[GRID_DTYPE]].json, recompute(c), shard_of(c),
        c->of[GRID_TENSOR] + 1, c->of[GRID_SEQUENCE] ? ",\"sequence_parallel\":true" : "", pipeline,
        device ? device : "cpu");
    free(pipeline);
    return text;
}

Config *grid_case_config(const GridCase *c, int64_t batch)
{
    char *text = config_json(c, batch);
    ConfigContext context = {.world = grid_case_ranks(c)};
    ConfigReport report = {0};
    Config *config =
        (Config *)config_parse(&context, "grid case", text, strlen(text), 0, NULL, &report);
    if (config == NULL) fail(EXIT_CONFIG, "%s\n%s", text, report.error[0]);
    config_report_free(&report);
    free(text);
    config->eval.sample_tokens = 0; /* the sequences are too short for samples */
    return config;
}

/* ---- cases as text --------------------------------------------------------------------------- */

const char *grid_case_text(const GridCase *c, char *out, size_t n)
{
    char pipeline[120] = "", shard[32] = "";
    if (c->of[GRID_SHARD]) snprintf(shard, sizeof shard, " in groups of %d", shard_of(c));
    if (c->of[GRID_PIPELINE])
        snprintf(pipeline, sizeof pipeline, " x pp %d, %s, split %s", c->of[GRID_PIPELINE] + 1,
                 schedules[c->of[GRID_SCHEDULE]].name, splits[c->of[GRID_SPLIT]]);
    snprintf(out, n,
             "dp %d x tp %d%s%s, ZeRO %d%s (%s), %d micro-batch%s, %d block%s of %s, recompute %s, "
             "%s%s, %s%s%s",
             c->of[GRID_DATA] + 1, c->of[GRID_TENSOR] + 1, pipeline,
             c->of[GRID_SEQUENCE] ? ", sequence parallel" : "", c->of[GRID_STAGE], shard,
             keys[c->of[GRID_KEYS]][0], c->of[GRID_MICROS] + 1, c->of[GRID_MICROS] ? "es" : "",
             c->of[GRID_BLOCKS] + 1, c->of[GRID_BLOCKS] ? "s" : "",
             grid_model[c->of[GRID_MODEL]].name, recompute(c), dtypes[c->of[GRID_DTYPE]].name,
             c->of[GRID_CLIP] ? ", clipped" : "", optimizers[c->of[GRID_OPTIMIZER]][0],
             c->of[GRID_MASKED] ? ", masked" : "", offloads[c->of[GRID_OFFLOAD]][0]);
    return out;
}

const char *grid_case_numbers(const GridCase *c, char *out, size_t n)
{
    size_t used = 0;
    for (int i = 0; i < GRID_CHOICES && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%d", i ? "," : "", c->of[i]);
    return out;
}

bool grid_case_read(GridCase *c, const char *numbers)
{
    char *end;
    for (int i = 0; i < GRID_CHOICES; i++) {
        c->of[i] = (int)strtol(numbers, &end, 10);
        bool last = i + 1 == GRID_CHOICES;
        if (end == numbers || *end != (last ? '\0' : ',') || c->of[i] < 0) return false;
        numbers = end + 1;
    }
    return true;
}
