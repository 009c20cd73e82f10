/* candidate_of.c -- reads the numbers of a candidate from a config; see candidate.h. */
#include "configs/reader/candidate_rules.h"
#include "configs/reader/load.h"

static const char *const names[CANDIDATE_KEYS] = {
    [CANDIDATE_ACCUMULATION] = "gradient_accumulation_steps",
    [CANDIDATE_MICRO] = "train_micro_batch_size_per_gpu",
    [CANDIDATE_DATA] = "parallel.data",
    [CANDIDATE_SCHEDULE] = "parallel.schedule",
    [CANDIDATE_CHUNKS] = "parallel.pipeline_chunks",
    [CANDIDATE_TENSOR] = "parallel.tensor",
    [CANDIDATE_PIPELINE] = "parallel.pipeline",
    [CANDIDATE_BATCH] = "train_batch_size",
    [CANDIDATE_SEQUENCE] = "parallel.sequence_parallel",
    [CANDIDATE_LENGTH] = "data.seq_length",
    [CANDIDATE_POSITIONS] = "model.max_position_embeddings",
    [CANDIDATE_KV] = "model.num_key_value_heads",
    [CANDIDATE_HEAD_DIM] = "model.head_dim",
    [CANDIDATE_WIDTH] = "model.intermediate_size",
    [CANDIDATE_HIDDEN] = "model.hidden_size",
    [CANDIDATE_HEADS] = "model.num_attention_heads",
    [CANDIDATE_LAYERS] = "model.num_layers",
    [CANDIDATE_SPLIT] = "parallel.pipeline_split",
    [CANDIDATE_ROPE] = "model.position",
    [CANDIDATE_ZERO] = "zero_optimization.stage",
    [CANDIDATE_SUM] = "gradient_allreduce_op",
    [CANDIDATE_SCATTER] = "zero_optimization.reduce_scatter",
    [CANDIDATE_SCALED] = "prescale_gradients",
    [CANDIDATE_RECOMPUTE] = "activation_checkpointing.policy",
    [CANDIDATE_FUSED] = "model.fused_gelu",
    [CANDIDATE_SHARD] = "parallel.shard",
};

const char *candidate_key_name(CandidateKey key)
{
    return names[key];
}

/* Returns the value of the key in this config as a number. */
static int64_t value_of(const Config *config, CandidateKey key)
{
    const Option *option = &option_table[option_find(names[key])];
    const void *field = option_field(option, config);
    switch (key) {
    case CANDIDATE_SCHEDULE: return config->parallel.schedule == SCHEDULE_INTERLEAVED;
    case CANDIDATE_SPLIT: return config->parallel.pipeline_split.count;
    case CANDIDATE_ROPE: return config->model.position == POSITION_ROPE;
    case CANDIDATE_SUM: return config->gradient_allreduce_op == GRADIENT_SUM;
    case CANDIDATE_SCALED:
        return config->prescale_gradients || config->gradient_predivide_factor != 1;
    case CANDIDATE_RECOMPUTE: return config->activation_checkpointing.policy;
    case CANDIDATE_FUSED: return config->model.fused_gelu && dtype_size(config_dtype(config)) == 2;
    default: break;
    }
    return option->type == OPTION_BOOL ? *(const bool *)field : *(const int64_t *)field;
}

/* The keys that are derived from other keys unless they are given. */
enum {
    FOLLOWING = KEY_BIT(CANDIDATE_ACCUMULATION) | KEY_BIT(CANDIDATE_MICRO) |
                KEY_BIT(CANDIDATE_BATCH) | KEY_BIT(CANDIDATE_DATA) | KEY_BIT(CANDIDATE_SCHEDULE) |
                KEY_BIT(CANDIDATE_POSITIONS) | KEY_BIT(CANDIDATE_KV) | KEY_BIT(CANDIDATE_HEAD_DIM) |
                KEY_BIT(CANDIDATE_WIDTH)
};

static Candidate candidate_of(const Config *config, const Origin *origin, int64_t ranks)
{
    Candidate c = {.swiglu = config->model.activation == ACTIVATION_SWIGLU};
    for (int key = 0; key < CANDIDATE_KEYS; key++) {
        if (names[key] == NULL) continue;
        const Origin *from = &origin[option_find(names[key])];
        c.value[key] = value_of(config, key);
        c.most[key] = (int64_t)option_table[option_find(names[key])].max;
        if (origin_given(from) || (FOLLOWING & KEY_BIT(key)) == 0) c.fixed |= KEY_BIT(key);
        if (from->wrong) c.unusable |= KEY_BIT(key);
    }
    c.most[CANDIDATE_SHARD] = CONFIG_MAX_RANKS;
    static const CandidateKey axes[] = {CANDIDATE_DATA, CANDIDATE_TENSOR, CANDIDATE_PIPELINE};
    for (int i = 0; i < 3; i++) {
        c.most[axes[i]] = CONFIG_MAX_RANKS;
        if ((c.unusable & KEY_BIT(axes[i])) != 0) c.value[axes[i]] = 1;
    }
    c.value[CANDIDATE_RANKS] = ranks;
    c.most[CANDIDATE_RANKS] = load_most_ranks(ranks);
    c.fixed |= ranks > 0 ? KEY_BIT(CANDIDATE_RANKS) : 0;
    c.automatic = origin[option_find(names[CANDIDATE_MICRO])].automatic;
    return c;
}

Candidate candidate_of_config(const Config *config, int64_t ranks)
{
    const Origin *origin = config->provenance;
    Candidate c = candidate_of(config, origin, ranks);
    /* A value given under another name of parallel.shard is dropped where it does not fit
     * (parallel.c). */
    if (origin[option_find(names[CANDIDATE_SHARD])].alias) c.value[CANDIDATE_SHARD] = 0;
    return c;
}

Candidate candidate_of_load(const Load *load)
{
    Candidate c = candidate_of(load->config, load->origin, load->context.world);
    c.alone = load->context.alone;
    c.stepless = load->context.stored;
    c.inspected = c.stepless && load->context.opened == 0;
    c.automatic |= load->path == NULL;
    /* If a launcher has started the ranks, or the caller has one rank, no other number is
     * suggested. */
    if (load->context.alone || load->context.launched) c.most[CANDIDATE_RANKS] = 0;
    candidate_follow(&c);
    return c;
}
