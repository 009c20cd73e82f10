/* candidate_follow.c -- derives the numbers of a candidate that are not given from those that are;
 * see candidate.h. */
#include "configs/reader/candidate_rules.h"

#include <stddef.h>

#define V(name) (c->value[CANDIDATE_##name])
#define K(name) KEY_BIT(CANDIDATE_##name)

int64_t candidate_micro_batch(int64_t sequences)
{
    int64_t micro = 8;
    while (sequences > 0 && sequences % micro != 0)
        micro /= 2;
    return micro;
}

int64_t candidate_width(int64_t hidden, bool swiglu)
{
    /* SwiGLU has three matrices instead of two, so 8/3 gives as many parameters as 4 with two
     * matrices */
    int64_t narrow = (8 * hidden + 2) / 3;
    return swiglu ? (narrow + 63) / 64 * 64 : 4 * hidden;
}

/* Stores a derived value, unless it is not positive, which means that it could not be computed. */
static void follow(Candidate *c, CandidateKey key, int64_t value)
{
    if ((c->fixed & KEY_BIT(key)) == 0) c->value[key] = value > 0 ? value : 0;
}

/* Returns the number of data-parallel ranks that three given batch keys imply; 0: none. */
static int64_t data_of_batch(const Candidate *c)
{
    unsigned three = K(BATCH) | K(MICRO) | K(ACCUMULATION);
    if ((c->fixed & three) != three || (c->unusable & (three | K(DATA))) != 0) return 0;
    int64_t micros = V(MICRO) * V(ACCUMULATION);
    return micros > 0 && V(BATCH) % micros == 0 ? V(BATCH) / micros : 0;
}

static void follow_data(Candidate *c)
{
    int64_t cut = V(TENSOR) * V(PIPELINE), of_batch = data_of_batch(c);
    if (V(RANKS) > 0)
        follow(c, CANDIDATE_DATA, V(RANKS) / cut);
    else
        follow(c, CANDIDATE_DATA, of_batch > 0 ? of_batch : 1);
}

/* Returns whole / parts, rounded down; 0 if `parts` is 0 because it could not be computed. */
static int64_t part_of(int64_t whole, int64_t parts)
{
    return parts > 0 ? whole / parts : 0;
}

/* Derives the batch keys that are missing, as DeepSpeed does, from train_batch_size = micro-batch x
 * accumulation x data-parallel ranks. If a division is not exact, RULE_BATCH is broken. */
static void follow_batch(Candidate *c)
{
    bool train = (c->fixed & K(BATCH)) != 0, micro = (c->fixed & K(MICRO)) != 0,
         accum = (c->fixed & K(ACCUMULATION)) != 0;
    int64_t dp = V(DATA);
    if ((c->unusable & (K(BATCH) | K(MICRO) | K(ACCUMULATION) | K(DATA))) != 0) return;
    if (!micro && (!train || c->automatic)) {
        /* `share` limits the micro-batch. If both other keys are given, it is exactly the
         * micro-batch. If only the batch is given, the micro-batch must divide it. 0 means that
         * nothing limits it. */
        int64_t share = train ? part_of(part_of(V(BATCH), dp), accum ? V(ACCUMULATION) : 1) : 0;
        follow(c, CANDIDATE_MICRO,
               train && accum && share > 0 ? share : candidate_micro_batch(share));
        micro = true; /* from here on, treat it as given */
    }
    if (train && micro) {
        follow(c, CANDIDATE_ACCUMULATION, part_of(part_of(V(BATCH), V(MICRO)), dp));
    } else if (train) {
        follow(c, CANDIDATE_ACCUMULATION, 1);
        follow(c, CANDIDATE_MICRO, part_of(part_of(V(BATCH), dp), V(ACCUMULATION)));
    } else {
        follow(c, CANDIDATE_ACCUMULATION, 1);
        follow(c, CANDIDATE_BATCH, candidate_product(V(MICRO), V(ACCUMULATION), V(DATA)));
    }
}

int64_t candidate_ranks(const Candidate *c)
{
    bool known = (c->fixed & K(DATA)) != 0 || data_of_batch(c) > 0;
    if (V(RANKS) > 0) return V(RANKS);
    return known ? candidate_product(V(DATA), V(TENSOR), V(PIPELINE)) : 0;
}

void candidate_follow(Candidate *c)
{
    follow(c, CANDIDATE_KV, V(HEADS));
    follow(c, CANDIDATE_HEAD_DIM, V(HIDDEN) % V(HEADS) == 0 ? V(HIDDEN) / V(HEADS) : 0);
    follow(c, CANDIDATE_WIDTH, candidate_width(V(HIDDEN), c->swiglu));
    follow(c, CANDIDATE_POSITIONS, V(LENGTH));
    follow(c, CANDIDATE_SCHEDULE, V(CHUNKS) > 1);
    follow_data(c);
    follow_batch(c);
}

unsigned candidate_affected(const Candidate *c, unsigned keys)
{
    static const struct {
        CandidateKey key;
        unsigned of;
    } follows[] = {
        {CANDIDATE_KV, K(HEADS)},
        {CANDIDATE_HEAD_DIM, K(HIDDEN) | K(HEADS)},
        {CANDIDATE_WIDTH, K(HIDDEN)},
        {CANDIDATE_POSITIONS, K(LENGTH)},
        {CANDIDATE_SCHEDULE, K(CHUNKS)},
        /* if the number of ranks is not known; see below */
        {CANDIDATE_DATA, K(BATCH) | K(MICRO) | K(ACCUMULATION)},
        {CANDIDATE_BATCH, K(MICRO) | K(ACCUMULATION) | K(DATA)},
        {CANDIDATE_MICRO, K(BATCH) | K(ACCUMULATION) | K(DATA)},
        {CANDIDATE_ACCUMULATION, K(BATCH) | K(MICRO) | K(DATA)},
    };
    for (size_t i = 0; i < sizeof follows / sizeof *follows; i++) {
        unsigned of = follows[i].of;
        /* the batch gives the number of data-parallel ranks only if the number of ranks does not */
        if (follows[i].key == CANDIDATE_DATA && V(RANKS) > 0)
            of = K(RANKS) | K(TENSOR) | K(PIPELINE);
        if ((keys & of) != 0 && (c->fixed & KEY_BIT(follows[i].key)) == 0)
            keys |= KEY_BIT(follows[i].key);
    }
    return keys;
}
