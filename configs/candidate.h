/* candidate.h -- the sizes in a config that depend on each other: those of the grid of ranks, of
 * the batch and of the model. A candidate is one choice of these numbers. The functions find the
 * rules that a candidate breaks, and the nearest candidate that breaks none. Config errors, their
 * suggestions and the search for layouts all use the same table of rules. */
#ifndef CONFIGS_CANDIDATE_H
#define CONFIGS_CANDIDATE_H

#include "configs/config.h"

#include <stdbool.h>
#include <stdint.h>

/* The keys whose values a candidate has. If two changes are equally near, the change of the earlier
 * key is preferred. */
typedef enum {
    CANDIDATE_ACCUMULATION,
    CANDIDATE_MICRO,
    CANDIDATE_DATA,
    CANDIDATE_SCHEDULE, /* 1: interleaved */
    CANDIDATE_CHUNKS,
    CANDIDATE_TENSOR,
    CANDIDATE_PIPELINE,
    CANDIDATE_RANKS, /* 0: not known */
    CANDIDATE_BATCH,
    CANDIDATE_SEQUENCE, /* sequence_parallel: 0 or 1 */
    CANDIDATE_LENGTH,
    CANDIDATE_POSITIONS,
    CANDIDATE_KV,
    CANDIDATE_HEAD_DIM, /* 0: hidden_size is not a multiple of the heads */
    CANDIDATE_WIDTH,
    CANDIDATE_HIDDEN,
    CANDIDATE_HEADS,
    CANDIDATE_LAYERS,
    CANDIDATE_SPLIT, /* how many numbers pipeline_split has; 0: it is not given */
    CANDIDATE_ROPE,  /* position is "rope": 0 or 1 */
    CANDIDATE_ZERO,  /* zero_optimization.stage */
    CANDIDATE_SUM,   /* gradient_allreduce_op is "sum": 0 or 1 */
    CANDIDATE_SCATTER,
    CANDIDATE_SCALED,    /* a key that scales gradients is given: 0 or 1 */
    CANDIDATE_RECOMPUTE, /* a RecomputePolicy */
    CANDIDATE_FUSED,     /* fused_gelu is true and weights are 16-bit: 0 or 1 */
    CANDIDATE_SHARD,     /* parallel.shard; 0: all data-parallel ranks */
    CANDIDATE_KEYS
} CandidateKey;

/* The rules, in the order in which they are checked. */
typedef enum {
    RULE_ALONE,    /* if there is one rank (`alone`), tensor and pipeline are 1 */
    RULE_HEADS,    /* tensor divides the attention heads */
    RULE_GROUPS,   /* tensor divides the key-value heads, or is a multiple of them */
    RULE_WIDTH,    /* tensor divides the width of the MLP */
    RULE_CHUNKS,   /* several layer ranges per stage need several stages */
    RULE_BLOCKS,   /* every layer range has at least one block */
    RULE_WORLD,    /* tensor x pipeline divides the ranks */
    RULE_DATA,     /* if data is given, data x tensor x pipeline = ranks */
    RULE_SHARD,    /* shard divides data */
    RULE_SCHEDULE, /* interleaved if and only if a stage has several layer ranges */
    RULE_SPLIT,    /* pipeline_split, if given, has one number per layer range */
    RULE_BATCH,    /* micro-batch x accumulation x data = batch */
    RULE_MOST,     /* a derived batch is at most the key's limit */
    RULE_SEQUENCE, /* with sequence_parallel, tensor divides the rows of a micro-batch */
    RULE_HIDDEN,   /* without head_dim, the heads divide hidden_size */
    RULE_KV,       /* key-value heads divide the heads */
    RULE_ROPE,     /* with RoPE, head_dim is even */
    RULE_LENGTH,   /* a sequence fits the positions */
    RULE_SUM,      /* ZeRO stage 3 needs gradient_allreduce_op "mean" */
    RULE_SCALED,   /* ZeRO stages 2 and 3 with reduce_scatter: no key scales gradients */
    RULE_GELU,     /* with fused_gelu, no selective recomputation, which rounds sums before GELU */
    RULES
} RuleId;

#define RULE_BIT(rule) (1u << (rule))
#define KEY_BIT(key)   (1u << (key))
enum { ALL_RULES = (1u << RULES) - 1 };

typedef struct {
    int64_t value[CANDIDATE_KEYS];
    /* the largest value to suggest; 0: the key is never changed, unless it is a flag */
    int64_t most[CANDIDATE_KEYS];
    /* bit set of keys with a given or default value; the other keys are derived */
    unsigned fixed;
    /* bit set of keys whose values were refused; rules that read one are not checked */
    unsigned unusable;
    bool alone;     /* there is exactly one rank, whatever the file says */
    bool inspected; /* a stored config that is only inspected: the grid need not fit the ranks */
    bool stepless;  /* a stored config, with which no step is taken: the batch need not fit */
    bool automatic; /* a missing micro-batch is chosen, even if the batch is given */
    bool swiglu;
} Candidate;

/* What a search may change. */
typedef struct {
    CandidateKey key; /* the key that must change; CANDIDATE_KEYS: none in particular */
    int side;         /* how `key` may change; -1: it is lowered, 1: raised, 0: either */
    unsigned with;    /* bit set of other keys that the search may change, too */
    int most;         /* maximum number of changed keys, including `key` */
    /* bit set of additional rules: each must hold if the search changes a key that the rule depends
     * on */
    unsigned others;
    bool far; /* `key` may be raised up to its limit, not only to four times its value */
} Reach;

/* Returns the candidate of a config on `ranks` ranks (0: not known). Keys that the config does not
 * give are derived. If parallel.shard was given under one of DeepSpeed's names, the candidate has 0
 * for it, because the reader drops such a value where it does not fit. */
Candidate candidate_of_config(const Config *config, int64_t ranks);
/* Computes the values that are derived from the fixed ones. A value that cannot be computed is
 * 0. */
void candidate_follow(Candidate *candidate);
/* Returns the set of rules that the candidate breaks. A rule is not checked if it reads a refused
 * key, or one that a broken rule has made meaningless: one mistake gives one error. */
unsigned candidate_broken(const Candidate *candidate);
/* `broken`: the set of rules that the candidate breaks. Returns the set of rules that need not hold
 * after a suggested change that mends `rule`: the other broken rules, and the rules that are not
 * checked because those other rules are broken. */
unsigned candidate_others(const Candidate *candidate, unsigned broken, RuleId rule);
/* Returns whether the candidate breaks none of the rules in the bit set `rules`. A rule that reads
 * a key whose value was refused (`unusable`) is not checked, that is, it counts as not broken. */
bool candidate_legal(const Candidate *candidate, unsigned rules);

/* Finds the candidate nearest to `from` that breaks none of `rules` (and none of reach.others that
 * depends on a changed key). It may change what `reach` allows, and derived values. The nearest
 * candidate is the one that changes the fewest keys. If several do, it is the one with the smallest
 * product of ratios (larger value / smaller value); then the one with the smallest ratio of the
 * last key, of the key before it, and so on; then the one with the lowest values, in the same order
 * of keys.
 *
 * Values are raised to at most from.most. Unless reach.far is true, reach.key is raised to at most
 * four times its value. If the number of ranks is not known, the number of data-parallel ranks is
 * not derived again: it stays the same unless the search itself changes it. Returns false if there
 * is no such candidate, or none among the first 200,000 values that are tried. */
bool nearest_legal(const Candidate *from, unsigned rules, const Reach *reach, Candidate *to);
/* Returns the larger of two values of this key divided by the smaller; 2 if a flag changes; the
 * larger one plus 1 if the smaller is 0. */
double candidate_ratio(CandidateKey key, int64_t was, int64_t is);
/* Returns the product of candidate_ratio over the keys in the bit set `keys`. */
double candidate_distance(const Candidate *from, const Candidate *to, unsigned keys);
/* Returns the highest value of `key` that nearest_legal tries. */
int64_t candidate_highest(const Candidate *from, CandidateKey key, const Reach *reach);
/* Returns the number of ranks. If it is not known, returns the number that a given parallel.data or
 * three given batch keys imply, or 0. */
int64_t candidate_ranks(const Candidate *candidate);
/* Returns the key's name in the config file, such as "parallel.tensor"; NULL for the number of
 * ranks. */
const char *candidate_key_name(CandidateKey key);

#endif
