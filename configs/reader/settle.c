/* settle.c -- adds to a validated config what is known only when a command starts; see
 * config_settle in config.h. */
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdlib.h>

static Origin *origin_of(const Config *config, const char *key)
{
    return (Origin *)config->provenance + option_find(key);
}

static Origin *vocab_origin(const Config *config)
{
    return origin_of(config, "model.vocab_size");
}

static void set_derived(Origin *origin)
{
    free(origin->text);
    free(origin->given_at);
    origin->given_at = NULL;
    origin->kind = ORIGIN_DERIVED;
    origin->text = must_strdup("derived");
}

bool config_trains_tokenizer(const Config *config)
{
    return config->data.train.count == 0 && config->data.tokenizer == NULL;
}

/* Returns whether the model has a few rows more than the tokenizer has ids: other programs pad
 * their token tables, and an imported model keeps what it has. */
static bool is_padded(const Config *config, int64_t there)
{
    const int64_t MOST_PADDING = 16; /* a sixteenth */
    int64_t given = config->model.vocab_size;
    return origin_given(vocab_origin(config)) && given > there &&
           given - there <= given / MOST_PADDING && !config_trains_tokenizer(config);
}

/* A vocabulary size that was given must be that of given data, except for padding. A much larger
 * model would have embedding rows for ids that never occur; a smaller one would be given ids that
 * it has no row for. Of a tokenizer that is trained here it is the largest size, so that a preset
 * fits every text. */
static bool fits_vocab(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    const Origin *origin = vocab_origin(config);
    long long given = config->model.vocab_size, there = facts->vocab_size;
    if (there == 0 || !origin_given(origin) || given == there) return true;
    if (is_padded(config, there)) return true;
    if (there < given && config_trains_tokenizer(config)) return true;
    return error_set(
        err, n,
        "%s: model.vocab_size: %lld, but %s has %lld tokens; write %lld, or leave the key out",
        origin->given_at, given, facts->vocab_of, there, there);
}

/* ---- values that depend on the device -------------------------------------------------------- */

/* Returns the rows of logits that the head computes at a time. Each chunk reads the head's table
 * and makes a pass over the table's gradient, so chunks are as large as memory allows: 2 % of a
 * GPU's, and 16,384 rows, where the passes take less than 2 % of the head's products. A multiple of
 * 256 rows leaves no tile of a product incomplete. On CPUs 128 MiB are enough. */
static int64_t head_chunk_rows(const Config *config, const DeviceFacts *device)
{
    const int64_t LEAST = 256, MOST = 16384, SHARE = 50;
    int64_t vocabulary = config->model.vocab_size, rows = LEAST;
    if (device->capability == 0) return 0;
    if (vocabulary <= 0) vocabulary = config_likely_vocab(config);
    int64_t row = vocabulary / config->parallel.tensor * (int64_t)dtype_size(config_dtype(config));
    while (2 * rows <= MOST && 2 * rows * row <= device->bytes / SHARE)
        rows *= 2;
    return rows;
}

bool config_rounds_before_gelu(const Config *config)
{
    /* In f32 and f64 both forms of gelu give the same bits, so either can be made again. */
    bool rounds = config->bf16.enabled || config->fp16.enabled;
    return rounds && config->activation_checkpointing.policy == RECOMPUTE_SELECTIVE;
}

static bool may_fuse_gelu(const Config *config)
{
    return config->model.activation == ACTIVATION_GELU && !config_rounds_before_gelu(config);
}

/* Returns whether the library's products of this GPU compute GELU at nearly no cost. Older ones
 * become slower than with a kernel of its own. In f32 and f64 there is nothing to choose. */
static bool fuses_gelu(const Config *config, const DeviceFacts *device)
{
    return device->capability >= 90 && dtype_size(config_dtype(config)) == 2 &&
           may_fuse_gelu(config);
}

static void settle_by_device(Config *config, const ConfigFacts *facts)
{
    Origin *gelu = origin_of(config, "model.fused_gelu"),
           *rows = origin_of(config, "model.head_chunk_rows");
    const Config *run = facts->run;
    bool ask = run == NULL && (gelu->kind == ORIGIN_DEFAULT || rows->kind == ORIGIN_DEFAULT);
    if (run == NULL && facts->device == NULL && facts->known == NULL) return;
    DeviceFacts device = {0};
    if (ask) device = facts->known ? *facts->known : facts->device(config);
    if (gelu->kind == ORIGIN_DEFAULT) {
        config->model.fused_gelu =
            run ? run->model.fused_gelu && may_fuse_gelu(config) : fuses_gelu(config, &device);
        set_derived(gelu);
    }
    if (rows->kind == ORIGIN_DEFAULT) {
        config->model.head_chunk_rows =
            run ? run->model.head_chunk_rows : head_chunk_rows(config, &device);
        set_derived(rows);
    }
}

/* ---- all facts ------------------------------------------------------------------------------- */

const Config *config_settle(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    if (!fits_vocab(config, facts, err, n)) return NULL;
    bool padded = facts->vocab_size != 0 && is_padded(config, facts->vocab_size);
    /* The new struct takes over all strings and lists, so no const object is written to. */
    Config *settled = must_alloc(sizeof *settled);
    *settled = *config;
    free((void *)(uintptr_t)config);
    settled->settled = true;
    if (facts->tokenizer != NULL) {
        free(settled->data.tokenizer);
        settled->data.tokenizer = must_strdup(facts->tokenizer);
    }
    /* Both keys get the size that the text gave, so the stored config describes the model. */
    if (facts->vocab_size != 0 && settled->data.tokenizer_vocab_at_most)
        settled->data.tokenizer_vocab_size = facts->vocab_size;
    /* A given size that equals the data's keeps its origin. */
    Origin *origin = vocab_origin(settled);
    if (facts->vocab_size != 0 && settled->model.vocab_size != facts->vocab_size && !padded) {
        settled->model.vocab_size = facts->vocab_size;
        set_derived(origin);
    }
    settle_by_device(settled, facts);
    return settled;
}

int64_t config_likely_vocab(const Config *config)
{
    int64_t model = config->model.vocab_size, trained = config->data.tokenizer_vocab_size;
    if (config_trains_tokenizer(config)) return model > 0 && model < trained ? model : trained;
    return model > 0 ? model : 50257; /* size of GPT-2's vocabulary */
}

Config config_of_one_micro_batch(const Config *config, bool samples)
{
    Config one = *config;
    /* As in every config, train_batch_size must remain the product of the other batch keys. */
    one.train_batch_size /= one.gradient_accumulation_steps;
    one.gradient_accumulation_steps = 1;
    one.wall_clock_breakdown = true;
    if (!samples) one.eval.sample_tokens = 0;
    return one;
}

Config config_of_one_share(const Config *config)
{
    Config one = *config;
    int64_t rows = config->train_micro_batch_size_per_gpu, share = rows / config->world;
    if (share < 1) share = 1;
    /* Tensor-parallel ranks that cut a micro-batch must get equal parts of it. */
    while (config->parallel.sequence_parallel && share < rows &&
           share * config->data.seq_length % config->parallel.tensor != 0)
        share++;
    one.train_micro_batch_size_per_gpu = share;
    one.train_batch_size = config->train_batch_size / rows * share;
    return one;
}

Config config_of_short_sequences(const Config *config, int64_t tokens)
{
    Config one = *config;
    int64_t unit = 8 * (config->parallel.sequence_parallel ? config->parallel.tensor : 1);
    int64_t length = (tokens + unit - 1) / unit * unit;
    if (length < one.data.seq_length) one.data.seq_length = length;
    return one;
}
