/* candidate.c -- the table of rules between the sizes of the grid, of the batch and of the model,
 * and the functions that check them; see candidate.h. */
#include "configs/reader/candidate_rules.h"

#include <stddef.h>

/* ---- the rules ------------------------------------------------------------------------------- */

#define V(name) (c->value[CANDIDATE_##name])
#define K(name) KEY_BIT(CANDIDATE_##name)

static bool fits_alone(const Candidate *c)
{
    return !c->alone || V(TENSOR) * V(PIPELINE) == 1;
}

static bool shares_groups(const Candidate *c)
{
    return V(KV) % V(TENSOR) == 0 || V(TENSOR) % V(KV) == 0;
}

static bool has_stages(const Candidate *c)
{
    return V(CHUNKS) == 1 || V(PIPELINE) > 1;
}

static bool makes_world(const Candidate *c)
{
    return c->inspected || V(RANKS) == 0 || V(RANKS) % (V(TENSOR) * V(PIPELINE)) == 0;
}

static bool makes_data(const Candidate *c)
{
    return V(RANKS) == 0 || V(DATA) * V(TENSOR) * V(PIPELINE) == V(RANKS);
}

/* Returns whether shard divides the number of data-parallel ranks. If the number of ranks is not
 * known, the number of data-parallel ranks is still open, so any shard is accepted. */
static bool divides_data(const Candidate *c)
{
    return c->inspected || V(SHARD) == 0 || candidate_ranks(c) == 0 || V(DATA) % V(SHARD) == 0;
}

static bool fits_schedule(const Candidate *c)
{
    return (V(SCHEDULE) != 0) == (V(CHUNKS) > 1);
}

static bool fits_split(const Candidate *c)
{
    return V(SPLIT) == 0 || V(SPLIT) == V(PIPELINE) * V(CHUNKS);
}

int64_t candidate_product(int64_t a, int64_t b, int64_t c)
{
    int64_t ab = a <= 0 || b <= INT64_MAX / a ? a * b : INT64_MAX;
    return ab <= 0 || c <= INT64_MAX / ab ? ab * c : INT64_MAX;
}

static bool makes_batch(const Candidate *c)
{
    return c->stepless ||
           (V(BATCH) > 0 && V(BATCH) == candidate_product(V(MICRO), V(ACCUMULATION), V(DATA)));
}

static bool is_within_most(const Candidate *c)
{
    return c->stepless || V(BATCH) <= c->most[CANDIDATE_BATCH];
}

static bool shares_rows(const Candidate *c)
{
    return V(SEQUENCE) == 0 || V(TENSOR) == 1 || V(MICRO) <= 0 ||
           V(MICRO) % V(TENSOR) * (V(LENGTH) % V(TENSOR)) % V(TENSOR) == 0;
}

static bool has_even_heads(const Candidate *c)
{
    return V(ROPE) == 0 || V(HEAD_DIM) % 2 == 0;
}

static bool has_head_dim(const Candidate *c)
{
    return V(HEAD_DIM) > 0;
}

static bool takes_means(const Candidate *c)
{
    return V(ZERO) != 3 || V(SUM) == 0;
}

static bool is_not_scaled(const Candidate *c)
{
    return V(SCALED) == 0 || V(ZERO) < 2 || V(SCATTER) == 0;
}

static bool keeps_gelu(const Candidate *c)
{
    return V(FUSED) == 0 || V(RECOMPUTE) != RECOMPUTE_SELECTIVE;
}

/* A rule about two products names their keys in this table, so that a search knows which values are
 * possible. */
const CandidateRule candidate_rules[RULES] = {
    [RULE_ALONE] = {K(TENSOR) | K(PIPELINE), .holds = fits_alone,
                    .spoils = K(TENSOR) | K(PIPELINE) | K(DATA)},
    [RULE_HEADS] = {K(TENSOR) | K(HEADS), RELATION_DIVIDES, K(TENSOR), K(HEADS),
                    .spoils = K(TENSOR), .spoils_on_ranks = K(DATA)},
    [RULE_GROUPS] = {K(TENSOR) | K(KV) | K(HEADS), .holds = shares_groups, .spoils = K(TENSOR),
                     .spoils_on_ranks = K(DATA)},
    [RULE_WIDTH] = {K(TENSOR) | K(WIDTH) | K(HIDDEN), RELATION_DIVIDES, K(TENSOR), K(WIDTH),
                    .spoils = K(TENSOR), .spoils_on_ranks = K(DATA)},
    [RULE_CHUNKS] = {K(CHUNKS) | K(PIPELINE), .holds = has_stages, .spoils = K(CHUNKS)},
    [RULE_BLOCKS] = {K(PIPELINE) | K(CHUNKS) | K(LAYERS), RELATION_AT_MOST, K(PIPELINE) | K(CHUNKS),
                     K(LAYERS), .spoils = K(PIPELINE) | K(CHUNKS), .spoils_on_ranks = K(DATA)},
    [RULE_WORLD] = {K(TENSOR) | K(PIPELINE), RELATION_DIVIDES, K(TENSOR) | K(PIPELINE), K(RANKS),
                    .holds = makes_world, .spoils = K(TENSOR) | K(PIPELINE) | K(DATA)},
    [RULE_DATA] = {K(DATA) | K(TENSOR) | K(PIPELINE), RELATION_EQUAL,
                   K(DATA) | K(TENSOR) | K(PIPELINE), K(RANKS), .given = K(DATA),
                   .holds = makes_data, .spoils = K(DATA)},
    [RULE_SHARD] = {K(SHARD) | K(DATA), RELATION_DIVIDES, K(SHARD), K(DATA), .holds = divides_data},
    [RULE_SCHEDULE] = {K(SCHEDULE) | K(CHUNKS), .holds = fits_schedule, .spoils = K(SCHEDULE)},
    [RULE_SPLIT] = {K(SPLIT) | K(PIPELINE) | K(CHUNKS), .holds = fits_split},
    [RULE_BATCH] = {K(BATCH) | K(MICRO) | K(ACCUMULATION) | K(DATA), RELATION_EQUAL,
                    K(MICRO) | K(ACCUMULATION) | K(DATA), K(BATCH), .holds = makes_batch},
    [RULE_MOST] = {K(BATCH) | K(MICRO) | K(ACCUMULATION) | K(DATA), .holds = is_within_most},
    [RULE_SEQUENCE] = {K(SEQUENCE) | K(TENSOR) | K(MICRO) | K(LENGTH), .holds = shares_rows},
    [RULE_HIDDEN] = {K(HIDDEN) | K(HEADS) | K(HEAD_DIM), .holds = has_head_dim,
                     .spoils = K(HEAD_DIM)},
    [RULE_KV] = {K(KV) | K(HEADS), RELATION_DIVIDES, K(KV), K(HEADS)},
    [RULE_ROPE] = {K(ROPE) | K(HEAD_DIM) | K(HIDDEN) | K(HEADS), .holds = has_even_heads},
    [RULE_LENGTH] = {K(LENGTH) | K(POSITIONS), RELATION_AT_MOST, K(LENGTH), K(POSITIONS)},
    [RULE_SUM] = {K(ZERO) | K(SUM), .holds = takes_means},
    [RULE_SCALED] = {K(ZERO) | K(SCATTER), .holds = is_not_scaled},
    [RULE_GELU] = {K(FUSED) | K(RECOMPUTE), .holds = keeps_gelu},
};

int64_t candidate_product_of(const Candidate *c, unsigned keys)
{
    int64_t all = 1;
    for (int key = 0; keys >> key != 0; key++)
        if ((keys & KEY_BIT(key)) != 0) all = candidate_product(all, c->value[key], 1);
    return all;
}

static bool holds(const Candidate *c, const CandidateRule *rule)
{
    if ((rule->given & ~c->fixed) != 0) return true;
    if (rule->holds != NULL) return rule->holds(c);
    int64_t part = candidate_product_of(c, rule->part),
            whole = candidate_product_of(c, rule->whole);
    return rule->relation == RELATION_DIVIDES ? whole % part == 0 : part <= whole;
}

/* Returns the keys that the broken rule makes meaningless, and the keys derived from them. */
static unsigned spoilt_by(const Candidate *candidate, const CandidateRule *rule)
{
    bool ranks = candidate->value[CANDIDATE_RANKS] > 0 && !candidate->inspected;
    return candidate_affected(candidate, rule->spoils | (ranks ? rule->spoils_on_ranks : 0));
}

unsigned candidate_broken(const Candidate *candidate)
{
    unsigned broken = 0, unusable = candidate->unusable;
    for (int i = 0; i < RULES; i++) {
        const CandidateRule *rule = &candidate_rules[i];
        if ((rule->reads & unusable) != 0 || holds(candidate, rule)) continue;
        broken |= RULE_BIT(i);
        unusable |= spoilt_by(candidate, rule);
    }
    return broken;
}

unsigned candidate_others(const Candidate *candidate, unsigned broken, RuleId rule)
{
    unsigned others = broken & ~RULE_BIT(rule), unusable = 0;
    for (int i = 0; i < RULES; i++)
        if ((others & RULE_BIT(i)) != 0) unusable |= spoilt_by(candidate, &candidate_rules[i]);
    for (int i = 0; i < RULES; i++)
        if ((candidate_rules[i].reads & unusable) != 0 && i != (int)rule) others |= RULE_BIT(i);
    return others;
}

bool candidate_legal(const Candidate *candidate, unsigned rules)
{
    for (int i = 0; i < RULES; i++) {
        const CandidateRule *rule = &candidate_rules[i];
        bool asked = (rules & RULE_BIT(i)) != 0 && (rule->reads & candidate->unusable) == 0;
        if (asked && !holds(candidate, rule)) return false;
    }
    return true;
}
