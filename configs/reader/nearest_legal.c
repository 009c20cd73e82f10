/* nearest_legal.c -- finds the candidate nearest to a given one that breaks no rule; see
 * candidate.h.
 *
 * Sets of keys are tried by size, the smallest first. Within a set, each key in turn goes through
 * its values, nearest first. Its loop ends when the product of the ratios of this key and the keys
 * before it exceeds the best product of all ratios found so far. The possible values of a key are
 * read from the relations in the table of rules: divisors of a number, multiples of a number, or a
 * range. All rules are then checked for each candidate. */
#include "configs/reader/candidate_rules.h"
#include "model/core/check.h"
#include "model/core/min_max.h"

enum { MOST_DIVISORS = 2048, MOST_TRIES = 200000, MOST_KEYS = 6 };

/* Products of different factors are rounded differently: they count as equal if their relative
 * difference is at most this. */
static const double SAME = 1e-9;

/* The order in which the keys of a set get their values: first the keys from which others are
 * derived. */
static const CandidateKey order[] = {
    CANDIDATE_HEADS,  CANDIDATE_HIDDEN,       CANDIDATE_HEAD_DIM, CANDIDATE_KV,
    CANDIDATE_WIDTH,  CANDIDATE_LAYERS,       CANDIDATE_LENGTH,   CANDIDATE_POSITIONS,
    CANDIDATE_TENSOR, CANDIDATE_PIPELINE,     CANDIDATE_CHUNKS,   CANDIDATE_SCHEDULE,
    CANDIDATE_RANKS,  CANDIDATE_DATA,         CANDIDATE_SEQUENCE, CANDIDATE_BATCH,
    CANDIDATE_MICRO,  CANDIDATE_ACCUMULATION, CANDIDATE_SHARD,
};

static bool is_flag(CandidateKey key)
{
    return key == CANDIDATE_SCHEDULE || key == CANDIDATE_SEQUENCE;
}

double candidate_ratio(CandidateKey key, int64_t was, int64_t is)
{
    double low = (double)min_i64(was, is), high = (double)max_i64(was, is);
    return is_flag(key) ? (was == is ? 1 : 2) : low > 0 ? high / low : high + 1;
}

int64_t candidate_highest(const Candidate *from, CandidateKey key, const Reach *reach)
{
    bool far = reach->far || reach->key != key;
    int64_t most = from->most[key], value = from->value[key];
    if (is_flag(key)) return 1;
    return far || value > most / 4 ? most : 4 * value;
}

/* ---- the values of one key ------------------------------------------------------------------- */

/* Values of a key, from the nearest to the farthest. */
typedef struct {
    CandidateKey key;
    int64_t was, low, high;         /* the old value; the limits of new ones */
    int64_t step;                   /* new values are multiples of this */
    int64_t whole;                  /* new values divide this; 0: no such number */
    int64_t divisor[MOST_DIVISORS]; /* the divisors of `whole`, ascending */
    /* n: number of divisors; below, above: indices of the divisors to try next */
    int n, below, above;
    int64_t next_below, next_above; /* the next values to try if `whole` is 0 */
} Values;

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Narrows the values to those that a rule allows. `open`: the set of keys of the search that have
 * no value yet. Only conditions that hold for all values of these keys are used. */
static void narrow(Values *v, const Candidate *c, const CandidateRule *rule, unsigned open)
{
    unsigned own = KEY_BIT(v->key), members = rule->part | rule->whole,
             moved = candidate_affected(c, own | open) & ~own & members;
    bool equal = rule->relation == RELATION_EQUAL;
    if ((rule->given & ~c->fixed) != 0) return;
    if (rule->relation == RELATION_NONE || (members & own) == 0 || (members & open) != 0) return;
    /* Keys in `moved` are derived, so they change with this key. In an equality, derived factors of
     * `part` can become whatever quotient is left, so `part` is computed without them. If such a
     * key is in `whole`, or in `part` of another relation, no value is ruled out. */
    if ((moved & rule->whole) != 0 || (moved != 0 && !equal)) return;
    int64_t part = candidate_product_of(c, rule->part & ~own & ~moved),
            whole = candidate_product_of(c, rule->whole & ~own);
    if (part <= 0 || whole <= 0) return; /* one of the values is not known */
    if (rule->relation == RELATION_AT_MOST && (rule->part & own) != 0)
        v->high = min_i64(v->high, whole / part);
    else if (rule->relation == RELATION_AT_MOST)
        v->low = max_i64(v->low, (part - 1) / whole + 1);
    else if ((rule->part & own) != 0) {
        if (whole % part != 0) v->high = 0; /* no value is possible */
        v->whole = common_divisor(whole / part, v->whole);
        if (equal && moved == 0) v->low = max_i64(v->low, whole / part);
    } else {
        int64_t step = part / common_divisor(part, whole);
        v->step = step <= v->high ? v->step / common_divisor(v->step, step) * step : v->high + 1;
        if (equal && moved == 0) v->high = min_i64(v->high, step);
    }
}

static void add_divisors(Values *v)
{
    int64_t large[MOST_DIVISORS];
    int n = 0;
    for (int64_t i = 1; i <= v->whole / i; i++) {
        if (v->whole % i != 0) continue;
        CHECK(v->n + n + 2 < MOST_DIVISORS, "%lld has too many divisors", (long long)v->whole);
        v->divisor[v->n++] = i;
        if (i != v->whole / i) large[n++] = v->whole / i;
    }
    while (n > 0)
        v->divisor[v->n++] = large[--n];
    while (v->above < v->n && v->divisor[v->above] <= v->was)
        v->above++;
    v->below = v->above - 1;
    while (v->below >= 0 && v->divisor[v->below] >= v->was)
        v->below--;
}

static void begin_values(Values *v, const Candidate *c, unsigned rules, CandidateKey key, int side,
                         int64_t was, unsigned open)
{
    v->key = key;
    v->was = was;
    v->low = !is_flag(key);
    v->step = 1;
    v->whole = 0;
    v->n = v->below = v->above = 0;
    for (int i = 0; i < RULES && !is_flag(key); i++) {
        const CandidateRule *rule = &candidate_rules[i];
        bool asked = (rules & RULE_BIT(i)) != 0 && (rule->reads & c->unusable) == 0;
        /* Some rules do not apply to a stored config, so no rule narrows its values. */
        if (asked && !c->inspected && !c->stepless) narrow(v, c, rule, open);
    }
    if (side > 0) v->low = max_i64(v->low, was + 1);
    if (side < 0) v->high = min_i64(v->high, was - 1);
    if (v->whole > 0) add_divisors(v);
    v->next_below = min_i64(was - 1, v->high) / v->step * v->step;
    v->next_above = (max_i64(was + 1, v->low) + v->step - 1) / v->step * v->step;
    if (min_i64(was - 1, v->high) < 0) v->next_below = -1;
}

/* Skips values that are outside the limits, and sets *below and *above to the next values to try
 * below and above the old one; -1: there is none. */
static void peek(Values *v, int64_t *below, int64_t *above)
{
    if (v->whole > 0) {
        while (v->below >= 0 && (v->divisor[v->below] > v->high || v->divisor[v->below] % v->step))
            v->below--;
        while (v->above < v->n && (v->divisor[v->above] < v->low || v->divisor[v->above] % v->step))
            v->above++;
        *below = v->below >= 0 ? v->divisor[v->below] : -1;
        *above = v->above < v->n ? v->divisor[v->above] : -1;
    } else {
        *below = v->next_below;
        *above = v->next_above;
    }
    if (*below < v->low) *below = -1;
    if (*above > v->high) *above = -1;
}

/* Returns the next value, -1 after the last. */
static int64_t next_value(Values *v)
{
    int64_t below, above;
    peek(v, &below, &above);
    if (below < 0 && above < 0) return -1;
    if (below >= 0 && (above < 0 || candidate_ratio(v->key, v->was, below) <=
                                        candidate_ratio(v->key, v->was, above))) {
        v->below--;
        v->next_below -= v->step;
        return below;
    }
    v->above++;
    v->next_above += v->step;
    return above;
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct {
    const Candidate *from;
    unsigned rules; /* the rules to check for the current set of keys */
    const Reach *reach;
    CandidateKey key[MOST_KEYS]; /* the current set of keys, in the order of `order` */
    int n;
    bool found;
    int tries;
    double best;
    unsigned keys; /* the keys that the best candidate changes */
    Candidate *to;
} Search;

/* Returns the ratio of the key's two values if the key is in `keys`, the keys that the search
 * changed. Returns 1 for any other key, even if its derived value has changed. */
static double ratio_of(const Candidate *from, const Candidate *to, CandidateKey key, unsigned keys)
{
    bool changed = (keys & KEY_BIT(key)) != 0;
    return changed ? candidate_ratio(key, from->value[key], to->value[key]) : 1;
}

/* Returns whether candidate `a` is preferred to the best candidate so far, if both are equally far
 * from the old candidate. `ka`: the set of keys that `a` changes. */
static bool precedes(const Search *s, const Candidate *a, unsigned ka)
{
    const Candidate *from = s->from, *b = s->to;
    for (int key = CANDIDATE_KEYS - 1; key >= 0; key--) {
        double ra = ratio_of(from, a, key, ka), rb = ratio_of(from, b, key, s->keys);
        if (ra != rb) return ra < rb;
    }
    for (int key = CANDIDATE_KEYS - 1; key >= 0; key--)
        if (((ka | s->keys) & KEY_BIT(key)) != 0 && a->value[key] != b->value[key])
            return a->value[key] < b->value[key];
    return false;
}

double candidate_distance(const Candidate *from, const Candidate *to, unsigned keys)
{
    double ratio = 1;
    for (int key = 0; key < CANDIDATE_KEYS; key++)
        if ((keys & KEY_BIT(key)) != 0)
            ratio *= candidate_ratio(key, from->value[key], to->value[key]);
    return ratio;
}

/* Returns the keys that a rule is about. */
static unsigned keys_of(int rule)
{
    return candidate_rules[rule].reads | candidate_rules[rule].part | candidate_rules[rule].whole;
}

/* Makes `c`, a candidate in which `keys` are changed, the best one if it is legal and is nearer, or
 * equally near and preferred. */
static void offer(Search *s, const Candidate *c, unsigned keys)
{
    double ratio = candidate_distance(s->from, c, keys);
    if (!candidate_legal(c, s->rules)) return;
    bool farther = ratio > s->best * (1 + SAME), nearer = ratio < s->best * (1 - SAME);
    if (s->found && (farther || (!nearer && !precedes(s, c, keys)))) return;
    s->found = true;
    s->best = ratio;
    s->keys = keys;
    *s->to = *c;
}

/* `open`: the set of keys that have no value yet. Returns whether the candidate breaks a rule
 * whatever values they get. */
static bool is_lost(const Search *s, const Candidate *c, unsigned open)
{
    unsigned undecided = candidate_affected(c, open), decided = 0;
    for (int i = 0; i < RULES; i++)
        if ((keys_of(i) & undecided) == 0) decided |= RULE_BIT(i);
    return !candidate_legal(c, s->rules & decided);
}

/* Tries all values of key number `at` of the set, and for each of them all values of the keys after
 * it. `open`: key number `at` and the keys after it; `keys`: all keys of the set; `ratio`: the
 * product of the ratios of the keys before number `at`. */
static void give_values(Search *s, const Candidate *c, int at, double ratio, unsigned open,
                        unsigned keys)
{
    if (at == s->n) {
        offer(s, c, keys);
        return;
    }
    if (is_lost(s, c, open)) return;
    CandidateKey key = s->key[at];
    Values values; /* not initialised as a whole, because it is large */
    values.high = candidate_highest(s->from, key, s->reach);
    begin_values(&values, c, s->rules, key, key == s->reach->key ? s->reach->side : 0,
                 s->from->value[key], open & ~KEY_BIT(key));
    for (int64_t value = next_value(&values); value >= 0 && s->tries++ < MOST_TRIES;
         value = next_value(&values)) {
        double now = ratio * candidate_ratio(key, values.was, value);
        if (s->found && now > s->best * (1 + SAME)) break;
        Candidate next = *c;
        next.value[key] = value;
        candidate_follow(&next);
        give_values(s, &next, at + 1, now, open & ~KEY_BIT(key), keys);
    }
}

static bool can_change(const Candidate *from, CandidateKey key)
{
    return (from->most[key] > 0 || is_flag(key)) && (from->unusable & KEY_BIT(key)) == 0;
}

/* Tries all sets of `n` keys that consist of `keys` and keys of reach->with, the latter from number
 * `at` of `order` on. `asked`: the rules to check for every set. */
static void try_sets(Search *s, unsigned asked, int n, int at, unsigned keys)
{
    int have = 0;
    for (int key = 0; key < CANDIDATE_KEYS; key++)
        have += (keys & KEY_BIT(key)) != 0;
    if (have == n) {
        Candidate c = *s->from;
        s->n = 0;
        for (size_t i = 0; i < sizeof order / sizeof *order; i++)
            if ((keys & KEY_BIT(order[i])) != 0) s->key[s->n++] = order[i];
        s->rules = asked;
        for (int i = 0; i < RULES; i++)
            if ((keys_of(i) & keys) != 0) s->rules |= s->reach->others & RULE_BIT(i);
        c.fixed |= keys | (c.value[CANDIDATE_RANKS] == 0 ? KEY_BIT(CANDIDATE_DATA) : 0);
        give_values(s, &c, 0, 1, keys, keys);
        return;
    }
    for (size_t i = (size_t)at; i < sizeof order / sizeof *order; i++)
        if ((s->reach->with & ~keys & KEY_BIT(order[i])) != 0 && can_change(s->from, order[i]))
            try_sets(s, asked, n, (int)i + 1, keys | KEY_BIT(order[i]));
}

bool nearest_legal(const Candidate *from, unsigned rules, const Reach *reach, Candidate *to)
{
    Search s = {.from = from, .reach = reach, .to = to};
    bool must = reach->key < CANDIDATE_KEYS;
    if (must && !can_change(from, reach->key)) return false;
    for (int n = 1; n <= reach->most && n <= MOST_KEYS && !s.found; n++)
        try_sets(&s, rules, n, 0, must ? KEY_BIT(reach->key) : 0);
    return s.found;
}
