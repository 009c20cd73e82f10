/* grid_case.c -- see grid_case.h. */
#include "tests/support/grid_case.h"

#include "data/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name, *model;
    int seq_length;
} Model;

/* Sizes that nothing divides, units smaller than a rank's alignment, every layer there is. */
static const Model models[] = {
    {"gpt2", "\"num_layers\":2,\"hidden_size\":16,\"num_attention_heads\":2,\"vocab_size\":61", 7},
    {"llama",
     "\"num_layers\":2,\"hidden_size\":16,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"norm\":\"rmsnorm\",\"position\":\"rope\",\"activation\":\"swiglu\",\"bias\":false,"
     "\"tie_word_embeddings\":false,\"intermediate_size\":24,\"vocab_size\":53",
     6},
    {"one layer, prime sizes",
     "\"num_layers\":1,\"hidden_size\":21,\"num_attention_heads\":3,\"intermediate_size\":37,"
     "\"vocab_size\":97",
     5},
    {"gpt2 untied",
     "\"num_layers\":2,\"hidden_size\":12,\"num_attention_heads\":3,\"tie_word_embeddings\":false,"
     "\"vocab_size\":31",
     8},
    {"llama tied with QK-norm",
     "\"num_layers\":2,\"hidden_size\":24,\"num_attention_heads\":3,\"num_key_value_heads\":1,"
     "\"norm\":\"rmsnorm\",\"position\":\"rope\",\"activation\":\"swiglu\",\"bias\":false,"
     "\"qk_norm\":true,\"intermediate_size\":40,\"vocab_size\":67",
     6},
    {"relu2 with rope",
     "\"num_layers\":2,\"hidden_size\":16,\"num_attention_heads\":2,\"position\":\"rope\","
     "\"activation\":\"relu2\",\"bias\":false,\"vocab_size\":41",
     7},
    {"three layers, one head of 13",
     "\"num_layers\":3,\"hidden_size\":13,\"num_attention_heads\":1,\"vocab_size\":17", 5},
    {"one kv head, wide heads",
     "\"num_layers\":1,\"hidden_size\":10,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
     "\"head_dim\":8,\"position\":\"rope\",\"activation\":\"relu2\",\"vocab_size\":29",
     6},
    {"two pages of vocabulary",
     "\"num_layers\":1,\"hidden_size\":8,\"num_attention_heads\":2,\"vocab_size\":131", 4},
    {"two pages of vocabulary, untied",
     "\"num_layers\":1,\"hidden_size\":6,\"num_attention_heads\":1,\"tie_word_embeddings\":false,"
     "\"bias\":false,\"vocab_size\":257",
     4},
    {"swiglu with biases",
     "\"num_layers\":2,\"hidden_size\":14,\"num_attention_heads\":2,\"activation\":\"swiglu\","
     "\"intermediate_size\":19,\"bias\":true,\"vocab_size\":43",
     6},
    {"rmsnorm, QK-norm, biases",
     "\"num_layers\":2,\"hidden_size\":18,\"num_attention_heads\":3,\"norm\":\"rmsnorm\","
     "\"qk_norm\":true,\"bias\":true,\"vocab_size\":59",
     7},
    {"five layers",
     "\"num_layers\":5,\"hidden_size\":8,\"num_attention_heads\":2,\"vocab_size\":19", 5},
    {"smaller than a shard",
     "\"num_layers\":1,\"hidden_size\":2,\"num_attention_heads\":1,\"intermediate_size\":3,"
     "\"norm\":\"rmsnorm\",\"bias\":false,\"vocab_size\":5",
     3},
    {"one token a row",
     "\"num_layers\":2,\"hidden_size\":12,\"num_attention_heads\":2,\"position\":\"rope\","
     "\"vocab_size\":23",
     1},
    {"learned positions, untied swiglu",
     "\"num_layers\":2,\"hidden_size\":15,\"num_attention_heads\":3,\"activation\":\"swiglu\","
     "\"tie_word_embeddings\":false,\"intermediate_size\":32,\"vocab_size\":37",
     9},
    {"fused gelu",
     "\"num_layers\":2,\"hidden_size\":16,\"num_attention_heads\":4,\"fused_gelu\":true,"
     "\"vocab_size\":47",
     6},
    {"kv heads shared by two",
     "\"num_layers\":2,\"hidden_size\":20,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"qk_norm\":true,\"vocab_size\":71",
     6},
    {"wide blocks",
     "\"num_layers\":1,\"hidden_size\":40,\"num_attention_heads\":5,\"vocab_size\":11", 4},
    {"rope, layernorm, untied relu2",
     "\"num_layers\":3,\"hidden_size\":12,\"num_attention_heads\":2,\"position\":\"rope\","
     "\"activation\":\"relu2\",\"tie_word_embeddings\":false,\"vocab_size\":13",
     11},
};
enum { MODELS = sizeof models / sizeof *models };

static const char *const optimizers[][2] = {
    {"AdamW, eps 1e-4",
     "{\"type\":\"AdamW\",\"params\":{\"lr\":0.01,\"eps\":1e-4,\"weight_decay\":0.1}}"},
    {"SGD with momentum",
     "{\"type\":\"SGD\",\"params\":{\"lr\":0.05,\"momentum\":0.9,\"weight_decay\":0.01}}"},
    {"AdamW, eps 1e-8",
     "{\"type\":\"AdamW\",\"params\":{\"lr\":0.01,\"eps\":1e-8,\"weight_decay\":0.1}}"}};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* Units of these models are far below DeepSpeed's thresholds, which would keep all of them whole:
 * only the last row has those. */
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
    {"DeepSpeed's", ""}};
enum { KEYS = sizeof keys / sizeof *keys };

static const struct {
    const char *name, *json;
    DType dtype;
} dtypes[] = {{"f64", "\"fp64\":{\"enabled\":true}", F64},
              {"f32", "\"bf16\":{\"enabled\":false}", F32},
              {"bf16", "\"bf16\":{\"enabled\":true}", BF16},
              {"f16", "\"fp16\":{\"enabled\":true,\"loss_scale\":1024}", F16},
              {"bf16 without masters",
               "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true}", BF16}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* GELU of the unrounded sum is not made again from rounded values. */
static const char *recompute(const GridCase *c)
{
    static const char *const name[] = {"none", "selective", "full"};
    bool fused = strstr(models[c->of[GRID_MODEL]].model, "fused_gelu") != NULL;
    bool narrow = dtype_size(dtypes[c->of[GRID_DTYPE]].dtype) == 2;
    return name[fused && narrow && c->of[GRID_RECOMPUTE] == 1 ? 2 : c->of[GRID_RECOMPUTE]];
}

static const int values[GRID_CHOICES] = {
    [GRID_RANKS] = 5,      [GRID_STAGE] = 4,     [GRID_MICROS] = 3, [GRID_MODEL] = MODELS,
    [GRID_DTYPE] = DTYPES, [GRID_RECOMPUTE] = 3, [GRID_CLIP] = 2,   [GRID_OPTIMIZER] = OPTIMIZERS,
    [GRID_MASKED] = 2,     [GRID_KEYS] = KEYS};

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

GridCase grid_case(int64_t index)
{
    GridCase c;
    for (int i = 0; i < GRID_CHOICES; i++, index /= values[i - 1])
        c.of[i] = (int)(index % values[i]);
    return c;
}

GridCase grid_case_drawn(uint64_t seed, int64_t i)
{
    return grid_case(sampler_permute(seed, 0, grid_cases(), i));
}

GridCase grid_case_here(GridCase c)
{
    if (getenv("TEST_DEVICE") == NULL) return c;
    if (grid_case_dtype(&c) == F64) c.of[GRID_DTYPE] = 1;
    c.of[GRID_MASKED] = 0;
    return c;
}

int grid_case_ranks(const GridCase *c)
{
    return c->of[GRID_RANKS] + 1;
}

DType grid_case_dtype(const GridCase *c)
{
    return dtypes[c->of[GRID_DTYPE]].dtype;
}

bool grid_case_noisy(const GridCase *c)
{
    return c->of[GRID_OPTIMIZER] == 2 || c->of[GRID_DTYPE] == 4;
}

GridCase grid_case_single(const GridCase *c, int dtype)
{
    GridCase single = *c;
    single.of[GRID_RANKS] = single.of[GRID_STAGE] = single.of[GRID_MICROS] = 0;
    single.of[GRID_RECOMPUTE] = single.of[GRID_KEYS] = 0;
    single.of[GRID_DTYPE] = dtype;
    return single;
}

/* Divisible by the micro-batches of any case with as many ranks. */
int64_t grid_case_batch(const GridCase *c)
{
    return 6 * grid_case_ranks(c);
}

Config *grid_case_config(const GridCase *c, int64_t batch)
{
    const Model *m = &models[c->of[GRID_MODEL]];
    int ranks = grid_case_ranks(c), micros = c->of[GRID_MICROS] + 1;
    int64_t mine = batch / ranks;
    const char *device = grid_case_dtype(c) == F64 ? NULL : getenv("TEST_DEVICE");
    CHECK(mine * ranks == batch && mine % micros == 0, "%lld sequences", (long long)batch);
    char *text = text_format(
        "{\"model\":{%s},\"data\":{\"text\":\"x\",\"seq_length\":%d},\"seed\":11,"
        "\"train_batch_size\":%lld,\"train_micro_batch_size_per_gpu\":%lld,\"train_steps\":100,"
        "\"optimizer\":%s,\"scheduler\":{\"type\":\"Constant\"},\"gradient_clipping\":%s,"
        "\"zero_optimization\":{\"stage\":%d%s},%s,"
        "\"activation_checkpointing\":{\"policy\":\"%s\"},"
        "\"device\":\"%s\",\"cpu\":{\"threads\":1,\"blas\":\"builtin\"}}",
        m->model, m->seq_length, (long long)mine, (long long)(mine / micros),
        optimizers[c->of[GRID_OPTIMIZER]][1], c->of[GRID_CLIP] ? "0.05" : "0", c->of[GRID_STAGE],
        keys[c->of[GRID_KEYS]][1], dtypes[c->of[GRID_DTYPE]].json, recompute(c),
        device ? device : "cpu");
    ConfigReport report = {0};
    Config *config = (Config *)config_parse("grid case", text, strlen(text), 0, NULL, &report);
    if (config == NULL) fail(EXIT_CONFIG, "%s\n%s", text, report.error[0]);
    config_report_free(&report);
    free(text);
    config->eval.sample_tokens = 0; /* no room for samples */
    config->parallel.data = ranks;
    config->train_batch_size = batch;
    return config;
}

void grid_config_free(Config *config)
{
    config_free(config);
}

int64_t grid_case_every(void)
{
    const char *every = getenv("TEST_EVERY");
    return every ? strtoll(every, NULL, 10) : getenv("TEST_SAMPLE") ? 12 : 1;
}

const char *grid_case_text(const GridCase *c, char *out, size_t n)
{
    snprintf(out, n, "%d rank%s, ZeRO %d (%s), %d micro-batch%s, %s, recompute %s, %s%s, %s%s",
             c->of[GRID_RANKS] + 1, c->of[GRID_RANKS] ? "s" : "", c->of[GRID_STAGE],
             keys[c->of[GRID_KEYS]][0], c->of[GRID_MICROS] + 1, c->of[GRID_MICROS] ? "es" : "",
             models[c->of[GRID_MODEL]].name, recompute(c), dtypes[c->of[GRID_DTYPE]].name,
             c->of[GRID_CLIP] ? ", clipped" : "", optimizers[c->of[GRID_OPTIMIZER]][0],
             c->of[GRID_MASKED] ? ", masked" : "");
    return out;
}
