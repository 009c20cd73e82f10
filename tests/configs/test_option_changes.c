/* test_option_changes.c -- tests for every row of the option table that changing its key changes
 * what the row lists and nothing else, and that a resumed run behaves as the row says. Each case
 * has three short runs: one with each of two values of the key, and one that is resumed from the
 * first with the second value. */
#include "configs/reader/options.h"
#include "tests/support/trainer/option_cases.h"
#include "tests/support/trainer/seen_run.h"
#include "tests/support/trainer/train_child.h"

#include "model/core/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { MAX_BASES = 80 };

/* If only rounding changes, losses differ by no more than this factor. */
static const double ROUNDING = 0.01;

/* Steps of a first run, and the step after which a resumed run starts. */
enum { STEPS = 6, RESUMED_AT = 2 };

typedef struct {
    int ranks;
    const char *const *set;
    Seen seen;
    char checkpoint[64]; /* path of the checkpoint of step RESUMED_AT */
} Base;

/* Returns the first run of a case; cases with the same settings share it. */
static const Base *base_run(Base *base, int *n, int ranks, const char *const *set)
{
    char kept[32];
    for (int i = 0; i < *n; i++) {
        int same = 0;
        if (base[i].ranks != ranks) continue;
        while (set[same] != NULL && base[i].set[same] != NULL &&
               strcmp(set[same], base[i].set[same]) == 0)
            same++;
        if (set[same] == NULL && base[i].set[same] == NULL) return &base[i];
    }
    assert_true(*n < MAX_BASES);
    base[*n].set = set;
    base[*n].ranks = ranks;
    seen_run(&base[*n].seen, "run", ranks, set, NULL);
    /* Move the run to a folder where no test looks for a run's files. */
    snprintf(kept, sizeof kept, "kept/%d", *n);
    assert_int_equal(rename("run", kept), 0);
    snprintf(base[*n].checkpoint, sizeof base[*n].checkpoint, "%s/checkpoints/step_%08d", kept,
             RESUMED_AT);
    return &base[(*n)++];
}

/* Returns the OptionChanges that differ between two runs, as a bit set. */
static unsigned differences(const OptionCase *c, const Seen *was, const Seen *now)
{
    bool shown = c->shows != NULL && (strstr(was->console, c->shows) == NULL) !=
                                         (strstr(now->console, c->shows) == NULL);
    return (seen_same_losses(was, now) ? 0 : CHANGES_LOSSES) |
           (strcmp(was->samples, now->samples) == 0 ? 0 : CHANGES_SAMPLES) |
           (strcmp(was->plan, now->plan) == 0 ? 0 : CHANGES_PLAN) |
           (strcmp(was->files, now->files) == 0 ? 0 : CHANGES_FILES) |
           (*was->wire == '\0' || *now->wire == '\0' || strcmp(was->wire, now->wire) == 0
                ? 0
                : CHANGES_WIRE) |
           (shown ? CHANGES_CONSOLE : 0);
}

/* Returns whether all losses differ by rounding only. */
static bool losses_near(const Seen *was, const Seen *now)
{
    bool near = was->n_losses == now->n_losses;
    for (int i = 0; near && i < was->n_losses; i++)
        near = fabs(now->losses[i] / was->losses[i] - 1) < ROUNDING;
    return near;
}

/* Returns what the row allows to differ: the changes it lists, and their consequences. */
static unsigned allowed_to_differ(const Option *row)
{
    unsigned allowed = row->changes | CHANGES_CONSOLE;
    if (row->effect == EFFECT_ROUNDING) allowed |= CHANGES_LOSSES;
    if (allowed & CHANGES_LOSSES) allowed |= CHANGES_SAMPLES;
    if (row->changes & CHANGES_LOSSES) allowed |= CHANGES_FILES;
    return allowed;
}

/* Returns how these two runs contradict the row, or NULL if they do not. Adds the expected
 * differences to *seen. */
static const char *contradiction(const Option *row, const OptionCase *c, const Seen *was,
                                 const Seen *now, unsigned *seen)
{
    bool no_device = row->effect == EFFECT_ROUNDING && now->code == EXIT_UNAVAILABLE,
         lost = now->code == EXIT_DIVERGED && isnan(now->losses[now->n_losses - 1]);
    if (now->code != c->code && !no_device && !lost) return "the second run ends with another code";
    if (now->n_losses == 0) { /* the second run was refused, so the value was read */
        *seen |= row->changes;
        return NULL;
    }
    unsigned differ = differences(c, was, now);
    *seen |= differ & row->changes;
    if (row->changes == CHANGES_NOTHING)
        return differ ? "the row names nothing, and something is another" : NULL;
    if (!(differ & row->changes)) return "nothing that the row names is another";
    if (differ & ~allowed_to_differ(row)) return "something that the row does not name is another";
    if (row->effect == EFFECT_ROUNDING && !(row->changes & CHANGES_LOSSES) &&
        !losses_near(was, now))
        return "more than rounding is another";
    return NULL;
}

/* ---- resumed runs ---------------------------------------------------------------------------- */

/* Returns how a run resumed with the second value contradicts the row's effect, or NULL if it does
 * not. Sets *numbers if the results differ. An unchanged run would have the losses of the first run
 * from step RESUMED_AT on. */
static const char *resume_contradiction(const OptionCase *c, const Option *row, const Seen *was,
                                        const Seen *now, bool *numbers)
{
    bool same = true, near = true, refused = strstr(now->console, "which cannot go on") != NULL;
    if (row->effect == EFFECT_IMPOSSIBLE || c->impossible)
        return refused ? NULL : "the run is resumed";
    if (refused) return "the run is not resumed";
    /* This machine has no such device, or the losses diverged. */
    if (now->code == EXIT_UNAVAILABLE || now->code == EXIT_DIVERGED) return NULL;
    /* a changed text gives another tokenizer, so the run is refused */
    *numbers |= now->code == EXIT_CONFIG;
    if (row->effect == EFFECT_NUMBERS && *numbers) return NULL;
    if (now->code != EXIT_OK) return "the resumed run ends with another code";
    int expected = was->n_losses - RESUMED_AT;
    for (int i = 0; i < expected && i < now->n_losses; i++) {
        double a = was->losses[RESUMED_AT + i], b = now->losses[i];
        same = same && a == b;
        near = near && fabs(b / a - 1) < ROUNDING;
    }
    bool as_long = now->n_losses == expected;
    const char *last = strstr(was->evaluations, "\n6 ");
    bool evaluated = last && strstr(now->evaluations, last + 1) != NULL;
    *numbers |= !same || !as_long || !evaluated;
    if (row->effect == EFFECT_NONE && !same) return "the resumed run has other losses";
    if (row->effect == EFFECT_ROUNDING && !near) return "more than rounding is another, resumed";
    return as_long || row->effect == EFFECT_NUMBERS ? NULL : "the resumed run has other steps";
}

/* Returns whether changing the key affects results only in the first steps of a run, or after a
 * gradient overflow or a spike. The effect of these keys is checked only by golden/config_keys.txt.
 */
static bool shows_no_numbers(const char *key)
{
    static const char *const keys[] = {"data.corpus",
                                       "checkpoint.init_from",
                                       "scheduler.params.cycle_first_stair_count",
                                       "scheduler.params.cycle_momentum",
                                       "fp16.loss_scale",
                                       "fp16.initial_scale_power",
                                       "fp16.hysteresis",
                                       "fp16.consecutive_hysteresis",
                                       "fp16.min_loss_scale",
                                       "bf16.check_grad_overflow",
                                       "health.policy",
                                       "health.spike_deviations"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}

/* Resumes the first run with the second value; returns false if that contradicts the row. */
static bool see_resumed(const OptionCase *c, const Option *row, const Base *base, bool *numbers)
{
    if (c->code != EXIT_OK || base->seen.n_losses != STEPS) return true;
    Seen now;
    char *set = text_format("%s=%s", c->key, c->value);
    seen_resume(&now, "run", base->checkpoint, c->ranks, c->set,
                (const char *const[]){set, c->beside, NULL});
    const char *what = resume_contradiction(c, row, &base->seen, &now, numbers);
    if (what != NULL) print_error("%s: %s\n%s\n", set, what, now.console);
    seen_free(&now);
    free(set);
    return what == NULL;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Returns whether this test, on this machine, can observe a change of the key. */
static bool can_be_seen(const OptionCase *c, const Seen *was)
{
    if (c->elsewhere != NULL) print_message("  %s: seen by %s\n", c->key, c->elsewhere);
    if (c->elsewhere != NULL) return false;
    bool always = strcmp(c->key, "cpu.level") == 0 && strstr(was->console, c->shows) != NULL;
    if (always) print_message("  %s: this machine has one level\n", c->key);
    return !always;
}

/* Does the second run of a case; returns false if the two runs contradict the row. */
static bool see_case(const OptionCase *c, const Option *row, const Seen *was, unsigned *seen)
{
    Seen now;
    char *set = text_format("%s=%s", c->key, c->value);
    if (was->code != EXIT_OK || was->n_losses == 0)
        fail_msg("the first run for %s ends with %d:\n%s", set, was->code, was->console);
    seen_run(&now, "run", c->ranks, c->set, (const char *const[]){set, c->beside, NULL});
    const char *what = contradiction(row, c, was, &now, seen);
    if (what != NULL) {
        print_error("%s: %s (ends with %d after %d steps)\n", set, what, now.code, now.n_losses);
        if (now.code != c->code) print_error("%s\n", now.console);
    }
    seen_free(&now);
    free(set);
    return what == NULL;
}

static void test_every_option_changes_exactly_what_its_row_lists(void **state)
{
    (void)state;
    Base *base = must_calloc(MAX_BASES, sizeof *base);
    unsigned *seen = must_calloc((size_t)option_count, sizeof *seen);
    bool *numbers = must_calloc((size_t)option_count, sizeof *numbers);
    int n_bases = 0, wrong = 0;
    bool thin = getenv("TEST_SAMPLE") != NULL;
    const char *const large[] = {"data.tokenizer_vocab_size=400", NULL};
    assert_int_equal(mkdir("kept", 0777), 0);
    /* This run leaves a tokenizer, which the case of data.tokenizer uses. */
    seen_run(&base[0].seen, "large", 0, large, NULL);
    seen_free(&base[0].seen);
    for (int i = 0; i < option_case_count; i += thin ? 11 : 1) {
        const OptionCase *c = &option_cases[i];
        int row = option_find(c->key);
        if (row < 0) fail_msg("%s is no option", c->key);
        const Base *was = c->elsewhere ? NULL : base_run(base, &n_bases, c->ranks, c->set);
        if (can_be_seen(c, was ? &was->seen : NULL)) {
            wrong += !see_case(c, &option_table[row], &was->seen, &seen[row]);
            wrong += !see_resumed(c, &option_table[row], was, &numbers[row]);
        } else {
            seen[row] = option_table[row].changes;
        }
    }
    for (int row = 0; row < option_count && !thin; row++) {
        if (seen[row] == option_table[row].changes) continue;
        print_error("%s: of what it names, %#x, only %#x was seen\n", option_table[row].key,
                    option_table[row].changes, seen[row]);
        wrong++;
    }
    for (int row = 0; row < option_count && !thin; row++) {
        const Option *option = &option_table[row];
        if (option->effect != EFFECT_NUMBERS || numbers[row] || shows_no_numbers(option->key))
            continue;
        print_error("%s: no resumed run has other numbers\n", option->key);
        wrong++;
    }
    for (int i = 0; i < n_bases; i++)
        seen_free(&base[i].seen);
    free(base);
    free(numbers);
    free(seen);
    assert_int_equal(wrong, 0);
}

/* This makes sure that a new option is not forgotten. */
static void test_every_option_has_a_test_case(void **state)
{
    (void)state;
    int missing = 0;
    for (int row = 0; row < option_count; row++) {
        int cases = 0;
        for (int i = 0; i < option_case_count; i++)
            cases += strcmp(option_cases[i].key, option_table[row].key) == 0;
        if (cases == 0) print_error("%s has no case\n", option_table[row].key);
        missing += cases == 0;
    }
    assert_int_equal(missing, 0);
}

/* On two ranks, gradient_allreduce_op "sum" gives twice the mean, so half the learning rate gives
 * bitwise the same steps. On one rank it equals the mean. */
static void test_gradient_sum_of_two_ranks_is_twice_their_mean(void **state)
{
    (void)state;
    static const char *const mean[] = {"optimizer.type=SGD", "optimizer.params.lr=0.25",
                                       "optimizer.params.weight_decay=0", "gradient_clipping=0",
                                       NULL},
                             *const sum[] = {"gradient_allreduce_op=sum", NULL},
                             *const half[] = {"gradient_allreduce_op=sum",
                                              "optimizer.params.lr=0.125", NULL};
    const struct {
        int ranks;
        const char *const *more;
        bool same;
    } cases[] = {{1, sum, true}, {2, sum, false}, {2, half, true}};
    for (int i = 0; i < 3; i++) {
        Seen was, now;
        seen_run(&was, "run", cases[i].ranks, mean, NULL);
        seen_run(&now, "run", cases[i].ranks, mean, cases[i].more);
        assert_int_equal(was.code, EXIT_OK);
        assert_int_equal(now.code, EXIT_OK);
        assert_int_equal(seen_same_losses(&was, &now), cases[i].same);
        seen_free(&was);
        seen_free(&now);
    }
}

/* Returns what `generate` prints with these options (the list ends with NULL), between the line
 * that names the checkpoint and the line about the speed. The caller frees it. */
static char *generated(const char *const *options)
{
    const char *argv[16] = {"generate", "large", "--prompt", "of"};
    for (int i = 0; options[i] != NULL; i++)
        argv[4 + i] = options[i];
    ChildResult ended = train_in_child(&(ChildPlace){0}, argv);
    if (ended.code != EXIT_OK) fail_msg("generate ends with %d: %s", ended.code, ended.text);
    char *text = strchr(ended.text, '\n');
    assert_true(strncmp(ended.text, "best: ", 6) == 0 && text != NULL);
    text = must_strdup(text + 1);
    text[strlen(text) - 1] = '\0';
    char *speed = strrchr(text, '\n');
    assert_true(speed != NULL && strstr(speed, " after a prompt of ") != NULL);
    speed[1] = '\0';
    free(ended.text);
    return text;
}
#define GENERATED(...) generated((const char *const[]){__VA_ARGS__, NULL})

/* Each option of `generate` must change the text, and in the way it promises. */
static void test_each_option_of_generate_changes_the_text_as_documented(void **state)
{
    (void)state;
    const char *const base[] = {NULL};
    Seen run;
    seen_run(&run, "large", 0, base, NULL);
    assert_int_equal(run.code, EXIT_OK);
    seen_free(&run);
    char *plain = GENERATED("--tokens", "24"), *again = GENERATED("--tokens", "24"),
         *seeded = GENERATED("--tokens", "24", "--seed", "5"),
         *named = GENERATED("--tokens", "24", "--seed", "1337"),
         *shorter = GENERATED("--tokens", "9"),
         *cold = GENERATED("--tokens", "24", "--temperature", "0"),
         *warm = GENERATED("--tokens", "24", "--temperature", "0.8"),
         *hot = GENERATED("--tokens", "24", "--temperature", "3"),
         *first = GENERATED("--tokens", "24", "--top-k", "1"),
         *few = GENERATED("--tokens", "24", "--top-k", "3"),
         *likely = GENERATED("--tokens", "24", "--top-p", "0.000001"),
         *half = GENERATED("--tokens", "24", "--top-p", "0.5"),
         *prompted = GENERATED("--tokens", "24", "--prompt", "by");
    assert_string_equal(plain, again);
    assert_string_equal(plain, named); /* the values that the help states as defaults */
    assert_string_equal(plain, warm);
    assert_string_not_equal(plain, seeded);
    assert_string_not_equal(plain, hot);
    assert_string_equal(cold, first); /* these leave one token to choose from */
    assert_string_equal(cold, likely);
    assert_string_not_equal(plain, cold);
    assert_string_not_equal(few, cold);
    assert_string_not_equal(few, plain);
    assert_string_not_equal(half, cold);
    assert_string_not_equal(half, plain);
    assert_true(strncmp(prompted, "by", 2) == 0 && strncmp(plain, "of", 2) == 0);
    size_t n = strlen(shorter) - 1; /* without the newline at the end */
    assert_true(n < strlen(plain) - 1 && strncmp(plain, shorter, n) == 0);
    char *const all[] = {plain, again, seeded, named,  shorter, cold,    warm,
                         hot,   first, few,    likely, half,    prompted};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_option_has_a_test_case),
        cmocka_unit_test(test_every_option_changes_exactly_what_its_row_lists),
        cmocka_unit_test(test_gradient_sum_of_two_ranks_is_twice_their_mean),
        cmocka_unit_test(test_each_option_of_generate_changes_the_text_as_documented),
    };
    return cmocka_run_group_tests(tests, seen_folder_setup, leave_scratch);
}
