/* test_candidate.c -- tests the rules between sizes and the search for the nearest legal change
 * (candidate.h): the search finds what an exhaustive search finds, and each value that an error
 * suggests is accepted. */
#include "configs/candidate.h"
#include "model/core/check.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BIT(name) KEY_BIT(CANDIDATE_##name)

static uint64_t state_of_random = 1;

/* Returns a random integer from 1 to n. */
static int64_t one_to(int64_t n)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return 1 + (int64_t)((state_of_random >> 33) % (uint64_t)n);
}

/* ---- the search equals an exhaustive one ----------------------------------------------------- */

enum { MOST = 10 }; /* the largest value of each key in these spaces */

/* Returns a random candidate with small numbers, most of them illegal. */
static Candidate random_candidate(void)
{
    static const int64_t limits[CANDIDATE_KEYS] = {
        [CANDIDATE_ACCUMULATION] = 4, [CANDIDATE_MICRO] = 6,   [CANDIDATE_DATA] = 4,
        [CANDIDATE_CHUNKS] = 3,       [CANDIDATE_TENSOR] = 6,  [CANDIDATE_PIPELINE] = 5,
        [CANDIDATE_RANKS] = 10,       [CANDIDATE_BATCH] = 10,  [CANDIDATE_LENGTH] = 6,
        [CANDIDATE_POSITIONS] = 8,    [CANDIDATE_KV] = 4,      [CANDIDATE_HEAD_DIM] = 6,
        [CANDIDATE_WIDTH] = 12,       [CANDIDATE_HIDDEN] = 12, [CANDIDATE_HEADS] = 8,
        [CANDIDATE_LAYERS] = 8};
    static const unsigned follow[] = {BIT(ACCUMULATION), BIT(MICRO),    BIT(DATA),
                                      BIT(SCHEDULE),     BIT(BATCH),    BIT(KV),
                                      BIT(WIDTH),        BIT(HEAD_DIM), BIT(POSITIONS)};
    Candidate c = {.fixed = ~0u};
    for (int key = 0; key < CANDIDATE_KEYS; key++) {
        c.value[key] = limits[key] > 0 ? one_to(limits[key]) : 0;
        c.most[key] = limits[key] > 0 ? MOST : 0;
    }
    c.value[CANDIDATE_SCHEDULE] = one_to(2) - 1;
    c.value[CANDIDATE_SEQUENCE] = one_to(3) == 1;
    c.value[CANDIDATE_ROPE] = one_to(3) == 1;
    if (one_to(5) == 1) c.value[CANDIDATE_SPLIT] = one_to(6);
    for (size_t i = 0; i < sizeof follow / sizeof *follow; i++)
        if (one_to(2) == 1) c.fixed &= ~follow[i];
    if (one_to(3) == 1) {
        c.value[CANDIDATE_RANKS] = 0;
        c.fixed &= ~BIT(RANKS);
    }
    c.automatic = one_to(4) == 1;
    candidate_follow(&c);
    return c;
}

/* Returns whether change a (of keys ka) is preferred to change b (of keys kb). */
static bool is_nearer(const Candidate *from, const Candidate *a, unsigned ka, const Candidate *b,
                      unsigned kb)
{
    int na = __builtin_popcount(ka), nb = __builtin_popcount(kb);
    double da = candidate_distance(from, a, ka), db = candidate_distance(from, b, kb);
    if (na != nb) return na < nb;
    if (da < db * (1 - 1e-9) || db < da * (1 - 1e-9)) return da < db;
    for (int key = CANDIDATE_KEYS - 1; key >= 0; key--) {
        double ra = (ka >> key & 1u) != 0 ? candidate_ratio(key, from->value[key], a->value[key])
                                          : 1,
               rb = (kb >> key & 1u) != 0 ? candidate_ratio(key, from->value[key], b->value[key])
                                          : 1;
        if (ra != rb) return ra < rb;
    }
    for (int key = CANDIDATE_KEYS - 1; key >= 0; key--)
        if (((ka | kb) >> key & 1u) != 0 && a->value[key] != b->value[key])
            return a->value[key] < b->value[key];
    return false;
}

/* Tries every change of up to two keys. Stores the nearest legal one in *best, and the keys that it
 * changes in *changed; returns false if none is legal. */
static bool exhaustive(const Candidate *from, unsigned rules, const Reach *reach, Candidate *best,
                       unsigned *changed)
{
    bool found = false;
    bool must = reach->key < CANDIDATE_KEYS;
    unsigned may = reach->with | (must ? KEY_BIT(reach->key) : 0);
    for (int i = 0; i < CANDIDATE_KEYS; i++)
        for (int j = i; j < CANDIDATE_KEYS; j++) {
            unsigned keys = KEY_BIT(i) | KEY_BIT(j);
            if ((keys & ~may) != 0 || (i != j && reach->most < 2)) continue;
            if (must && (keys & KEY_BIT(reach->key)) == 0) continue;
            int64_t high_i = candidate_highest(from, i, reach),
                    high_j = i == j ? 0 : candidate_highest(from, j, reach);
            for (int64_t x = 0; x <= high_i; x++)
                for (int64_t y = 0; y <= high_j; y++) {
                    Candidate c = *from;
                    c.fixed |= keys | (from->value[CANDIDATE_RANKS] == 0 ? BIT(DATA) : 0);
                    c.value[i] = x;
                    if (i != j) c.value[j] = y;
                    bool flag_i = i == CANDIDATE_SCHEDULE || i == CANDIDATE_SEQUENCE,
                         flag_j = j == CANDIDATE_SCHEDULE || j == CANDIDATE_SEQUENCE;
                    if (x == from->value[i] || (x == 0 && !flag_i)) continue;
                    if (i != j && (y == from->value[j] || (y == 0 && !flag_j))) continue;
                    int64_t now = must ? c.value[reach->key] - from->value[reach->key] : 0;
                    if (now * reach->side < 0) continue;
                    candidate_follow(&c);
                    if (!candidate_legal(&c, rules)) continue;
                    if (found && !is_nearer(from, &c, keys, best, *changed)) continue;
                    found = true;
                    *best = c;
                    *changed = keys;
                }
        }
    return found;
}

static void nearest_legal_finds_the_same_as_an_exhaustive_search(void **state)
{
    (void)state;
    static const struct {
        CandidateKey key;
        unsigned with;
    } cases[] = {
        {CANDIDATE_TENSOR, BIT(MICRO) | BIT(ACCUMULATION) | BIT(BATCH)},
        {CANDIDATE_PIPELINE, BIT(TENSOR)},
        {CANDIDATE_CHUNKS, BIT(SCHEDULE)},
        {CANDIDATE_MICRO, BIT(ACCUMULATION)},
        {CANDIDATE_ACCUMULATION, BIT(RANKS)},
        {CANDIDATE_BATCH, 0},
        {CANDIDATE_RANKS, BIT(MICRO)},
        {CANDIDATE_DATA, BIT(TENSOR)},
        {CANDIDATE_KV, BIT(HEADS)},
        {CANDIDATE_HIDDEN, BIT(WIDTH)},
        {CANDIDATE_HEAD_DIM, BIT(HEADS)},
        {CANDIDATE_LENGTH, BIT(POSITIONS)},
        {CANDIDATE_POSITIONS, BIT(LAYERS)},
        {CANDIDATE_KEYS, BIT(TENSOR) | BIT(PIPELINE) | BIT(CHUNKS) | BIT(SCHEDULE) | BIT(DATA)},
        {CANDIDATE_KEYS, BIT(SEQUENCE) | BIT(RANKS) | BIT(LAYERS) | BIT(WIDTH) | BIT(BATCH)},
    };
    enum { CASES = sizeof cases / sizeof *cases, ROUNDS = 1500 };
    int found = 0, none = 0;
    for (int round = 0; round < ROUNDS; round++) {
        Candidate from = random_candidate(), fast, slow;
        int i = round % CASES;
        /* Most of the time, candidates that break more than two rules are drawn again. */
        while (one_to(8) > 1 && __builtin_popcount(candidate_broken(&from)) > 2)
            from = random_candidate();
        unsigned broken = candidate_broken(&from), changed = 0;
        /* The search must mend all rules or only one broken rule. Of the rules that are not broken,
         * about half must still hold. */
        unsigned rules = one_to(4) == 1 ? ALL_RULES : ALL_RULES & ~(broken & (broken - 1));
        for (int rule = 0; rule < RULES; rule++)
            if (one_to(2) == 1 && (broken >> rule & 1u) == 0) rules &= ~RULE_BIT(rule);
        const Reach reach = {cases[i].key, .side = (int)one_to(3) - 2, .with = cases[i].with,
                             .most = 1 + (one_to(4) > 1), .far = one_to(2) == 1};
        bool is = exhaustive(&from, rules, &reach, &slow, &changed),
             says = nearest_legal(&from, rules, &reach, &fast);
        if (is != says) fail_msg("round %d: %d, exhaustive %d", round, says, is);
        for (int key = 0; key < CANDIDATE_KEYS && is; key++)
            if (fast.value[key] != slow.value[key])
                fail_msg("round %d: key %d is %d, exhaustive %d", round, key, (int)fast.value[key],
                         (int)slow.value[key]);
        found += is;
        none += !is;
    }
    print_message("  %d found, %d without\n", found, none);
    assert_true(found > ROUNDS / 10 && none > ROUNDS / 10);
}

/* A search among huge numbers must end soon: the divisors, multiples and limits that a rule allows
 * are computed, not found by trying all numbers. */
static void a_search_among_huge_numbers_ends_quickly(void **state)
{
    (void)state;
    Candidate from = random_candidate(), to;
    from.fixed = ~0u & ~BIT(DATA) & ~BIT(ACCUMULATION);
    for (int key = 0; key < CANDIDATE_KEYS; key++)
        from.most[key] = 1000000000;
    from.value[CANDIDATE_RANKS] = from.value[CANDIDATE_TENSOR] = 1;
    from.value[CANDIDATE_PIPELINE] = 1;
    from.value[CANDIDATE_BATCH] = 1000000000;
    from.value[CANDIDATE_MICRO] = 999999937;
    candidate_follow(&from);
    assert_true(nearest_legal(&from, RULE_BIT(RULE_BATCH),
                              &(Reach){.key = CANDIDATE_MICRO, .side = -1, .most = 1}, &to));
    assert_int_equal(to.value[CANDIDATE_MICRO], 500000000);
    assert_true(nearest_legal(&from, RULE_BIT(RULE_BATCH),
                              &(Reach){.key = CANDIDATE_BATCH, .most = 1, .far = true}, &to));
    assert_int_equal(to.value[CANDIDATE_BATCH], 999999937);
}

/* A search does not change a key whose value was refused, because that value has an error of its
 * own, which says what to write. */
static void nearest_legal_does_not_change_a_refused_key(void **state)
{
    (void)state;
    Candidate from = random_candidate(), to;
    const Reach reach = {.key = CANDIDATE_MICRO, .most = 1, .far = true};
    assert_true(nearest_legal(&from, 0, &reach, &to));
    from.unusable = BIT(MICRO);
    assert_false(nearest_legal(&from, 0, &reach, &to));
}

/* ---- what errors suggest is accepted --------------------------------------------------------- */

typedef struct {
    int64_t ranks, tensor, pipeline, chunks, heads, kv, layers, width, batch, micro, accum, data;
    int64_t length;
    bool sequence;
    const char *schedule;
} Sizes;

static const Config *load(const Sizes *s, ConfigReport *report)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    fprintf(
        to,
        "{\"data\": {\"text\": \"x\", \"seq_length\": %d}, \"gradient_clipping\": 1, \"model\": "
        "{\"num_layers\": %d, \"hidden_size\": %d, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"intermediate_size\": %d}, \"parallel\": {\"tensor\": "
        "%d, \"pipeline\": %d, \"pipeline_chunks\": %d, \"sequence_parallel\": %s",
        (int)s->length, (int)s->layers, (int)(4 * s->heads), (int)s->heads, (int)s->kv,
        (int)s->width, (int)s->tensor, (int)s->pipeline, (int)s->chunks,
        s->sequence ? "true" : "false");
    if (s->data > 0) fprintf(to, ", \"data\": %d", (int)s->data);
    if (s->schedule != NULL) fprintf(to, ", \"schedule\": \"%s\"", s->schedule);
    fprintf(to, "}");
    if (s->batch > 0) fprintf(to, ", \"train_batch_size\": %d", (int)s->batch);
    if (s->micro > 0) fprintf(to, ", \"train_micro_batch_size_per_gpu\": %d", (int)s->micro);
    if (s->accum > 0) fprintf(to, ", \"gradient_accumulation_steps\": %d", (int)s->accum);
    fprintf(to, "}");
    fclose(to);
    const ConfigContext context = {.world = s->ranks};
    const Config *c = config_parse(&context, "c.json", text, size, 0, NULL, report);
    free(text);
    return c;
}

/* Follows one suggestion: words such as "pipeline 4 and schedule \"1f1b\"". `key`: the name of the
 * key for suggestions that are only numbers. */
static bool follow(Sizes *s, const char *words, const char *key)
{
    const struct {
        const char *name;
        int64_t *field;
    } fields[] = {{"--ranks ", &s->ranks},
                  {"train on ", &s->ranks},
                  {"tensor ", &s->tensor},
                  {"pipeline ", &s->pipeline},
                  {"pipeline_chunks ", &s->chunks},
                  {"train_batch_size ", &s->batch},
                  {"train_micro_batch_size_per_gpu ", &s->micro},
                  {"gradient_accumulation_steps ", &s->accum}};
    int n = 0;
    if (strstr(words, "leave the key out") != NULL || strstr(words, "without parallel.data"))
        s->data = 0, n++;
    if (strstr(words, "leave gradient_accumulation_steps out") != NULL) s->accum = 0, n++;
    if (strstr(words, "false here") || strstr(words, "sequence_parallel false"))
        s->sequence = false, n++;
    if (strstr(words, "\"1f1b\"") != NULL) s->schedule = "1f1b", n++;
    if (strstr(words, "\"interleaved\"") != NULL) s->schedule = "interleaved", n++;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *at = strstr(words, fields[i].name);
        bool own = strcmp(fields[i].name, key) == 0;
        if (own && words[0] >= '0' && words[0] <= '9') at = words - strlen(key);
        if (at == NULL || at[strlen(fields[i].name)] < '0' || at[strlen(fields[i].name)] > '9')
            continue;
        *fields[i].field = strtoll(at + strlen(fields[i].name), NULL, 10);
        n++;
    }
    return n > 0;
}

/* Follows each suggestion of the error by itself, and fails unless the config is then accepted.
 * Returns the number of suggestions. */
static int follow_all(const Sizes *sizes, const char *error)
{
    const char *key = strstr(error, "parallel.tensor: ") != NULL     ? "tensor "
                      : strstr(error, "parallel.pipeline: ") != NULL ? "pipeline "
                      : strstr(error, "pipeline_chunks: ") != NULL   ? "pipeline_chunks "
                                                                     : "";
    char *copy = must_strdup(strstr(error, "; write ") + strlen("; write ")), *rest = copy;
    bool is_data = strstr(error, "parallel.data: ") != NULL;
    int followed = 0;
    while (rest != NULL) {
        char *next = strstr(rest, ", or "), *second, other[256] = "";
        if (next != NULL) *next = '\0';
        /* "--ranks 2 or 4": two suggestions with the same words around them */
        if ((second = strstr(rest, " or ")) != NULL && second[4] >= '0' && second[4] <= '9') {
            char *number = second;
            while (number > rest && number[-1] != ' ')
                number--;
            snprintf(other, sizeof other, "%.*s%s", (int)(number - rest), rest, second + 4);
            char *after = second + 4;
            while (*after >= '0' && *after <= '9')
                after++;
            memmove(second, after, strlen(after) + 1);
        }
        const char *both[] = {rest, other};
        for (int i = 0; i < 2 && *both[i]; i++) {
            Sizes now = *sizes;
            ConfigReport report;
            if (is_data && both[i][0] >= '0' && both[i][0] <= '9')
                now.data = strtoll(both[i], NULL, 10);
            else if (!follow(&now, both[i], key))
                fail_msg("\"%s\" is not understood: %s", both[i], error);
            const Config *c = load(&now, &report);
            if (c == NULL) fail_msg("%s\nfollowed \"%s\":\n%s", error, both[i], report.error[0]);
            config_report_free(&report);
            config_free(c);
            followed++;
        }
        rest = next != NULL ? next + strlen(", or ") : NULL;
    }
    free(copy);
    return followed;
}

/* With sanitizers, loading a config takes milliseconds. So slow builds (TEST_SAMPLE) load only a
 * fifth of the configs, another fifth at each commit. */
static void every_suggestion_is_accepted(void **state)
{
    (void)state;
    static const char *const schedules[] = {NULL, NULL, NULL, "1f1b", "gpipe", "interleaved"};
    enum { ROUNDS = 4000 };
    int64_t every = turns_every(5), first = turns_first(every);
    int followed = 0, errors = 0, several = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t heads = one_to(12), kv = one_to(2) == 1 ? heads : one_to(heads);
        while (heads % kv != 0)
            kv--;
        const Sizes sizes = {
            .ranks = one_to(4) == 1 ? 0 : one_to(one_to(3) == 1 ? 100 : 16),
            .tensor = one_to(2) == 1 ? 1 : one_to(8),
            .pipeline = one_to(2) == 1 ? 1 : one_to(6),
            .chunks = one_to(4) == 1 ? one_to(4) : 1,
            .heads = heads,
            .kv = kv,
            .layers = one_to(12),
            .width = one_to(6) * 12,
            .batch = one_to(4) == 1 ? 0 : one_to(48),
            .micro = one_to(2) == 1 ? 0 : one_to(8),
            .accum = one_to(2) == 1 ? 0 : one_to(8),
            .data = one_to(4) == 1 ? one_to(6) : 0,
            .length = one_to(12),
            .sequence = one_to(4) == 1,
            .schedule = schedules[one_to(6) - 1],
        };
        if (round % every != first) continue;
        ConfigReport report;
        const Config *c = load(&sizes, &report);
        several += report.n_errors > 1;
        if (report.n_errors == 1) {
            errors++;
            followed += follow_all(&sizes, report.error[0]);
        }
        config_report_free(&report);
        config_free(c);
    }
    print_message("  %d suggestions of %d errors followed; %d configs with several errors\n",
                  followed, errors, several);
    assert_true(errors > ROUNDS / every / 4 && followed > errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nearest_legal_finds_the_same_as_an_exhaustive_search),
        cmocka_unit_test(a_search_among_huge_numbers_ends_quickly),
        cmocka_unit_test(nearest_legal_does_not_change_a_refused_key),
        cmocka_unit_test(every_suggestion_is_accepted),
    };
    return cmocka_run_group_tests_name("candidate", tests, NULL, NULL);
}
