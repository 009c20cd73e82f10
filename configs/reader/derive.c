/* derive.c -- values that follow from other values, filled in where they were not given. */
#include "configs/reader/load.h"

#include <stdlib.h>

static void derive_model(Load *load)
{
    Config *c = load->config;
    int64_t hidden = c->model.hidden_size, heads = c->model.num_attention_heads;
    int64_t narrow =
        (8 * hidden + 2) / 3; /* swiglu has three matrices: 8/3 keeps the parameters of 4 */
    /* Where a size does not divide, check_model says so; a rounded one would be trained instead. */
    load_follow(load, "model.num_key_value_heads", &c->model.num_key_value_heads, heads);
    if (hidden % heads == 0)
        load_follow(load, "model.head_dim", &c->model.head_dim, hidden / heads);
    load_follow(load, "model.intermediate_size", &c->model.intermediate_size,
                c->model.activation == ACTIVATION_SWIGLU ? (narrow + 63) / 64 * 64 : 4 * hidden);
    load_follow(load, "model.max_position_embeddings", &c->model.max_position_embeddings,
                c->data.seq_length);
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
    /* Two on the command line are an error of check_data's, and neither is set aside. */
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

/* In the same way layers cut by hand set aside a rule to cut them by, and a rule those. */
static void displace_cuts(Load *load)
{
    static const char split[] = "parallel.pipeline_split", partition[] = "pipeline.partition";
    if (by_set(load, split) && load->config->parallel.pipeline_split.count > 0)
        displace(load, partition, split);
    if (by_set(load, partition)) displace(load, split, partition);
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
    if (load->context.on_cuda == NULL || load->n_errors > 0) return c->device == DEVICE_CUDA;
    return load->context.on_cuda(c);
}

static void derive_precision(Load *load)
{
    Config *c = load->config;
    /* Last of all, because a search for a GPU takes a while and may warn. */
    if (load_automatic(load, "bf16.enabled")) {
        c->bf16.enabled = !c->fp16.enabled && !c->fp64.enabled && is_on_cuda(load);
        load_derived(load, "bf16.enabled");
        load_routine(load, load_place(load, "bf16.enabled"), "bf16.enabled",
                     "\"auto\" is %s here (on where the device is CUDA)",
                     c->bf16.enabled ? "true" : "false");
    }
    /* Hugging Face's trainer would take it from its own arguments. */
    if (load_automatic(load, "fp16.enabled")) {
        load_derived(load, "fp16.enabled");
        load_routine(load, load_place(load, "fp16.enabled"), "fp16.enabled",
                     "\"auto\" is false here");
    }
    /* The default of a file written for an older DeepSpeed was another. */
    if (!load_given(load, "gradient_clipping") && load->path != NULL)
        load_routine(load, load_place(load, "gradient_clipping"), "gradient_clipping",
                     "1.0 taken, DeepSpeed's default since mid-2026 (before: off)");
}

/* The value of a key that was given as "auto", from the width of the model. Left out, the key has
 * DeepSpeed's default instead, which does not know the model. */
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
    displace_cuts(load);
    derive_model(load);
    derive_scheduler(load);
    /* The grid before the batch: data-parallel ranks are what tensor and pipeline leave of the
     * ranks, and the batch is that of all data-parallel ranks. */
    fit_opened(load);
    derive_parallel(load);
    derive_world(load);
    derive_batch(load);
    fit_opened_rows(load);
    derive_precision(load);
    derive_zero(load);
}
