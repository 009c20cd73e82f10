/* derive.c -- computes missing values from the given ones. */
#include "configs/reader/candidate_rules.h"
#include "configs/reader/load.h"

#include "model/core/min_max.h"

#include <stdlib.h>

static void derive_model(Load *load)
{
    Config *c = load->config;
    int64_t hidden = c->model.hidden_size, heads = c->model.num_attention_heads;
    /* If a size does not divide evenly, nothing is derived and check_model reports it. A rounded
     * size would silently train a different model. */
    load_follow(load, "model.num_key_value_heads", &c->model.num_key_value_heads, heads);
    if (hidden % heads == 0)
        load_follow(load, "model.head_dim", &c->model.head_dim, hidden / heads);
    load_follow(load, "model.intermediate_size", &c->model.intermediate_size,
                candidate_width(hidden, c->model.activation == ACTIVATION_SWIGLU));
    load_follow(load, "model.max_position_embeddings", &c->model.max_position_embeddings,
                c->data.seq_length);
    if (!load_given(load, "model.attention_bias")) {
        c->model.attention_bias = c->model.bias ? ATTENTION_BIAS_ALL : ATTENTION_BIAS_NONE;
        load_derived(load, "model.attention_bias");
    }
    if (!load_given(load, "model.mlp_bias")) {
        c->model.mlp_bias = c->model.bias;
        load_derived(load, "model.mlp_bias");
    }
}

/* Returns whether the key was given by --set. */
static bool by_set(const Load *load, const char *key)
{
    return load_given(load, key) && load_place(load, key).set > 0;
}

/* Resets `key` to its default and drops the findings about its value in the file, because `winner`
 * was given on the command line and replaces it. */
static void displace(Load *load, const char *key, const char *winner)
{
    int row = option_find(key);
    /* two --set that conflict are reported elsewhere */
    if (!load_given(load, key) || by_set(load, key)) return;
    load_forget(load, key); /* errors about a value that is no longer used are dropped */
    load_notice(load, load_place(load, key), key, "set aside for --set %s", winner);
    load_default(load, row); /* from here on, the file counts as not giving the key */
    load->origin[row] = (Origin){0};
}

/* A data source given by --set replaces the file's source, so --set data.text=my.txt is enough by
 * itself. */
static void displace_sources(Load *load)
{
    static const char *const source[] = {"data.train", "data.text", "data.corpus"};
    static const char *const validation[] = {"data.val", "data.val_text", NULL};
    int winner = -1;
    /* If two sources are given by --set, neither is displaced and check_data reports the
     * conflict. */
    for (int i = 0; i < 3; i++)
        if (by_set(load, source[i])) winner = i;
    for (int i = 0; i < 3 && winner >= 0; i++) {
        displace(load, source[i], source[winner]);
        if (validation[i] != NULL && i != winner) displace(load, validation[i], source[winner]);
    }
}

/* If a --set has chosen the type of the optimizer, scheduler or RoPE scaling, resets params in the
 * file that this type does not have. */
static void displace_params(Load *load)
{
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        const char *type = option_type_key(option);
        if (!option_applies(option, load->config) && by_set(load, type) && !load_wrong(load, type))
            displace(load, option->key, type);
    }
}

/* Drops errors about params in the file that belong to an optimizer which is not implemented, if
 * there is already an error about the type, or if a --set has chosen another type. */
static void forget_params(Load *load)
{
    static const char type[] = "optimizer.type", params[] = "optimizer.params.";
    if (!load_wrong(load, type) && !by_set(load, type)) return;
    for (int i = 0; i < known_count; i++) {
        const KnownKey *known = &known_table[i];
        bool of_file = load->seen[option_count + i].place.line > 0;
        if (known->feature != FEATURE_NONE && of_file &&
            strncmp(known->key, params, sizeof params - 1) == 0)
            load_forget(load, known->key);
    }
}

/* An explicit split of the layers given by --set replaces the file's partition rule, and a rule
 * given by --set replaces the file's explicit split. */
static void displace_cuts(Load *load)
{
    static const char split[] = "parallel.pipeline_split", partition[] = "pipeline.partition";
    if (by_set(load, split) && load->config->parallel.pipeline_split.count > 0)
        displace(load, partition, split);
    if (by_set(load, partition)) displace(load, split, partition);
}

/* A length given by --set as a ratio of the run replaces the same length given in steps by the
 * file, and the reverse. */
static void displace_steps(Load *load)
{
    for (int i = 0; i < option_count; i++) {
        const char *ratio = option_table[i].key, *steps = option_table[i].settles;
        if (steps == NULL) continue;
        if (by_set(load, steps)) displace(load, ratio, steps);
        if (by_set(load, ratio)) displace(load, steps, ratio);
    }
}

/* Converts train_tokens to whole steps, rounded up. If this is not possible, marks train_steps as
 * refused, so that the rules about the length of the run are skipped. */
static void derive_steps(Load *load)
{
    static const char tokens_key[] = "train_tokens", steps_key[] = "train_steps";
    static const char *const read[] = {tokens_key,
                                       "data.seq_length",
                                       "train_batch_size",
                                       "parallel.data",
                                       "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps",
                                       NULL};
    Config *c = load->config;
    int row = option_find(steps_key);
    int64_t batch = c->train_batch_size, length = c->data.seq_length,
            most = (int64_t)option_table[row].max;
    if (!load_given(load, tokens_key) || load_given(load, steps_key)) return;
    load->origin[row].wrong = true;
    /* A derived batch may be 0 or huge; this is reported elsewhere. */
    if (load_any_wrong(load, read) || batch <= 0 || batch > INT64_MAX / length) return;
    int64_t steps = (c->train_tokens - 1) / (batch * length) + 1;
    if (steps > most) {
        load_error(load, load_place(load, tokens_key), tokens_key,
                   "%lld steps of %lld tokens are more than %lld; write at most %lld",
                   (long long)steps, (long long)(batch * length), (long long)most,
                   (long long)(most * batch * length));
        return;
    }
    load->origin[row].wrong = false;
    load_follow(load, steps_key, &c->train_steps, steps);
}

/* The tokenizer must not have more ids (data.tokenizer_vocab_size) than the model
 * (model.vocab_size). If these two keys contradict each other, and one is given by --set, the other
 * one in the file is dropped. */
static void displace_vocabulary(Load *load)
{
    static const char model[] = "model.vocab_size", trained[] = "data.tokenizer_vocab_size";
    const Config *c = load->config;
    if (!load_given(load, model) || !load_given(load, trained) ||
        c->data.tokenizer_vocab_size <= c->model.vocab_size)
        return;
    if (by_set(load, trained)) displace(load, model, trained);
    if (by_set(load, model)) displace(load, trained, model);
}

/* Derives the size of a tokenizer that is trained on the text, unless it is given: as many ids as
 * the model has, up to the largest size that the key accepts. */
static void derive_vocabulary(Load *load)
{
    static const char model[] = "model.vocab_size", trained[] = "data.tokenizer_vocab_size";
    Config *c = load->config;
    const Option *option = &option_table[option_find(trained)];
    c->data.tokenizer_vocab_at_most = !load_given(load, trained);
    if (!load_given(load, model) || c->model.vocab_size < option->min) return;
    int64_t most = (int64_t)option->max;
    load_follow(load, trained, &c->data.tokenizer_vocab_size,
                c->model.vocab_size < most ? c->model.vocab_size : most);
}

/* Returns whether the tensors will be on a CUDA device. Looking for a device takes time and may
 * print warnings, so for a config that already has errors only the key `device` is considered. */
static bool is_on_cuda(const Load *load)
{
    const Config *c = load->config;
    if (load->context.on_cuda == NULL || load->n_errors > 0) return c->device == DEVICE_CUDA;
    return load->context.on_cuda(c);
}

static void derive_precision(Load *load)
{
    Config *c = load->config;
    /* Looking for a GPU takes time and may print warnings, so this comes late: if there are errors
     * by then, is_on_cuda does not look for one. */
    if (load_automatic(load, "bf16.enabled")) {
        c->bf16.enabled = !c->fp16.enabled && !c->fp64.enabled && is_on_cuda(load);
        load_derived(load, "bf16.enabled");
        load_routine(load, load_place(load, "bf16.enabled"), "bf16.enabled",
                     "\"auto\" is %s here (on where the device is CUDA)",
                     c->bf16.enabled ? "true" : "false");
    }
    /* Hugging Face's trainer replaces this "auto" by one of its own arguments, which do not exist
     * here. */
    if (load_automatic(load, "fp16.enabled")) {
        load_derived(load, "fp16.enabled");
        load_routine(load, load_place(load, "fp16.enabled"), "fp16.enabled",
                     "\"auto\" is false here");
    }
    /* Files written for an older DeepSpeed relied on another default. */
    if (!load_given(load, "gradient_clipping") && load->path != NULL)
        load_routine(load, load_place(load, "gradient_clipping"), "gradient_clipping",
                     "1.0 taken, DeepSpeed's default since mid-2026 (before: off)");
}

/* Derives the value that Hugging Face's trainer uses for a learning rate of "auto", and PyTorch's
 * default of weight_decay for files that ask for PyTorch's Adam. */
static void derive_optimizer(Load *load)
{
    static const char lr[] = "optimizer.params.lr", decay[] = "optimizer.params.weight_decay";
    Config *c = load->config;
    if (load_automatic(load, lr)) {
        c->optimizer.params.lr = 5e-5;
        load_derived(load, lr);
        load_notice(load, load_place(load, lr), lr,
                    "no trainer fills it in here; 5e-5 taken, Hugging Face's default");
    }
    if (!c->optimizer.params.torch_adam || !config_decay_is_decoupled(c) ||
        load_given(load, decay) || load_automatic(load, decay))
        return;
    c->optimizer.params.weight_decay = 0.01;
    load_derived(load, decay);
}

/* Derives a key that was given as "auto" from the width of the model. If the key was left out, it
 * has DeepSpeed's default, which does not depend on the model. */
static void follow_width(Load *load, const char *key, int64_t *field, int64_t value)
{
    if (load_automatic(load, key)) load_follow(load, key, field, value);
}

/* Returns whether each of several ranks will have a GPU of its own. Looking for GPUs takes time and
 * may print warnings, so it is not done for a config that already has errors. */
static bool has_own_gpus(const Load *load)
{
    const Config *c = load->config;
    bool asks = load->context.own_gpus != NULL && load->n_errors == 0 && c->world > 1;
    return asks && load->context.own_gpus(c);
}

/* Derives overlap_comm and checkpoint.writers. overlap_comm is on at stage 3, as in DeepSpeed, and
 * also if each rank has its own GPU, because GPUs can communicate while they compute. In that case,
 * several ranks also write a checkpoint. Neither key changes results. */
static void derive_exchange(Load *load)
{
    static const char overlap[] = "zero_optimization.overlap_comm",
                      writers[] = "checkpoint.writers";
    const int64_t MOST_WRITERS = 8;
    Config *c = load->config;
    bool overlap_open = !load_given(load, overlap) || load_automatic(load, overlap),
         stage_3 = c->zero_optimization.stage == 3;
    bool asked = (overlap_open && !stage_3) || !load_given(load, writers);
    bool own = asked && has_own_gpus(load);
    if (overlap_open) {
        c->zero_optimization.overlap_comm = stage_3 || own;
        load_derived(load, overlap);
    }
    load_follow(load, writers, &c->checkpoint.writers, own ? min_i64(c->world, MOST_WRITERS) : 1);
}

/* Derives the values that Hugging Face's trainer uses for "auto" in the sizes of ZeRO. */
static void derive_zero(Load *load)
{
    Config *c = load->config;
    int64_t hidden = c->model.hidden_size;
    follow_width(load, "zero_optimization.reduce_bucket_size",
                 &c->zero_optimization.reduce_bucket_size, hidden * hidden);
    follow_width(load, "zero_optimization.stage3_prefetch_bucket_size",
                 &c->zero_optimization.stage3_prefetch_bucket_size, 9 * hidden * hidden / 10);
    follow_width(load, "zero_optimization.stage3_param_persistence_threshold",
                 &c->zero_optimization.stage3_param_persistence_threshold, 10 * hidden);
}

/* The stored config of a run contains the values that depended on its device. A run that was stored
 * before these keys existed used model.head_chunk_rows 0, model.fused_gelu false and portable
 * attention kernels. If the run is resumed with a recomputation policy that does not allow the
 * stored fused_gelu, the stored value is dropped, because the user did not write it. */
static void derive_stored(Load *load)
{
    static const char gelu[] = "model.fused_gelu", rows[] = "model.head_chunk_rows",
                      attention[] = "cuda.attention";
    Config *c = load->config;
    if (!load->context.stored && !load->context.resumed) return;
    if (c->model.fused_gelu && !by_set(load, gelu) && config_rounds_before_gelu(c)) {
        load_default(load, option_find(gelu));
        load_derived(load, gelu);
    }
    if (!load->context.stored) return;
    if (!load_given(load, gelu)) load_derived(load, gelu);
    if (!load_given(load, attention)) load_derived(load, attention);
    if (load_given(load, rows)) return;
    c->model.head_chunk_rows = 0;
    load_derived(load, rows);
}

void derive_values(Load *load)
{
    /* Values that the command line displaces are removed first, so that nothing is derived from
     * them. */
    displace_sources(load);
    displace_vocabulary(load);
    displace_params(load);
    forget_params(load);
    displace_steps(load);
    displace_cuts(load);
    derive_model(load);
    derive_vocabulary(load);
    derive_optimizer(load);
    /* The grid is derived before the batch: parallel.data is the number of ranks / (tensor x
     * pipeline), and the batch is shared by all data-parallel ranks. */
    fit_opened(load);
    derive_parallel(load);
    derive_world(load);
    derive_shard(load);
    fit_opened_shard(load);
    derive_batch(load);
    fit_opened_rows(load);
    /* The number of steps may follow from the batch, and schedules follow from that number. */
    derive_steps(load);
    derive_scheduler(load);
    derive_precision(load);
    derive_zero(load);
    derive_exchange(load);
    derive_stored(load);
}
