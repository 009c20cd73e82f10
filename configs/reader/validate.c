/* validate.c -- checks the rules between keys. All rules are checked, and each error says what to
 * write instead. A rule is skipped if one of its values was already refused. */
#include "configs/reader/load.h"

#include <stdio.h>
#include <string.h>

/* Reports an error at the position of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)
#define UNUSABLE(load, ...)   load_any_wrong(load, (const char *const[]){__VA_ARGS__, NULL})

/* Returns whether the user gave the key. In a stored config, only keys given by --set count,
 * because the file also contains keys that the user did not write. */
static bool user_wrote(const Load *load, const char *key)
{
    bool stored = load->context.stored || load->context.resumed;
    return load_given(load, key) && (!stored || load_place(load, key).set > 0);
}

/* Reports a sequence length above model.max_position_embeddings. This is an error with RoPE as
 * well, because the table of its angles has max_position_embeddings rows. The error names the key
 * that was given. */
static void refuse_length(Load *load)
{
    static const char length_key[] = "data.seq_length",
                      positions_key[] = "model.max_position_embeddings";
    const Config *c = load->config;
    char shorter[64] = "", more[64], other[128] = "";
    if (near_value(load, RULE_LENGTH, CANDIDATE_LENGTH, -1, shorter, sizeof shorter))
        snprintf(other, sizeof other, "%s %s or less, or ", length_key, shorter);
    if (!near_value(load, RULE_LENGTH, CANDIDATE_POSITIONS, 1, more, sizeof more))
        snprintf(more, sizeof more, "%lld", (long long)c->data.seq_length);
    WRONG(load, load_given(load, length_key) ? length_key : positions_key,
          "sequences of data.seq_length %lld do not fit max_position_embeddings %lld; write "
          "%s%s %s or more",
          (long long)c->data.seq_length, (long long)c->model.max_position_embeddings, other,
          positions_key, more);
}

static void check_model(Load *load)
{
    const Config *c = load->config;
    int64_t hidden = c->model.hidden_size, heads = c->model.num_attention_heads,
            kv = c->model.num_key_value_heads;
    char near[64], head[96] = "", other[128] = "";
    if (load_breaks(load, RULE_HIDDEN)) {
        if (near_values(load, RULE_HIDDEN, CANDIDATE_HIDDEN, 0, near, sizeof near))
            snprintf(other, sizeof other, "write %s, or ", near);
        WRONG(load, "model.hidden_size",
              "%lld is not a multiple of num_attention_heads %lld; %sgive model.head_dim",
              (long long)hidden, (long long)heads, other);
    }
    if (load_breaks(load, RULE_KV) &&
        near_values(load, RULE_KV, CANDIDATE_KV, 0, near, sizeof near))
        WRONG(load, "model.num_key_value_heads",
              "%lld does not divide num_attention_heads %lld; write %s", (long long)kv,
              (long long)heads, near);
    if (load_breaks(load, RULE_ROPE)) {
        if (near_values(load, RULE_ROPE, CANDIDATE_HEAD_DIM, 0, near, sizeof near))
            snprintf(head, sizeof head, "model.head_dim %s, or ", near);
        WRONG(load, load_given(load, "model.head_dim") ? "model.head_dim" : "model.position",
              "position \"rope\" turns pairs, and head_dim is %lld; write %smodel.position "
              "\"learned\"",
              (long long)c->model.head_dim, head);
    }
    if (load_breaks(load, RULE_LENGTH)) refuse_length(load);
    if (user_wrote(load, "model.rope_theta") && c->model.position != POSITION_ROPE)
        load_notice(load, load_place(load, "model.rope_theta"), "model.rope_theta",
                    "accepted, without effect: position is \"learned\"");
}

static void check_rope_scaling(Load *load)
{
    static const char type[] = "model.rope_scaling.type",
                      low[] = "model.rope_scaling.low_freq_factor",
                      high[] = "model.rope_scaling.high_freq_factor";
    static const char *const needed[][2] = {
        {"model.rope_scaling.factor", "8 in Llama 3.1"},
        {low, "1 in Llama 3.1"},
        {high, "4 in Llama 3.1"},
        {"model.rope_scaling.original_max_position_embeddings", "8192 in Llama 3.1"}};
    const RopeScaling *scaling = &load->config->model.rope_scaling;
    if (scaling->type != ROPE_SCALING_LLAMA3 || load_wrong(load, type)) return;
    for (int i = 0; i < 4; i++)
        if (!load_given(load, needed[i][0]))
            load_error(load, load_place(load, type), needed[i][0],
                       "type \"llama3\" needs it; write a number, %s", needed[i][1]);
    if (load_given(load, low) && load_given(load, high) && !UNUSABLE(load, low, high) &&
        scaling->high_freq_factor <= scaling->low_freq_factor)
        WRONG(load, high,
              "%g is not above low_freq_factor %g, so no rotation is between slow and fast; write "
              "a larger number",
              scaling->high_freq_factor, scaling->low_freq_factor);
    if (load->config->model.position != POSITION_ROPE && !load_wrong(load, "model.position")) {
        WRONG(load, type,
              "\"llama3\" slows rotations down, and position is \"learned\"; write type \"none\", "
              "or model.position \"rope\"");
        load_remedy(load, "model.rope_scaling=null");
    }
}

static void check_fused_gelu(Load *load)
{
    const Config *c = load->config;
    if (!c->model.fused_gelu || load_wrong(load, "model.fused_gelu")) return;
    if (c->model.activation != ACTIVATION_GELU && !load_wrong(load, "model.activation"))
        WRONG(load, "model.fused_gelu",
              "true is for activation \"gelu\", and activation is \"%s\"; write false",
              option_choice_name(&option_table[option_find("model.activation")],
                                 c->model.activation));
    if (load_breaks(load, RULE_GELU))
        WRONG(
            load, "activation_checkpointing.policy",
            "\"selective\" makes gelu again from rounded values, and model.fused_gelu takes it of "
            "the unrounded; in %s write \"full\" or \"none\", or model.fused_gelu false",
            c->bf16.enabled ? "bf16" : "fp16");
}

static void check_data(Load *load)
{
    const Config *c = load->config;
    bool train = c->data.train.count > 0, text = c->data.text.count > 0,
         corpus = c->data.corpus != NULL;
    int sources = train + text + corpus;
    if (UNUSABLE(load, "data.train", "data.text", "data.corpus")) return;
    /* Without a config file no data are needed: benchmarks use random tokens. The stored config of
     * an imported run names none until the run is trained. */
    if (sources == 0 && load->path != NULL && !load->context.stored) {
        load_error(load, load->root, "data",
                   load->context.resumed
                       ? "this run names nothing to train on yet; add --set data.text=my.txt (text "
                         "files) or --set data.train='shards/*.bin' (token shards)"
                       : "nothing to train on; write one of data.text (text files), data.train "
                         "(token shards), data.corpus");
        load_remedy(load, "data.text=my.txt");
    }
    if (sources > 1) {
        const char *second = corpus ? "data.corpus" : "data.text",
                   *first = train ? "data.train" : "data.text";
        WRONG(load, second, "%s is given too; keep one of data.train, data.text and data.corpus",
              first);
    }
    if (sources != 1) return;
    /* Validation data use the same tokenizer, so they must be of the same kind as the training
     * data. */
    if (c->data.val.count > 0 && !train)
        WRONG(
            load, "data.val",
            "token shards to validate on go with data.train; write data.val_text beside data.text");
    if (c->data.val_text.count > 0 && !text)
        WRONG(load, "data.val_text", "text to validate on goes with data.text; %s",
              train ? "write data.val beside data.train" : "a corpus has its own");
    if (load_given(load, "data.tokenizer") && user_wrote(load, "data.tokenizer_vocab_size"))
        load_notice(load, load_place(load, "data.tokenizer_vocab_size"),
                    "data.tokenizer_vocab_size",
                    "accepted, without effect: data.tokenizer is given");
}

static void check_precision(Load *load)
{
    const Config *c = load->config;
    const char *keys[] = {"fp16.enabled", "bf16.enabled", "fp64.enabled"};
    const bool on[] = {c->fp16.enabled, c->bf16.enabled, c->fp64.enabled};
    for (int i = 0, last = -1; i < 3; i++) {
        /* A value that was refused already has an error, and it is not known what it
         * contradicts. */
        if (!on[i] || load_wrong(load, keys[i])) continue;
        if (last >= 0) {
            WRONG(load, keys[i], "%s is true too; only one of fp16, bf16 and fp64 can be",
                  keys[last]);
            /* fp16 is dropped and not bf16, because bf16 needs no loss scale */
            if (on[0] && on[1] && !on[2]) load_remedy(load, "%s=false", keys[0]);
        }
        last = i;
    }
    /* The ranges of these two keys include 0, because a fixed scale reads neither of them. The
     * rules are checked without fp16, too, so that a config stays valid when fp16 is turned on. */
    bool dynamic = c->fp16.loss_scale == 0;
    if (dynamic && c->fp16.loss_scale_window == 0 && !load_wrong(load, "fp16.loss_scale_window")) {
        WRONG(load, "fp16.loss_scale_window",
              "0 with a dynamic loss scale; write a number of steps, such as 1000");
        load_remedy(load, "fp16.loss_scale_window=1000");
    }
    if (dynamic && c->fp16.min_loss_scale == 0 && !load_wrong(load, "fp16.min_loss_scale")) {
        WRONG(load, "fp16.min_loss_scale",
              "0 with a dynamic loss scale; write a floor above 0, such as 1");
        load_remedy(load, "fp16.min_loss_scale=1");
    }
    if (c->bf16.bf16_master_weights_and_grads && !c->bf16.enabled &&
        !load_wrong(load, "bf16.enabled"))
        WRONG(load, "bf16.bf16_master_weights_and_grads",
              "true is about bf16 weights, and bf16.enabled is false; write true there, or false "
              "here");
    const char *states = "bf16.bf16_optimizer_states";
    if (c->bf16.bf16_optimizer_states && !load_wrong(load, states) &&
        (!c->bf16.enabled || c->optimizer.type == OPTIMIZER_SGD))
        load_notice(load, load_place(load, states), states,
                    "accepted, without effect here (it is about %s)",
                    c->bf16.enabled ? "AdamW's and Adam's moments, and optimizer.type is SGD"
                                    : "moments of bf16 weights, and bf16.enabled is false");
    if (c->fp64.enabled && c->data_types.grad_accum_dtype == GRAD_DTYPE_F32)
        WRONG(load, "data_types.grad_accum_dtype",
              "\"fp32\" would lose what fp64 keeps; write \"auto\"");
    if (c->data_types.grad_accum_dtype == GRAD_DTYPE_BF16 && !c->bf16.enabled &&
        !load_wrong(load, "bf16.enabled"))
        WRONG(load, "data_types.grad_accum_dtype",
              "\"bf16\" goes with bf16 weights, and bf16.enabled is false; write \"auto\"");
    if (c->fp64.enabled && c->communication_data_type != GRAD_DTYPE_AUTO)
        WRONG(load, "communication_data_type", "\"%s\" would lose what fp64 keeps; write null",
              option_choice_name(&option_table[option_find("communication_data_type")],
                                 (int)c->communication_data_type));
    /* With device "auto" there is no contradiction: fp64 then selects the CPU. */
    if (c->fp64.enabled && c->device == DEVICE_CUDA && !load_wrong(load, "device"))
        WRONG(load, "fp64.enabled", "fp64 is for the CPU; write device \"cpu\" or \"auto\"");
}

static void check_optimizer(Load *load)
{
    const Config *c = load->config;
    if (load_wrong(load, "optimizer.type")) return;
    if (c->optimizer.type == OPTIMIZER_SGD && !load_given(load, "optimizer.params.lr") &&
        !load_automatic(load, "optimizer.params.lr"))
        WRONG(load, "optimizer.type",
              "SGD has no default learning rate; write optimizer.params.lr");
    if (c->optimizer.type == OPTIMIZER_SGD && c->optimizer.params.nesterov &&
        (c->optimizer.params.momentum == 0 || c->optimizer.params.dampening != 0) &&
        !UNUSABLE(load, "optimizer.params.momentum", "optimizer.params.dampening"))
        WRONG(load, "optimizer.params.nesterov",
              "true needs momentum above 0 and dampening 0; write momentum 0.9, say, or nesterov "
              "false");
    if (c->optimizer.type == OPTIMIZER_ADAMW && !c->optimizer.params.adam_w_mode)
        load_notice(load, load_place(load, "optimizer.params.adam_w_mode"),
                    "optimizer.params.adam_w_mode",
                    "false has no effect on type AdamW, as in DeepSpeed; type Adam reads it");
}

/* Reports params that the chosen optimizer, scheduler or RoPE scaling does not have. DeepSpeed
 * would end with a TypeError. */
static void check_types(Load *load)
{
    const Config *c = load->config;
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        if (!load_given(load, option->key) || option_applies(option, c)) continue;
        const char *type_key = option_type_key(option);
        if (load_wrong(load, type_key)) continue;
        const Option *types = &option_table[option_find(type_key)];
        /* List the types that have this key, because the user may have meant one of them. */
        char takers[160] = "";
        for (const Choice *t = types->choices; t->name != NULL; t++)
            if (t->value >= 0 && (option->types >> t->value & 1u) != 0)
                snprintf(takers + strlen(takers), sizeof takers - strlen(takers), "%s%s",
                         *takers ? ", " : "", t->name);
        WRONG(load, option->key, "%s does not take it (only %s); remove it, or change %s",
              option_choice_name(types, option_type(option, c)), takers, type_key);
        load_remedy(load, "%s=null", option->key);
    }
}

/* Checks keys that scale gradients before or after sums over ranks. DeepSpeed's reduce-scatter at
 * stages 2 and 3 does not support them and refuses them. In all other cases they have no effect
 * here. */
static void check_scaling(Load *load)
{
    static const char *const keys[] = {"prescale_gradients", "gradient_predivide_factor"};
    const Config *c = load->config;
    const bool asked[] = {c->prescale_gradients, c->gradient_predivide_factor != 1};
    bool scattered = load_breaks(load, RULE_SCALED);
    for (int i = 0; i < 2; i++) {
        if (!asked[i] || load_wrong(load, keys[i])) continue;
        if (scattered)
            WRONG(
                load, keys[i],
                "it does not go with reduce_scatter at stage %lld, in DeepSpeed either; write %s, "
                "or zero_optimization.reduce_scatter false",
                (long long)c->zero_optimization.stage, i == 0 ? "false" : "1");
        if (scattered)
            load_remedy(load, "%s=%s", keys[i], i == 0 ? "false" : "1");
        else
            load_notice(load, load_place(load, keys[i]), keys[i],
                        "accepted, without effect: the loss is divided by the whole batch where it "
                        "is computed, so sums over ranks need no factor");
    }
}

static void check_zero(Load *load)
{
    static const char key[] = "zero_optimization.stage", sum_key[] = "gradient_allreduce_op";
    const Config *c = load->config;
    long long stage = c->zero_optimization.stage;
    /* The grid is not known if the config was read without a number of ranks. */
    bool settled = c->world > 0 && !UNUSABLE(load, key, "parallel.data", "parallel.pipeline");
    if (stage > 0 && settled && c->parallel.data == 1)
        load_notice(load, load_place(load, key), key,
                    "%lld: one %srank has nothing to shard, so it trains as stage 0 does", stage,
                    c->world > 1 ? "data-parallel " : "");
    else if (stage >= 2 && settled && c->parallel.pipeline > 1)
        load_notice(load, load_place(load, key), key,
                    "%lld with a pipeline: gradients are summed over ranks%s for every "
                    "micro-batch; stage 1 does it once a step",
                    stage, stage == 3 ? ", and weights gathered," : "");
    if (c->comms_logger.enabled && c->world == 1 && !UNUSABLE(load, "comms_logger.enabled"))
        load_notice(load, load_place(load, "comms_logger.enabled"), "comms_logger.enabled",
                    "one rank sends nothing, so there is nothing to print");
    check_scaling(load);
    if (load_breaks(load, RULE_SUM))
        WRONG(load, sum_key, "\"sum\" is for the stages 0 to 2, and %s is 3; write \"mean\"", key);
}

static bool has_validation(const Config *c)
{
    bool text = c->data.train.count == 0;
    return c->data.val.count > 0 || c->data.val_text.count > 0 ||
           (text && c->data.val_fraction > 0);
}

/* Refuses eval.sets if there are no main validation data, which determine the best checkpoint. A
 * stored config is accepted, because it may be opened only for its sets. */
static void check_sets(Load *load)
{
    static const char key[] = "eval.sets";
    const Config *c = load->config;
    if (c->eval.sets.count == 0 || load->context.stored || has_validation(c) ||
        UNUSABLE(load, key, "data.val_fraction"))
        return;
    load_error(load, load_place(load, key), key,
               "there is no main validation data, which the best checkpoint follows; give one of "
               "the sets as %s",
               c->data.train.count > 0 ? "data.val" : "data.val_text");
    load_remedy(load, "%s=null", key);
}

/* Reports a patience that can never end the run. */
static void check_patience(Load *load)
{
    static const char key[] = "eval.patience";
    const Config *c = load->config;
    bool val = has_validation(c);
    if (c->eval.patience == 0 || UNUSABLE(load, key, "eval.interval", "data.val_fraction")) return;
    if (c->eval.interval == 0 || !val)
        load_notice(load, load_place(load, key), key, "%lld, without effect: %s",
                    (long long)c->eval.patience,
                    val ? "eval.interval is 0, so only the end is evaluated"
                        : "there is no validation data");
}

void validate_config(Load *load)
{
    load->candidate = candidate_of_load(load);
    load->broken = candidate_broken(&load->candidate);
    check_batch(load);
    check_model(load);
    check_rope_scaling(load);
    check_parallel(load);
    check_fused_gelu(load);
    check_data(load);
    check_precision(load);
    check_optimizer(load);
    check_types(load);
    check_scheduler(load);
    check_zero(load);
    offload_validate(load);
    checkpoint_validate(load);
    check_patience(load);
    health_validate(load);
    attention_validate(load);
    check_sets(load);
}
