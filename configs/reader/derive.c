/* derive.c -- values that follow from other values, filled in where they were not given. */
#include "configs/reader/load.h"

#include <stdlib.h>
#include <string.h>

static void derive_model(Load *load)
{
    Config *c = load->config;
    int64_t hidden = c->model.hidden_size, heads = c->model.num_attention_heads;
    int64_t narrow =
        (8 * hidden + 2) / 3; /* swiglu has three matrices: 8/3 keeps the parameters of 4 */
    load_follow(load, "model.num_key_value_heads", &c->model.num_key_value_heads, heads);
    if (hidden % heads == 0)
        load_follow(load, "model.head_dim", &c->model.head_dim, hidden / heads);
    load_follow(load, "model.intermediate_size", &c->model.intermediate_size,
                c->model.activation == ACTIVATION_SWIGLU ? (narrow + 63) / 64 * 64 : 4 * hidden);
    load_follow(load, "model.max_position_embeddings", &c->model.max_position_embeddings,
                c->data.seq_length);
}

/* The micro-batch of a file that leaves it to a trainer: the largest power of two up to 8 (Hugging
 * Face's default) that goes into what a rank has to do in a step. */
static int64_t automatic_micro_batch(int64_t sequences)
{
    int64_t micro = 8;
    while (sequences > 0 && sequences % micro != 0)
        micro /= 2;
    return micro;
}

/* train_batch_size = micro-batch x accumulation x data-parallel ranks: what is missing follows, as
 * in DeepSpeed, where it divides; validate.c speaks up where it does not. */
static void derive_batch(Load *load)
{
    static const char *const train_key = "train_batch_size",
                             *const micro_key = "train_micro_batch_size_per_gpu",
                             *const accum_key = "gradient_accumulation_steps";
    Config *c = load->config;
    int64_t *batch = &c->train_batch_size, *rows = &c->train_micro_batch_size_per_gpu,
            *times = &c->gradient_accumulation_steps, dp = c->parallel.data;
    bool train = load_given(load, train_key), micro = load_given(load, micro_key),
         accum = load_given(load, accum_key);
    /* Files that leave the micro-batch to a trainer get one here, and so does a run without a file;
     * elsewhere it is given, or follows from the other two keys. */
    bool automatic = load_automatic(load, micro_key) ||
                     (load_automatic(load, train_key) && !train) || load->path == NULL;
    if (load_wrong(load, train_key) || load_wrong(load, micro_key) || load_wrong(load, accum_key) ||
        load_wrong(load, "parallel.data"))
        return;
    if (!micro && automatic) {
        /* What one rank has to do in one micro-batch, where the other two keys say so; 0: open. */
        int64_t share = train ? *batch / dp / (accum ? *times : 1) : 0;
        load_follow(load, micro_key, rows, automatic_micro_batch(share));
        if (load->path != NULL)
            load_routine(load, load_place(load, micro_key), micro_key,
                         "no trainer fills it in here; %lld taken", (long long)*rows);
        micro = true; /* from here on as if it had been given */
    }
    /* load_follow changes no key that was given and sets none to 0. Where something does not
     * divide, the product of the three is not the batch then, and validate.c says what would be. */
    if (train && micro) {
        load_follow(load, accum_key, times, *batch / *rows / dp);
    } else if (train) {
        load_follow(load, accum_key, times, 1);
        load_follow(load, micro_key, rows, *batch / dp / *times);
    } else if (micro) {
        load_follow(load, accum_key, times, 1);
        load_follow(load, train_key, batch, *rows * *times * dp);
    }
}

/* Whether the key was given by --set. */
static bool by_set(const Load *load, const char *key)
{
    return load_given(load, key) && load_place(load, key).set > 0;
}

/* Takes back what the file said about `key`, and what was found about it, because of `winner` on
 * the command line. */
static void displace(Load *load, const char *key, const char *winner)
{
    int row = option_find(key);
    if (!load_given(load, key) || by_set(load, key)) return; /* two --set that clash are an error */
    load_forget(load, key); /* a value that does not count cannot be wrong */
    load_notice(load, load_place(load, key), key, "set aside for --set %s", winner);
    load_default(load, row); /* and from here on as if the file had not named it */
    load->origin[row] = (Origin){0};
}

/* A source of data on the command line takes the place of the file's: --set data.text=my.txt is all
 * it needs. */
static void displace_sources(Load *load)
{
    static const char *const source[] = {"data.train", "data.text", "data.corpus"};
    static const char *const validation[] = {"data.val", "data.val_text", NULL};
    int winner = -1;
    for (int i = 0; i < 3; i++)
        if (by_set(load, source[i])) winner = i;
    for (int i = 0; i < 3 && winner >= 0; i++) {
        displace(load, source[i], source[winner]);
        if (validation[i] != NULL && i != winner) displace(load, validation[i], source[winner]);
    }
}

/* In the same way a type on the command line sets aside the params in the file that it does not
 * take. */
static void displace_params(Load *load)
{
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        const char *type = option_type_key(option);
        if (!option_applies(option, load->config) && by_set(load, type) && !load_wrong(load, type))
            displace(load, option->key, type);
    }
}

/* In the same way a share of the run (a ratio) sets aside a number of steps, and a number of steps
 * a share. */
static void displace_steps(Load *load)
{
    for (int i = 0; i < option_count; i++) {
        const char *ratio = option_table[i].key, *steps = option_table[i].settles;
        if (steps == NULL) continue;
        if (by_set(load, steps)) displace(load, ratio, steps);
        if (by_set(load, ratio)) displace(load, steps, ratio);
    }
}

/* Whether tensors will live on a CUDA device. Looking for one takes a while and may warn, so for a
 * config that is refused anyway the key alone decides. */
static bool is_on_cuda(const Load *load)
{
    const Config *c = load->config;
    if (load->on_cuda == NULL || load->n_errors > 0) return c->device == DEVICE_CUDA;
    return load->on_cuda(c);
}

static void derive_precision(Load *load)
{
    Config *c = load->config;
    if (load_automatic(load, "bf16.enabled")) {
        c->bf16.enabled = !c->fp16.enabled && !c->fp64.enabled && is_on_cuda(load);
        load_derived(load, "bf16.enabled");
        load_routine(load, load_place(load, "bf16.enabled"), "bf16.enabled",
                     "\"auto\" is %s here (on where the device is CUDA)",
                     c->bf16.enabled ? "true" : "false");
    }
    if (load_automatic(load, "fp16.enabled")) {
        load_derived(load, "fp16.enabled");
        load_routine(load, load_place(load, "fp16.enabled"), "fp16.enabled",
                     "\"auto\" is false here");
    }
    if (!load_given(load, "gradient_clipping") && load->path != NULL)
        load_routine(load, load_place(load, "gradient_clipping"), "gradient_clipping",
                     "1.0 taken, DeepSpeed's default since mid-2026 (before: off)");
}

/* The value of a key that was given as "auto", from the width of the model. */
static void follow_width(Load *load, const char *key, int64_t *field, int64_t value)
{
    if (load_automatic(load, key)) load_follow(load, key, field, value);
}

/* DeepSpeed's default of overlap_comm, and what Hugging Face's trainer makes of "auto". */
static void derive_zero(Load *load)
{
    static const char overlap[] = "zero_optimization.overlap_comm";
    Config *c = load->config;
    int64_t hidden = c->model.hidden_size;
    if (!load_given(load, overlap) || load_automatic(load, overlap)) {
        c->zero_optimization.overlap_comm = c->zero_optimization.stage == 3;
        load_derived(load, overlap);
    }
    follow_width(load, "zero_optimization.reduce_bucket_size",
                 &c->zero_optimization.reduce_bucket_size, hidden * hidden);
    follow_width(load, "zero_optimization.stage3_prefetch_bucket_size",
                 &c->zero_optimization.stage3_prefetch_bucket_size, 9 * hidden * hidden / 10);
    follow_width(load, "zero_optimization.stage3_param_persistence_threshold",
                 &c->zero_optimization.stage3_param_persistence_threshold, 10 * hidden);
}

void derive_values(Load *load)
{
    /* First goes what the command line pushes aside, so that nothing follows from it. */
    displace_sources(load);
    displace_params(load);
    displace_steps(load);
    derive_model(load);
    derive_scheduler(load);
    derive_batch(load);
    derive_precision(load);
    derive_zero(load);
}
