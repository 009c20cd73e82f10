/* near.c -- writes the suggestions for values that break a rule: the nearest legal changes
 * (candidate.h), as text. */
#include "configs/reader/candidate_rules.h"
#include "configs/reader/load.h"

#include <stdio.h>
#include <string.h>

enum {
    SIZES = KEY_BIT(CANDIDATE_TENSOR) | KEY_BIT(CANDIDATE_PIPELINE) | KEY_BIT(CANDIDATE_CHUNKS) |
            KEY_BIT(CANDIDATE_SCHEDULE) | KEY_BIT(CANDIDATE_DATA),
    BATCHES = KEY_BIT(CANDIDATE_MICRO) | KEY_BIT(CANDIDATE_ACCUMULATION) |
              KEY_BIT(CANDIDATE_BATCH) | KEY_BIT(CANDIDATE_SEQUENCE),
    RULES_OF_GRID = RULE_BIT(RULE_HEADS) | RULE_BIT(RULE_GROUPS) | RULE_BIT(RULE_WIDTH) |
                    RULE_BIT(RULE_CHUNKS) | RULE_BIT(RULE_BLOCKS) | RULE_BIT(RULE_WORLD) |
                    RULE_BIT(RULE_DATA) | RULE_BIT(RULE_SCHEDULE)
};

bool load_breaks(const Load *load, RuleId rule)
{
    return (load->broken & RULE_BIT(rule)) != 0;
}

/* Returns the rules, other than `rule`, that have or will have errors of their own. A change that
 * mends `rule` need not mend them, unless it changes one of their keys. */
static unsigned others(const Load *load, RuleId rule)
{
    return candidate_others(&load->candidate, load->broken, rule);
}

/* Returns whether a suggested value of the key may be more than four times the current one.
 * Multiples of a number are suggested even if the nearest one is that far away. Divisors that far
 * away are not suggested: 4099 is no useful suggestion for a user who wrote 3. */
static bool is_far(RuleId rule, CandidateKey key)
{
    return key == CANDIDATE_BATCH || key == CANDIDATE_HIDDEN || key == CANDIDATE_POSITIONS ||
           (key == CANDIDATE_RANKS && rule != RULE_BATCH);
}

/* Appends text to the string at `out`, which has room for n bytes. */
static void add(char *out, size_t n, const char *text)
{
    size_t at = strlen(out);
    if (at < n) snprintf(out + at, n - at, "%s", text);
}

/* Appends the changes from `from` to `to`, except that of `key`, each after " and ". Keys of the
 * section `parallel` are written without the section's name, because the message is about that
 * section. */
static void add_changes(const Candidate *from, const Candidate *to, CandidateKey key, char *out,
                        size_t n)
{
    static const char section[] = "parallel.";
    static const CandidateKey order[] = {CANDIDATE_TENSOR,   CANDIDATE_PIPELINE, CANDIDATE_CHUNKS,
                                         CANDIDATE_SCHEDULE, CANDIDATE_SEQUENCE, CANDIDATE_BATCH,
                                         CANDIDATE_MICRO};
    char text[128];
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const char *name = candidate_key_name(order[i]);
        if (strncmp(name, section, sizeof section - 1) == 0) name += sizeof section - 1;
        bool changes = (to->fixed & KEY_BIT(order[i])) != 0 &&
                       to->value[order[i]] != from->value[order[i]] && order[i] != key;
        if (!changes) continue;
        if (order[i] == CANDIDATE_SEQUENCE)
            snprintf(text, sizeof text, " and %s %s", name,
                     to->value[order[i]] != 0 ? "true" : "false");
        else if (order[i] == CANDIDATE_SCHEDULE)
            snprintf(text, sizeof text, " and schedule \"%s\"",
                     to->value[order[i]] != 0 ? "interleaved" : "1f1b");
        else
            snprintf(text, sizeof text, " and %s %lld", name, (long long)to->value[order[i]]);
        add(out, n, text);
    }
    /* The accumulation and parallel.data are derived if they are left out, so that is suggested. */
    if ((to->fixed & KEY_BIT(CANDIDATE_ACCUMULATION)) != 0 && key != CANDIDATE_ACCUMULATION &&
        to->value[CANDIDATE_ACCUMULATION] != from->value[CANDIDATE_ACCUMULATION])
        add(out, n, " and leave gradient_accumulation_steps out");
    if ((to->fixed & KEY_BIT(CANDIDATE_DATA)) != 0 && key != CANDIDATE_DATA &&
        to->value[CANDIDATE_DATA] != from->value[CANDIDATE_DATA])
        add(out, n, " without parallel.data");
}

/* Writes the values of `key` in to[0], the candidate below, and in to[1], the candidate above, if
 * they were found. If these two also change other keys, but in different ways, writes only the
 * nearer one. */
static void write_both(const Candidate *from, CandidateKey key, const bool found[2],
                       const Candidate to[2], char *out, size_t n)
{
    char rest[2][160] = {"", ""};
    bool both = found[0] && found[1];
    for (int i = 0; i < 2; i++)
        if (found[i]) add_changes(from, &to[i], key, rest[i], sizeof rest[i]);
    int first = found[0] ? 0 : 1;
    if (both && strcmp(rest[0], rest[1]) != 0) {
        both = false;
        first = candidate_distance(from, &to[1], to[1].fixed) <
                candidate_distance(from, &to[0], to[0].fixed);
    }
    if (both)
        snprintf(out, n, "%lld or %lld%s", (long long)to[0].value[key], (long long)to[1].value[key],
                 rest[0]);
    else
        snprintf(out, n, "%lld%s", (long long)to[first].value[key], rest[first]);
}

bool near_values(const Load *load, RuleId rule, CandidateKey key, unsigned with, char *out,
                 size_t n)
{
    const Candidate *from = &load->candidate;
    Candidate to[2];
    bool found[2] = {false, false};
    for (int most = 1; most <= 1 + (with != 0) && !found[0] && !found[1]; most++)
        for (int i = 0; i < 2; i++)
            found[i] = nearest_legal(from, ALL_RULES & ~others(load, rule),
                                     &(Reach){.key = key,
                                              .side = i == 0 ? -1 : 1,
                                              .with = with,
                                              .most = most,
                                              .others = others(load, rule),
                                              .far = is_far(rule, key)},
                                     &to[i]);
    if (!found[0] && !found[1]) return false;
    write_both(from, key, found, to, out, n);
    return true;
}

bool near_value(const Load *load, RuleId rule, CandidateKey key, int side, char *out, size_t n)
{
    Candidate to;
    const Reach reach = {.key = key,
                         .side = side,
                         .most = 1,
                         .others = others(load, rule),
                         .far = is_far(rule, key)};
    if (!nearest_legal(&load->candidate, ALL_RULES & ~others(load, rule), &reach, &to))
        return false;
    snprintf(out, n, "%lld", (long long)to.value[key]);
    return true;
}

void near_sizes(Load *load, RuleId rule, char *out, size_t n)
{
    static const struct {
        unsigned with;
        int most;
        bool grid; /* only the rules of the grid must hold */
    } wider[] = {{SIZES, 2, false},
                 {SIZES | BATCHES, 2, false},
                 {SIZES, 5, false},
                 {SIZES | BATCHES, 6, false},
                 /* If there are other mistakes, such as a wrong split of the layers, only the grid
                  * can be made legal. */
                 {SIZES, 5, true}};
    const Candidate *from = &load->candidate;
    /* The rules that need not hold. Other errors of the grid are mended at the same time, so that
     * all of them suggest the same sizes. */
    unsigned apart = candidate_others(from, load->broken & ~RULES_OF_GRID, rule);
    Candidate to;
    char changes[256] = "";
    bool found = false;
    for (size_t i = 0; i < sizeof wider / sizeof *wider && !found; i++) {
        unsigned asked = wider[i].grid ? RULES_OF_GRID : ALL_RULES;
        found = nearest_legal(from, asked & ~apart,
                              &(Reach){.key = CANDIDATE_KEYS,
                                       .with = wider[i].with,
                                       .most = wider[i].most,
                                       .others = asked & apart},
                              &to);
    }
    if (found) add_changes(from, &to, CANDIDATE_KEYS, changes, sizeof changes);
    /* The suggestion includes the schedule that goes with the chunks, so the schedule gets no error
     * of its own. */
    if (found && (to.value[CANDIDATE_CHUNKS] != from->value[CANDIDATE_CHUNKS] ||
                  to.value[CANDIDATE_SCHEDULE] != from->value[CANDIDATE_SCHEDULE]))
        load->origin[option_find(candidate_key_name(CANDIDATE_SCHEDULE))].wrong = true;
    /* writes the changes without the first " and " */
    static const char join[] = " and ";
    bool joined = strncmp(changes, join, sizeof join - 1) == 0;
    snprintf(out, n, "%s", changes + (joined ? sizeof join - 1 : 0));
}
