/* derive.c -- values that follow from other values, filled in where they were not given. */
#include "configs/load.h"

#include <stdlib.h>
#include <string.h>

/* Sets an integer that was not given; leaves it where what it follows from was refused. */
static void follow(Load *load, const char *key, int64_t *field, int64_t value)
{
    if (load_given(load, key) || value <= 0) return;
    *field = value;
    load_derived(load, key);
}

static void derive_model(Load *load)
{
    Config *c = load->config;
    int64_t hidden = c->model.hidden_size, heads = c->model.num_attention_heads;
    int64_t narrow =
        (8 * hidden + 2) / 3; /* swiglu has three matrices: 8/3 keeps the parameters of 4 */
    follow(load, "model.num_key_value_heads", &c->model.num_key_value_heads, heads);
    if (hidden % heads == 0) follow(load, "model.head_dim", &c->model.head_dim, hidden / heads);
    follow(load, "model.intermediate_size", &c->model.intermediate_size,
           c->model.activation == ACTIVATION_SWIGLU ? (narrow + 63) / 64 * 64 : 4 * hidden);
    follow(load, "model.max_position_embeddings", &c->model.max_position_embeddings,
           c->data.seq_length);
}

static void derive_scheduler(Load *load)
{
    Config *c = load->config;
    SchedulerType type = c->scheduler.type;
    if (type == SCHEDULER_WARMUP_DECAY_LR || type == SCHEDULER_WARMUP_COSINE_LR ||
        type == SCHEDULER_WSD)
        follow(load, "scheduler.params.total_num_steps", &c->scheduler.params.total_num_steps,
               c->train_steps);
    if (type == SCHEDULER_WSD)
        follow(load, "scheduler.params.decay_num_steps", &c->scheduler.params.decay_num_steps,
               (c->scheduler.params.total_num_steps + 4) / 5);
    if (!load_given(load, "scheduler.params.warmup_max_lr") &&
        (type == SCHEDULER_WARMUP_LR || type == SCHEDULER_WARMUP_DECAY_LR)) {
        bool own =
            type == SCHEDULER_WARMUP_LR || load_automatic(load, "scheduler.params.warmup_max_lr");
        c->scheduler.params.warmup_max_lr = own ? c->optimizer.params.lr : 0.001;
        load_derived(load, "scheduler.params.warmup_max_lr");
    }
    if (type != SCHEDULER_ONE_CYCLE) return;
    follow(load, "scheduler.params.cycle_second_step_size",
           &c->scheduler.params.cycle_second_step_size, c->scheduler.params.cycle_first_step_size);
    if (load_given(load, "scheduler.params.cycle_second_stair_count")) return;
    c->scheduler.params.cycle_second_stair_count = c->scheduler.params.cycle_first_stair_count;
    load_derived(load, "scheduler.params.cycle_second_stair_count");
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
    int64_t dp = c->parallel.data;
    bool train = load_given(load, train_key), micro = load_given(load, micro_key),
         accum = load_given(load, accum_key);
    bool automatic = load_automatic(load, micro_key) ||
                     (load_automatic(load, train_key) && !train) || load->path == NULL;
    int64_t *T = &c->train_batch_size, *M = &c->train_micro_batch_size_per_gpu,
            *A = &c->gradient_accumulation_steps;
    if (load_wrong(load, train_key) || load_wrong(load, micro_key) || load_wrong(load, accum_key) ||
        load_wrong(load, "parallel.data"))
        return;
    if (!micro && automatic) {
        follow(load, micro_key, M, automatic_micro_batch(train ? *T / dp / (accum ? *A : 1) : 0));
        if (load->path != NULL)
            load_notice(load, load_place(load, micro_key), micro_key,
                        "no trainer fills it in here; %lld taken", (long long)*M);
        micro = true;
    }
    if (train && micro) {
        follow(load, accum_key, A, *T / *M / dp);
    } else if (train) {
        follow(load, accum_key, A, 1);
        follow(load, micro_key, M, *T / dp / *A);
    } else if (micro) {
        follow(load, accum_key, A, 1);
        follow(load, train_key, T, *M * *A * dp);
    }
}

/* Whether the key was given by --set. */
static bool by_set(const Load *load, const char *key)
{
    return load_given(load, key) && load_place(load, key).set > 0;
}

/* Takes back what the file said about `key`, because of `winner` on the command line. */
static void displace(Load *load, const char *key, const char *winner)
{
    int row = option_find(key);
    if (!load_given(load, key) || by_set(load, key)) return;
    load_notice(load, load_place(load, key), key, "set aside for --set %s", winner);
    load_default(load, row);
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

/* Likewise a type on the command line that does not take the params in the file. */
static void displace_params(Load *load)
{
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        const char *type =
            strncmp(option->key, "optimizer.", 10) == 0 ? "optimizer.type" : "scheduler.type";
        if (!option_applies(option, load->config) && by_set(load, type) && !load_wrong(load, type))
            displace(load, option->key, type);
    }
}

static void derive_precision(Load *load)
{
    Config *c = load->config;
    if (load_automatic(load, "bf16.enabled")) {
        c->bf16.enabled = c->device == DEVICE_CUDA;
        load_derived(load, "bf16.enabled");
        load_notice(load, load_place(load, "bf16.enabled"), "bf16.enabled",
                    "\"auto\" is %s here (on where the device is CUDA)",
                    c->bf16.enabled ? "true" : "false");
    }
    if (load_automatic(load, "fp16.enabled")) {
        load_derived(load, "fp16.enabled");
        load_notice(load, load_place(load, "fp16.enabled"), "fp16.enabled",
                    "\"auto\" is false here");
    }
    if (!load_given(load, "gradient_clipping") && load->path != NULL)
        load_notice(load, load_place(load, "gradient_clipping"), "gradient_clipping",
                    "1.0 taken, DeepSpeed's default since mid-2026 (before: off)");
}

void derive_values(Load *load)
{
    displace_sources(load);
    displace_params(load);
    derive_model(load);
    derive_scheduler(load);
    derive_batch(load);
    derive_precision(load);
}
