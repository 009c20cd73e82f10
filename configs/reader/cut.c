/* cut.c -- reports sizes of a grid (parallel.tensor, parallel.pipeline, parallel.data) that do not
 * divide the model or the number of ranks evenly, with the nearest ones that do. The rules are in
 * candidate.c. */
#include "configs/reader/candidate_rules.h"
#include "configs/reader/load.h"

#include <stdio.h>
#include <string.h>

static const char tensor_key[] = "parallel.tensor", stages_key[] = "parallel.pipeline",
                  data_key[] = "parallel.data", chunks_key[] = "parallel.pipeline_chunks";

/* TENSOR_RULES: the rules about tensor-parallel ranks. BATCHES: the keys of the batch, which may
 * have to change together with a size of the grid. */
enum {
    TENSOR_RULES = RULE_BIT(RULE_HEADS) | RULE_BIT(RULE_GROUPS) | RULE_BIT(RULE_WIDTH),
    BATCHES = KEY_BIT(CANDIDATE_MICRO) | KEY_BIT(CANDIDATE_ACCUMULATION) | KEY_BIT(CANDIDATE_BATCH)
};

/* Reports an error at the position of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)

/* Reports a number of tensor-parallel ranks that cannot share a size of the model evenly. */
static void refuse_tensor(Load *load, RuleId rule)
{
    const Config *c = load->config;
    char what[64], near[256];
    if (rule == RULE_HEADS)
        snprintf(what, sizeof what, "num_attention_heads %lld",
                 (long long)c->model.num_attention_heads);
    else if (rule == RULE_GROUPS)
        snprintf(what, sizeof what, "num_key_value_heads %lld",
                 (long long)c->model.num_key_value_heads);
    else
        snprintf(what, sizeof what, "intermediate_size %lld",
                 (long long)c->model.intermediate_size);
    /* If the number of stages is refused, too, only new values for all sizes of the grid together
     * are legal. */
    if (load_breaks(load, RULE_BLOCKS) ||
        !near_values(load, rule, CANDIDATE_TENSOR, BATCHES, near, sizeof near))
        near_sizes(load, rule, near, sizeof near);
    WRONG(load, tensor_key, "%lld %s %s; write %s", (long long)c->parallel.tensor,
          rule == RULE_GROUPS ? "neither divides nor is a multiple of" : "does not divide", what,
          near);
}

/* Reports that pipeline_chunks is above 1 although there is only one stage. */
static void refuse_chunks(Load *load)
{
    enum { SCHEDULE = KEY_BIT(CANDIDATE_SCHEDULE) };
    const Candidate *k = &load->candidate;
    char one[128], stages[64], other[128] = "";
    bool known = k->value[CANDIDATE_RANKS] > 0 && !k->inspected;
    if (!near_values(load, RULE_CHUNKS, CANDIDATE_CHUNKS, SCHEDULE, one, sizeof one))
        near_sizes(load, RULE_CHUNKS, one, sizeof one);
    bool alone = (load->broken & (TENSOR_RULES | RULE_BIT(RULE_WORLD) | RULE_BIT(RULE_DATA))) == 0;
    if (alone && near_value(load, RULE_CHUNKS, CANDIDATE_PIPELINE, 1, stages, sizeof stages))
        snprintf(other, sizeof other, ", or pipeline %s%s", stages, known ? "" : " or more");
    WRONG(load, chunks_key,
          "%lld runs of layers a stage are for several stages, and pipeline is 1; write %s%s",
          (long long)load->config->parallel.pipeline_chunks, one, other);
}

/* Reports more layer ranges than the model has blocks: each range needs at least one block, in
 * addition to the embedding or the head that it may contain. There are two remedies: fewer stages,
 * or fewer chunks per stage. If neither helps, new values for all sizes are suggested together. */
static void refuse_stages(Load *load)
{
    enum { SCHEDULE = KEY_BIT(CANDIDATE_SCHEDULE) };
    const Config *c = load->config;
    int64_t stages = c->parallel.pipeline, chunks = c->parallel.pipeline_chunks;
    char near[256] = "", other[160] = "";
    bool alone = (load->broken & TENSOR_RULES) == 0,
         one = alone && near_values(load, RULE_BLOCKS, CANDIDATE_PIPELINE, 0, near, sizeof near),
         runs = alone && chunks > 1 &&
                near_values(load, RULE_BLOCKS, CANDIDATE_CHUNKS, SCHEDULE, other, sizeof other);
    if (!one && !runs) near_sizes(load, RULE_BLOCKS, near, sizeof near);
    WRONG(load, stages_key,
          "%lld stages x %lld run%s of layers need a block each, and num_layers is %lld; write "
          "%s%s%s%s%s",
          (long long)stages, (long long)chunks, chunks == 1 ? "" : "s",
          (long long)c->model.num_layers, one ? "pipeline " : "", near, one && runs ? ", or " : "",
          runs ? "pipeline_chunks " : "", other);
}

/* Reports that tensor x pipeline does not divide the number of ranks. */
static void refuse_cut(Load *load)
{
    const Config *c = load->config;
    int64_t tp = c->parallel.tensor, stages = c->parallel.pipeline, world = load->context.world;
    const char *key = tp > 1 ? tensor_key : stages_key;
    CandidateKey own = tp > 1 ? CANDIDATE_TENSOR : CANDIDATE_PIPELINE;
    char product[64], ranks[64] = "", near[256] = "";
    snprintf(product, sizeof product, "%lld", (long long)(tp * stages));
    if (tp > 1 && stages > 1)
        snprintf(product, sizeof product, "%lld x pipeline %lld = %lld", (long long)tp,
                 (long long)stages, (long long)(tp * stages));
    if (load_breaks(load, RULE_ALONE)) {
        WRONG(load, key, "%s, but there is 1 rank here; write 1%s", product,
              tp > 1 && stages > 1 ? " for both" : "");
        return;
    }
    bool others = near_values(load, RULE_WORLD, CANDIDATE_RANKS, 0, ranks, sizeof ranks),
         here = near_values(load, RULE_WORLD, own, 0, near, sizeof near);
    if (!others && !here) near_sizes(load, RULE_WORLD, near, sizeof near);
    WRONG(load, key, "%s, but there %s %lld rank%s; write %s%s%s%s%s", product,
          world == 1 ? "is" : "are", (long long)world, world == 1 ? "" : "s",
          others ? "--ranks " : "", ranks, others && here ? ", or " : "", near,
          here ? " here" : "");
    if (tp * stages <= CONFIG_MAX_RANKS)
        load_remedy(load, "--ranks %lld", (long long)(tp * stages));
}

/* Reports a given parallel.data that implies another number of ranks than there are. */
static void refuse_data(Load *load)
{
    long long data = load->config->parallel.data, world = load->context.world;
    char ranks[64] = "", here[64] = "", sizes[256] = "";
    if (load->context.alone) {
        WRONG(load, data_key, "%lld, but there is 1 rank here; leave the key out", data);
        return;
    }
    bool others = near_values(load, RULE_DATA, CANDIDATE_RANKS, 0, ranks, sizeof ranks),
         own = near_values(load, RULE_DATA, CANDIDATE_DATA, 0, here, sizeof here);
    if (!others && !own) near_sizes(load, RULE_DATA, sizes, sizeof sizes);
    WRONG(load, data_key, "%lld, but there %s %lld rank%s; write %s%s%s%s%s%s", data,
          world == 1 ? "is" : "are", world, world == 1 ? "" : "s", others ? "--ranks " : "", ranks,
          others && own ? ", or " : "", here, own ? " here, or leave the key out" : "", sizes);
}

/* Marks keys that a broken rule has made meaningless, so that one mistake gives one error. */
static void mark_spoilt(Load *load, RuleId rule)
{
    bool ranks = load->candidate.value[CANDIDATE_RANKS] > 0 && !load->candidate.inspected;
    unsigned spoilt =
        candidate_rules[rule].spoils | (ranks ? candidate_rules[rule].spoils_on_ranks : 0);
    for (int key = 0; key < CANDIDATE_KEYS; key++)
        if ((spoilt & KEY_BIT(key)) != 0)
            load->origin[option_find(candidate_key_name(key))].wrong = true;
}

void check_grid(Load *load)
{
    load->candidate = candidate_of_load(load);
    load->broken = candidate_broken(&load->candidate);
    static const RuleId rules[] = {RULE_ALONE,  RULE_HEADS,  RULE_GROUPS, RULE_WIDTH,
                                   RULE_CHUNKS, RULE_BLOCKS, RULE_WORLD,  RULE_DATA};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!load_breaks(load, rules[i])) continue;
        if (rules[i] == RULE_CHUNKS)
            refuse_chunks(load);
        else if (rules[i] == RULE_BLOCKS)
            refuse_stages(load);
        else if (rules[i] == RULE_ALONE || rules[i] == RULE_WORLD)
            refuse_cut(load);
        else if (rules[i] == RULE_DATA)
            refuse_data(load);
        else
            refuse_tensor(load, rules[i]);
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (load_breaks(load, rules[i])) mark_spoilt(load, rules[i]);
}
