/* candidate_rules.h -- the table of the rules that candidate.h describes; private to configs/. */
#ifndef CONFIGS_READER_CANDIDATE_RULES_H
#define CONFIGS_READER_CANDIDATE_RULES_H

#include "configs/candidate.h"

/* How a rule relates the product `part` of some keys to the product `whole` of others. */
typedef enum {
    RELATION_NONE,    /* the function `holds` decides */
    RELATION_DIVIDES, /* part divides whole */
    RELATION_EQUAL,   /* part equals whole; a missing key is derived from this */
    RELATION_AT_MOST, /* part is at most whole */
} Relation;

/* A rule. Sets of keys are bit sets. */
typedef struct {
    unsigned reads; /* the rule is not checked if one of these keys is refused */
    Relation relation;
    unsigned part, whole;
    unsigned given; /* the rule applies only if the user gave these keys */
    bool (*holds)(const Candidate *candidate); /* NULL: the relation alone decides */
    /* If the rule is broken, these keys are meaningless, and rules that read them are not checked.
     * The keys in spoils_on_ranks are meaningless only if the number of ranks is known. */
    unsigned spoils, spoils_on_ranks;
} CandidateRule;

extern const CandidateRule candidate_rules[RULES];

/* Returns a x b x c, INT64_MAX if that overflows. No factor is negative. */
int64_t candidate_product(int64_t a, int64_t b, int64_t c);
/* Returns the product of the values of a set of keys, INT64_MAX if that overflows. */
int64_t candidate_product_of(const Candidate *candidate, unsigned keys);
/* Returns the set of these keys and of those that are derived from them. */
unsigned candidate_affected(const Candidate *candidate, unsigned keys);
/* Returns the micro-batch for a file that leaves it to a trainer: the largest power of two up to 8
 * (Hugging Face's default) that divides `sequences`, the sequences that a rank handles in a step; 8
 * if `sequences` is 0. */
int64_t candidate_micro_batch(int64_t sequences);
/* Returns the default width of an MLP. */
int64_t candidate_width(int64_t hidden, bool swiglu);

#endif
