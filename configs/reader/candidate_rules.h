/* candidate_rules.h -- the table of rules behind candidate.h; private to configs/. */
#ifndef CONFIGS_READER_CANDIDATE_RULES_H
#define CONFIGS_READER_CANDIDATE_RULES_H

#include "configs/candidate.h"

/* How a rule relates the product `part` of some keys to the product `whole` of others. */
typedef enum {
    RELATION_NONE,    /* as `holds` says */
    RELATION_DIVIDES, /* part divides whole */
    RELATION_EQUAL,   /* part is whole; a key of them that is not given follows so */
    RELATION_AT_MOST, /* part is at most whole */
} Relation;

/* A rule. Sets of keys are bit sets. */
typedef struct {
    unsigned reads; /* it is not checked if one of these is refused */
    Relation relation;
    unsigned part, whole;
    unsigned given;                            /* it binds only if these are */
    bool (*holds)(const Candidate *candidate); /* NULL: the relation is the rule */
    /* Broken, it makes these meaningless: rules that read them are not checked. The second set: if
     * the number of ranks is known. */
    unsigned spoils, spoils_on_ranks;
} CandidateRule;

extern const CandidateRule candidate_rules[RULES];

/* Returns a x b x c, INT64_MAX if that overflows. No factor is negative. */
int64_t candidate_product(int64_t a, int64_t b, int64_t c);
/* Returns the product of the values of a set of keys, INT64_MAX if that overflows. */
int64_t candidate_product_of(const Candidate *candidate, unsigned keys);
/* Returns the set of keys, and those that follow from them. */
unsigned candidate_affected(const Candidate *candidate, unsigned keys);
/* Returns the micro-batch of a file that leaves it to a trainer: the largest power of two up to 8
 * (Hugging Face's default) that divides the sequences that a rank handles in a step; 0: any do. */
int64_t candidate_micro_batch(int64_t sequences);
/* Returns the width of an mlp for which none is given. */
int64_t candidate_width(int64_t hidden, bool swiglu);

#endif
