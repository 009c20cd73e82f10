/* verify_configs.c -- makes the configs that verify compares: a small model of the config's kind on
 * the grid and on a single rank. See verify.h for what they change. */
#include "parallel/verify/verify_configs.h"

#include "model/core/min_max.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    HEAD_SIZE = 8,
    BLOCKS = 2,
    MOST_VOCABULARY = 509,
    MOST_POSITIONS = 64,
    MOST_SETS = 80,
    MOST_EPS = 1, /* the largest that the key takes */
    SCALE_POWER = 10
};

/* The settings of the user, then those that verify makes for a config to be compared. If a key is
 * set several times, the last setting counts. */
typedef struct {
    const char **item;
    int n, given;
} Settings;

static Settings settings_begin(const VerifyOptions *o)
{
    Settings s = {.n = o->set.count, .given = o->set.count};
    s.item = must_calloc((size_t)o->set.count + MOST_SETS, sizeof *s.item);
    for (int i = 0; i < s.n; i++)
        s.item[i] = o->set.item[i];
    return s;
}

static void settings_free(Settings *s)
{
    for (int i = s->given; i < s->n; i++)
        free((char *)s->item[i]);
    free(s->item);
}

static void set_text(Settings *s, const char *key, const char *value)
{
    CHECK(s->n - s->given < MOST_SETS, "%d settings", s->n);
    s->item[s->n++] = text_format("%s=%s", key, value);
}

static void set_number(Settings *s, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    set_text(s, key, text);
}

static int64_t round_to(int64_t value, int64_t unit)
{
    return value < unit ? unit : value / unit * unit;
}

/* Adds the settings of a small model of the config's kind: two blocks, or one per layer range of
 * the pipeline if there are more than two ranges, and sizes that tensor-parallel ranks can divide.
 */
static void set_small_model(Settings *s, const Config *c)
{
    int64_t tp = c->parallel.tensor, runs = c->parallel.pipeline * c->parallel.pipeline_chunks;
    int64_t blocks = max_i64(BLOCKS, runs), vocabulary = c->model.vocab_size;
    int64_t hidden = HEAD_SIZE * c->model.num_attention_heads;
    double wide = (double)c->model.intermediate_size / (double)c->model.hidden_size;
    int64_t length = min_i64(c->data.seq_length, MOST_POSITIONS),
            mlp = (int64_t)(wide * (double)hidden);
    if (vocabulary == 0) vocabulary = c->data.tokenizer_vocab_size;
    if (c->parallel.sequence_parallel) length = round_to(length, tp);
    set_number(s, "model.num_layers", blocks);
    set_number(s, "model.hidden_size", hidden);
    set_number(s, "model.head_dim", HEAD_SIZE);
    set_number(s, "model.intermediate_size", round_to(mlp, tp));
    set_number(s, "model.vocab_size", min_i64(vocabulary, MOST_VOCABULARY));
    set_number(s, "data.seq_length", length);
    set_number(s, "model.max_position_embeddings", length);
    /* The Hopper kernels do not support heads of this size. */
    set_text(s, "cuda.attention", "portable");
    /* The config's own split is for another number of blocks. */
    set_text(s, "parallel.pipeline_split", "null");
    /* Without this, ZeRO stage 3 would keep the parameters of such small layers whole. */
    set_number(s, "zero_optimization.stage3_param_persistence_threshold", 0);
}

/* Removes all keys of a grid, which leaves a single rank. This rank keeps the optimizer states on
 * the device, so that a grid with states on the host is compared with states on the device. */
static void set_one_rank(Settings *s)
{
    const char *key;
    set_text(s, "zero_optimization.offload_optimizer.device", "none");
    for (int i = 0; (key = config_grid_key(i)) != NULL; i++)
        set_text(s, key, "null");
}

/* Disables everything that is kept or sent in 16 bits. */
static void set_no_16_bits(Settings *s)
{
    set_text(s, "fp16.enabled", "false");
    set_text(s, "bf16.enabled", "false");
    set_text(s, "bf16.bf16_master_weights_and_grads", "false");
    set_text(s, "bf16.bf16_optimizer_states", "false");
    set_text(s, "data_types.grad_accum_dtype", "null");
    set_text(s, "communication_data_type", "null");
    set_text(s, "cuda.attention", "portable");
    set_text(s, "seq_parallel_communication_data_type", "null");
}

/* Adds the settings for f64. If no eps fits the learning rate, prints an error message, sets *code
 * and returns false. */
static bool set_f64(Settings *s, const Config *c, int *code)
{
    set_text(s, "fp64.enabled", "true");
    set_no_16_bits(s);
    set_text(s, "device", "cpu");
    /* The error of an update is at most lr / eps times, here ten times, the error of its
     * gradient. */
    double lr = c->optimizer.params.lr, eps = fmax(1e-4, lr / 10);
    if (c->optimizer.type == OPTIMIZER_SGD || c->optimizer.params.eps >= eps) return true;
    if (eps > MOST_EPS) {
        const char *key = "optimizer.params.lr";
        *code =
            error_print(EXIT_CONFIG,
                        "%s: %s: %g is too large to compare in fp64, where verify takes an eps of "
                        "lr / 10 and the largest eps is %d; write at most %d%s",
                        config_origin(c, key), key, lr, MOST_EPS, 10 * MOST_EPS,
                        c->fp64.enabled ? "" : ", or say --dtype config");
        return false;
    }
    char text[32];
    snprintf(text, sizeof text, "%g", eps);
    set_text(s, "optimizer.params.eps", text);
    return true;
}

/* Loads the config for `world` ranks (0: any number). On failure returns NULL and sets *code;
 * prints the error messages if `aloud`. */
static const Config *load(const VerifyOptions *o, const Settings *s, int64_t world, bool aloud,
                          int *code)
{
    ConfigReport report = {0};
    ConfigContext context = session_context(world);
    context.own_sets = s->n - s->given;
    const Config *config = config_load(o->config, s->n, s->item, &context, &report);
    if (config == NULL && aloud) config_report_print(&report, false, stderr);
    if (config == NULL) *code = config_report_code(&report);
    config_report_free(&report);
    return config ? session_settle(config, 0) : NULL;
}

/* Loads the config as given. Its batch need not fit the number of ranks, because a smaller batch
 * replaces it. */
static const Config *load_given(const VerifyOptions *o, const Settings *s, int *code)
{
    const Config *config = load(o, s, o->ranks, false, code);
    return config ? config : load(o, s, 0, true, code);
}

/* Returns the number of sequences per micro-batch: at most two, or the config's number if
 * tensor-parallel ranks cannot divide the rows of so few sequences. In a small model they always
 * can. */
static int64_t micro_rows(const VerifyOptions *o, const Config *c)
{
    int64_t rows = min_i64(c->train_micro_batch_size_per_gpu, 2);
    bool shared = !c->parallel.sequence_parallel ||
                  rows * c->data.seq_length % c->parallel.tensor == 0 || !o->full;
    return shared ? rows : c->train_micro_batch_size_per_gpu;
}

bool verify_configs_load(VerifyConfigs *c, const VerifyOptions *o, int *code)
{
    /* The list of settings grows: the grid's config is loaded first, and the single rank's config
     * gets the same settings and more, so that both differ only in the number of ranks. */
    Settings s = settings_begin(o);
    *c = (VerifyConfigs){.given = load_given(o, &s, code)};
    if (c->given) {
        const Config *g = c->given;
        /* If the ranks cannot form a whole grid, loading fails below; dp is then 1. */
        int64_t rows = micro_rows(o, g), dp = max_i64(config_grid(g, o->ranks).dp, 1);
        int64_t micros = min_i64(g->gradient_accumulation_steps, 2 * g->parallel.pipeline);
        bool f64 = o->dtype == VERIFY_F64 || g->fp64.enabled ||
                   (o->dtype == VERIFY_DEFAULT && !session_on_cuda(g));
        if (!o->full) set_small_model(&s, g);
        if (o->full && g->model.vocab_size == 0)
            set_number(&s, "model.vocab_size", g->data.tokenizer_vocab_size);
        bool good = !f64 || set_f64(&s, g, code);
        /* A scale that begins high is lowered by skipping steps that overflow, but there are only
         * three steps. */
        if (!f64 && g->fp16.initial_scale_power > SCALE_POWER)
            set_number(&s, "fp16.initial_scale_power", SCALE_POWER);
        /* With "sum", a grid's gradient would be a multiple of a single rank's. */
        set_text(&s, "gradient_allreduce_op", "mean");
        /* TF32 rounds factors, which would turn a difference in the last bit into one of 2^-11. */
        set_text(&s, "cuda.tf32", "false");
        set_number(&s, "train_micro_batch_size_per_gpu", rows);
        set_number(&s, "gradient_accumulation_steps", micros);
        set_number(&s, "train_batch_size", rows * micros * dp);
        if (good) c->grid = load(o, &s, o->ranks, true, code);
        /* The single rank processes the micro-batches of all ranks one after another. */
        set_number(&s, "gradient_accumulation_steps", micros * dp);
        set_one_rank(&s);
        /* By default, these values depend on the devices of all ranks; the single rank must have
         * those of the grid. */
        if (c->grid) set_number(&s, "model.head_chunk_rows", c->grid->model.head_chunk_rows);
        if (c->grid) set_text(&s, "cuda.attention", config_word(c->grid, "cuda.attention"));
        if (c->grid) set_text(&s, "model.fused_gelu", c->grid->model.fused_gelu ? "true" : "false");
        if (c->grid) c->single = load(o, &s, 1, true, code);
        set_no_16_bits(&s);
        if (c->single && dtype_size(config_dtype(c->single)) == 2)
            c->exact = load(o, &s, 1, true, code);
    }
    settings_free(&s);
    return c->single && (c->exact || dtype_size(config_dtype(c->single)) != 2);
}

void verify_configs_free(VerifyConfigs *c)
{
    config_free(c->exact);
    config_free(c->single);
    config_free(c->grid);
    config_free(c->given);
}
