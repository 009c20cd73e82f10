/* settle.c -- adds to a validated config what is known only when a command starts; see
 * config_settle in config.h. */
#include "configs/advice.h"
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

/* Returns whether model.vocab_size exceeds the tokenizer's `there` ids only by padding rows: other
 * programs pad their token tables, and an imported model keeps its rows. */
static bool is_padded(const Config *config, int64_t there)
{
    const int64_t MOST_PADDING = 16; /* a sixteenth */
    int64_t given = config->model.vocab_size;
    return origin_given(vocab_origin(config)) && given > there &&
           given - there <= given / MOST_PADDING && !config_trains_tokenizer(config);
}

/* Returns whether a given vocabulary size fits the data; if not, sets err. It must equal the
 * vocabulary size of the data, except for padding: a much larger model would have embedding rows
 * for ids that never occur, and a smaller model would lack rows for some ids. If the tokenizer is
 * trained here, the given size is only an upper limit, so that a preset fits every text. */
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

/* Returns how many rows of logits the head computes at a time. Each chunk of rows reads the head's
 * table once and passes over the table's gradient once. So chunks are as large as memory allows: 2
 * % of a GPU's memory, and at most 16,384 rows, where reading the table and its gradient takes less
 * than 2 % of the time of the head's matrix products. A multiple of 256 rows leaves no tile of a
 * product incomplete. On CPUs the result is 0: as many rows as fit in 128 MiB, which is enough. */
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
    /* In f32 and f64 both forms of GELU give the same bits, so backward can recompute either. */
    bool rounds = config->bf16.enabled || config->fp16.enabled;
    return rounds && config->activation_checkpointing.policy == RECOMPUTE_SELECTIVE;
}

static bool may_fuse_gelu(const Config *config)
{
    return config->model.activation == ACTIVATION_GELU && !config_rounds_before_gelu(config);
}

/* Returns the default of model.fused_gelu. It is true if the config allows it and the GPU's matrix
 * library computes GELU within a product at nearly no cost; on older GPUs this is slower than a
 * separate kernel. In f32 and f64 both forms of GELU give the same bits, so the default is
 * false. */
static bool fuses_gelu(const Config *config, const DeviceFacts *device)
{
    return device->capability >= 90 && dtype_size(config_dtype(config)) == 2 &&
           may_fuse_gelu(config);
}

/* Returns whether the kernels for Hopper support the attention of this config. */
static bool suits_hopper(const Config *config)
{
    int64_t head = config->model.head_dim;
    return (head == 64 || head == 128) && dtype_size(config_dtype(config)) == 2;
}

static bool has_hopper(DeviceFacts device)
{
    return device.capability == 90 && !device.lacks_hopper;
}

AttentionKernels config_attention_auto(DeviceFacts device)
{
    /* The kernels for Hopper have not run on a GPU yet. When they have, and were faster, "auto" can
     * mean ATTENTION_HOPPER there. Newer GPUs do not have the instructions of these kernels. */
    const AttentionKernels ON_HOPPER = ATTENTION_PORTABLE;
    return has_hopper(device) ? ON_HOPPER : ATTENTION_PORTABLE;
}

/* Returns the attention kernels to use: those that the config gives; otherwise those of the run
 * that is resumed, or of the device. A run that is only read uses the kernels for Hopper only if
 * they are available. */
static AttentionKernels attention_of(const Config *config, const ConfigFacts *facts,
                                     DeviceFacts device)
{
    OriginKind kind = origin_of(config, "cuda.attention")->kind;
    if (facts->opened && kind != ORIGIN_SET)
        return has_hopper(device) && suits_hopper(config) ? config->cuda.attention
                                                          : ATTENTION_PORTABLE;
    if (kind != ORIGIN_DEFAULT) return config->cuda.attention;
    if (!suits_hopper(config)) return ATTENTION_PORTABLE;
    return facts->run ? facts->run->cuda.attention : config_attention_auto(device);
}

/* Returns false and sets err if the device lacks the kernels that the config, or the run that is
 * resumed, asks for. */
static bool fits_device(const Config *config, const ConfigFacts *facts, DeviceFacts device,
                        char *err, size_t n)
{
    const Origin *origin = origin_of(config, "cuda.attention");
    bool own = origin_given(origin);
    char where[64];
    if (attention_of(config, facts, device) != ATTENTION_HOPPER) return true;
    if (has_hopper(device)) return true;
    /* A config for a GPU can be printed on a machine without one. */
    if (device.capability == 0 && config->device == DEVICE_CUDA) return true;
    if (device.capability == 0)
        snprintf(where, sizeof where, "this is a CPU");
    else if (device.capability == 90)
        snprintf(where, sizeof where, "this program was built without 90a in ARCH");
    else
        snprintf(where, sizeof where, "a GPU here has %d.%d", device.capability / 10,
                 device.capability % 10);
    return error_set(err, n,
                     "%s%scuda.attention: %s\"hopper\" is for GPUs of compute capability 9.0 with "
                     "code for sm_90a, and %s; write \"portable\"%s",
                     own ? origin->given_at : "", own ? ": " : "",
                     own ? "" : "the run began with \"hopper\"; ", where,
                     facts->run ? ", which changes rounding only" : "");
}

/* Returns whether values depend on the device: either nothing else determines them, or the device
 * must have the kernels for Hopper. */
static bool depends_on_device(const Config *config, const ConfigFacts *facts)
{
    const char *const keys[] = {"model.fused_gelu", "model.head_chunk_rows", "cuda.attention"};
    if (facts->opened) return config->cuda.attention == ATTENTION_HOPPER;
    for (int i = 0; i < 3; i++)
        if (facts->run == NULL && origin_of(config, keys[i])->kind == ORIGIN_DEFAULT) return true;
    return attention_of(config, facts, (DeviceFacts){0}) == ATTENTION_HOPPER;
}

static void settle_by_device(Config *config, const ConfigFacts *facts, DeviceFacts device)
{
    Origin *attention = origin_of(config, "cuda.attention"),
           *gelu = origin_of(config, "model.fused_gelu"),
           *rows = origin_of(config, "model.head_chunk_rows");
    const Config *run = facts->run;
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
    AttentionKernels kernels = attention_of(config, facts, device);
    if (attention->kind == ORIGIN_DEFAULT || kernels != config->cuda.attention) {
        config->cuda.attention = kernels;
        set_derived(attention);
    }
}

/* ---- all facts ------------------------------------------------------------------------------- */

const Config *config_settle(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    if (!fits_vocab(config, facts, err, n)) return NULL;
    DeviceFacts device = {0};
    bool there = facts->device || facts->known;
    if (there && depends_on_device(config, facts))
        device = facts->known ? *facts->known : facts->device(config);
    if (there && !fits_device(config, facts, device, err, n)) return NULL;
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
    /* model.vocab_size and data.tokenizer_vocab_size get the size of the trained tokenizer, so that
     * the stored config describes the model. */
    if (facts->vocab_size != 0 && settled->data.tokenizer_vocab_at_most)
        settled->data.tokenizer_vocab_size = facts->vocab_size;
    /* A given size that equals the data's keeps its origin. */
    Origin *origin = vocab_origin(settled);
    if (facts->vocab_size != 0 && settled->model.vocab_size != facts->vocab_size && !padded) {
        settled->model.vocab_size = facts->vocab_size;
        set_derived(origin);
    }
    if (there || facts->run) settle_by_device(settled, facts, device);
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
