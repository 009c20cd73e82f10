/* candidate.h -- the numbers of a config that rules relate to one another: sizes of the grid, of
 * the batch and of the model. Says which rules a candidate for such numbers breaks, and finds the
 * nearest candidate that breaks none. The reader's errors, what they suggest, and the search for
 * layouts ask the same table of rules. */
#ifndef CONFIGS_CANDIDATE_H
#define CONFIGS_CANDIDATE_H

#include "configs/config.h"

#include <stdbool.h>
#include <stdint.h>

/* Of changes that are equally near, one of earlier keys is preferred. */
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
    CANDIDATE_HEAD_DIM, /* 0: hidden_size is no multiple of the heads */
    CANDIDATE_WIDTH,
    CANDIDATE_HIDDEN,
    CANDIDATE_HEADS,
    CANDIDATE_LAYERS,
    CANDIDATE_SPLIT, /* numbers in pipeline_split; 0: not given */
    CANDIDATE_ROPE,  /* position is "rope": 0 or 1 */
    CANDIDATE_ZERO,  /* zero_optimization.stage */
    CANDIDATE_SUM,   /* gradient_allreduce_op is "sum": 0 or 1 */
    CANDIDATE_SCATTER,
    CANDIDATE_SCALED,    /* a key that scales gradients is given: 0 or 1 */
    CANDIDATE_RECOMPUTE, /* a RecomputePolicy */
    CANDIDATE_FUSED,     /* fused_gelu in a 16-bit type: 0 or 1 */
    CANDIDATE_SHARD,     /* parallel.shard; 0: all data-parallel ranks */
    CANDIDATE_KEYS
} CandidateKey;

/* The rules, in the order in which they are checked. */
typedef enum {
    RULE_ALONE,    /* a single rank has a grid of one */
    RULE_HEADS,    /* tensor divides the heads, */
    RULE_GROUPS,   /* divides or is a multiple of the key-value heads, */
    RULE_WIDTH,    /* and divides the width of the mlp */
    RULE_CHUNKS,   /* several runs of layers a stage are for several stages */
    RULE_BLOCKS,   /* every run of layers has a block */
    RULE_WORLD,    /* tensor x pipeline divides the ranks */
    RULE_DATA,     /* a given data x tensor x pipeline are the ranks */
    RULE_SHARD,    /* shard divides data */
    RULE_SCHEDULE, /* interleaved: if and only if a stage has several runs of layers */
    RULE_SPLIT,    /* a given split has a number for each run of layers */
    RULE_BATCH,    /* micro-batch x accumulation x data is the batch */
    RULE_MOST,     /* and a batch that follows is not above its limit */
    RULE_SEQUENCE, /* with sequence_parallel, tensor divides the rows of a micro-batch */
    RULE_HIDDEN,   /* without head_dim, the heads divide hidden_size */
    RULE_KV,       /* key-value heads divide the heads */
    RULE_ROPE,     /* with RoPE, head_dim is even */
    RULE_LENGTH,   /* a sequence fits the positions */
    RULE_SUM,      /* ZeRO stage 3 takes means */
    RULE_SCALED,   /* scaled gradients are not scattered by ZeRO stages 2 and 3 */
    RULE_GELU,     /* selective recomputation does not round before a fused gelu */
    RULES
} RuleId;

#define RULE_BIT(rule) (1u << (rule))
#define KEY_BIT(key)   (1u << (key))
enum { ALL_RULES = (1u << RULES) - 1 };

typedef struct {
    int64_t value[CANDIDATE_KEYS];
    int64_t most[CANDIDATE_KEYS]; /* the largest value to suggest; 0: the key is not changed */
    unsigned fixed;               /* set of keys with a value of their own; the others follow */
    unsigned unusable;            /* set of refused keys: rules that read one are not checked */
    bool alone;                   /* there is exactly one rank, whatever the file says */
    bool inspected;               /* a stored run that is only read: its ranks need not fit */
    bool stepless;                /* and one that takes no step: its batch need not fit */
    bool automatic; /* a micro-batch that is not given is chosen, even if the batch is given */
    bool swiglu;
} Candidate;

/* What a search may change. */
typedef struct {
    CandidateKey key; /* is changed in any case; CANDIDATE_KEYS: there is no such key */
    int side;         /* of its new value -1: lower; 1: higher; 0: either */
    unsigned with;    /* set of further keys that it may change */
    int most;         /* how many keys it may change, `key` included */
    unsigned others;  /* set of further rules that must hold if they read a changed key */
    bool far;         /* that of `key` may be raised to its limit, not only to four times itself */
} Reach;

/* Returns the candidate of a config on so many ranks (0: not known). Keys that the config does not
 * give follow from the others. Of parallel.shard under DeepSpeed's names nothing is kept: the
 * reader leaves it out where it does not fit. */
Candidate candidate_of_config(const Config *config, int64_t ranks);
/* Computes the values that follow from the fixed ones. A value that cannot be computed is 0. */
void candidate_follow(Candidate *candidate);
/* Returns the set of rules that the candidate breaks. A rule is not checked if it reads a refused
 * key, or one that a broken rule has made meaningless: one mistake gives one error. */
unsigned candidate_broken(const Candidate *candidate);
/* Returns the rules, of those that are broken and those that are not checked for that reason, that
 * a change for the sake of one broken rule need not mend: all that is not for that rule's own sake.
 */
unsigned candidate_others(const Candidate *candidate, unsigned broken, RuleId rule);
/* Returns whether the candidate breaks none of these rules, each of which is checked. */
bool candidate_legal(const Candidate *candidate, unsigned rules);

/* Finds the candidate nearest to `from` that breaks none of `rules` (nor of reach.others) and
 * differs from it as `reach` says, besides values that follow. Nearest is, in this order: the
 * fewest keys changed; the smallest product of the ratios of old and new values, the larger one of
 * each divided by the smaller; the smallest ratio of the last key, of the one before it, and so on;
 * the lowest values in the same order. Values are raised to at most from.most, and that of
 * reach.key, without reach.far, to at most four times itself. If the number of ranks is not known,
 * that of data-parallel ranks does not change. Returns false if there is none, or if it is not
 * among the first 200,000 values that are tried. */
bool nearest_legal(const Candidate *from, unsigned rules, const Reach *reach, Candidate *to);
/* Returns the ratio of a change of this key, at least 1. */
double candidate_ratio(CandidateKey key, int64_t was, int64_t is);
/* Returns the product of the ratios of these keys. */
double candidate_distance(const Candidate *from, const Candidate *to, unsigned keys);
/* Returns the highest value of `key` that nearest_legal tries. */
int64_t candidate_highest(const Candidate *from, CandidateKey key, const Reach *reach);
/* Returns the number of ranks, or, if it is not known, the number that a given parallel.data or
 * three given batch keys imply; 0: none. */
int64_t candidate_ranks(const Candidate *candidate);
/* Returns the key of the config file, "parallel.tensor"; NULL for the number of ranks. */
const char *candidate_key_name(CandidateKey key);

#endif
