/* test_config_schedule.c -- tests learning-rate schedules given as ratios, which keep their shape
 * at any length: ratios, lengths derived from train_steps, and the presets in shorter and longer
 * runs. */
#include "configs/config.h"
#include "model/core/check.h"
#include "model/core/json.h"
#include "optim/lr_schedule.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>

#define DEMO_STEPS 2600

/* Loads a preset with up to three --set; it must be valid. */
static const Config *preset(const char *path, const char *a, const char *b, const char *c)
{
    const char *sets[] = {a, b, c};
    ConfigReport report;
    const Config *config =
        config_load(path, (a != NULL) + (b != NULL) + (c != NULL), sets, NULL, &report);
    if (config == NULL) fail_msg("%s %s: %s", path, a ? a : "", report.error[0]);
    config_report_free(&report);
    return config;
}

/* Runs `config check` with a data file that exists. */
static int check(char *path, const char *set)
{
    char *argv[] = {"config", "check", path, "--set", (char *)set, "--set", "data.text=README.md",
                    NULL};
    return config_test_command(argv);
}

static void every_preset_is_valid_for_short_and_long_runs(void **state)
{
    (void)state;
    static const char *const steps[] = {"train_steps=1", "train_steps=50", "train_steps=100",
                                        "train_steps=100000"};
    glob_t found;
    assert_int_equal(glob("configs/*.json", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 8);
    for (size_t i = 0; i < found.gl_pathc; i++)
        for (size_t j = 0; j < sizeof steps / sizeof *steps; j++) {
            const Config *c = preset(found.gl_pathv[i], steps[j], NULL, NULL);
            assert_int_equal(c->scheduler.params.total_num_steps, c->train_steps);
            assert_true(c->scheduler.params.warmup_num_steps <= c->train_steps / 10);
            config_free(c);
            assert_int_equal(check(found.gl_pathv[i], steps[j]), EXIT_OK);
        }
    globfree(&found);
}

/* Each preset gives its warmup as a ratio, which must result in the number of steps listed here:
 * the one that the preset had when it still gave its warmup in steps. */
static void warmup_ratios_of_presets_give_the_intended_steps(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int64_t warmup;
    } cases[] = {{"configs/demo.json", 100},
                 {"configs/gpt2_124m.json", 700},
                 {"configs/gpt2_350m.json", 700},
                 {"configs/gpt2_774m.json", 700},
                 {"configs/gpt2_1558m.json", 700},
                 {"configs/llama_160m.json", 1000},
                 {"configs/llama_1b.json", 2000},
                 {"configs/llama_8b.json", 2000},
                 {"configs/gpt2_1558m_8gpu.json", 700},
                 {"configs/gpt3_6_7b.json", 179},
                 {"configs/gpt3_175b.json", 119},
                 {"configs/llama_70b.json", 7868},
                 {"configs/llama_405b.json", 7997}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = preset(cases[i].path, NULL, NULL, NULL);
        if (c->scheduler.params.warmup_num_steps != cases[i].warmup)
            fail_msg("%s: %lld", cases[i].path, (long long)c->scheduler.params.warmup_num_steps);
        config_free(c);
    }
}

static void the_demo_has_the_same_learning_rates_with_ratios_and_with_steps(void **state)
{
    (void)state;
    double table[2][DEMO_STEPS];
    const Config *ratios = preset("configs/demo.json", NULL, NULL, NULL),
                 *numbers = preset("configs/demo.json", "scheduler.params.warmup_num_steps=100",
                                   "scheduler.params.decay_num_steps=1300", NULL);
    assert_int_equal(ratios->train_steps, DEMO_STEPS);
    assert_int_equal(ratios->scheduler.params.decay_num_steps, 1300);
    lr_schedule_fill(ratios, table[0], DEMO_STEPS);
    lr_schedule_fill(numbers, table[1], DEMO_STEPS);
    assert_memory_equal(table[0], table[1], sizeof table[0]);
    assert_true(table[0][99] == 4e-3 && table[0][98] < 4e-3);
    assert_true(table[0][1300] == 4e-3 && table[0][1301] < 4e-3);
    config_free(ratios);
    config_free(numbers);
}

static void schedule_ratios_are_rounded_to_the_nearest_step(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t warmup, decay; /* -1: not compared */
    } cases[] = {
        {"\"train_steps\": 10, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
         "{\"warmup_ratio\": 0.24}}",
         2, -1},
        {"\"train_steps\": 10, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
         "{\"warmup_ratio\": 0.25}}",
         3, -1},
        {"\"train_steps\": 10, \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": "
         "{\"warmup_ratio\": 1}}",
         10, -1},
        {"\"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_ratio\": 0, \"decay_ratio\": "
         "0}}",
         0, 0},
        {"\"train_steps\": 1, \"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_ratio\": "
         "0.5, \"decay_ratio\": 0.5}}",
         1, 0},
        {"\"train_steps\": 5, \"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_ratio\": "
         "0.7, \"decay_ratio\": 0.3}}",
         4, 1},
        {"\"train_steps\": 1, \"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_ratio\": "
         "0.7}}",
         1, 0},
        {"\"train_steps\": 200, \"scheduler\": {\"type\": \"WSD\", \"params\": "
         "{\"warmup_num_steps\": 7, \"decay_ratio\": 0.1}}",
         7, 20},
        {"\"train_steps\": 200, \"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_ratio\": "
         "0.1, \"decay_num_steps\": 7}}",
         20, 7},
        {"\"train_steps\": 200, \"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_ratio\": "
         "0.1, \"decay_num_steps\": \"auto\", \"decay_ratio\": 0.3}}",
         20, 60},
        {"\"train_steps\": 1000000000, \"scheduler\": {\"type\": \"WSD\", \"params\": "
         "{\"warmup_ratio\": 0.000000001, \"decay_ratio\": 0.999999999}}",
         1, 999999999},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = config_test_keys(cases[i].keys);
        if (c->scheduler.params.warmup_num_steps != cases[i].warmup ||
            (cases[i].decay >= 0 && c->scheduler.params.decay_num_steps != cases[i].decay))
            fail_msg("%s: %lld, %lld", cases[i].keys,
                     (long long)c->scheduler.params.warmup_num_steps,
                     (long long)c->scheduler.params.decay_num_steps);
        config_free(c);
    }
}

static void a_set_option_with_steps_replaces_a_ratio_and_the_reverse(void **state)
{
    (void)state;
    const Config *c =
        preset("configs/demo.json", "scheduler.params.warmup_num_steps=7", NULL, NULL);
    assert_int_equal(c->scheduler.params.warmup_num_steps, 7);
    assert_int_equal(c->scheduler.params.decay_num_steps, 1300);
    assert_true(c->scheduler.params.warmup_ratio < 0);
    config_free(c);
    const char *set = "scheduler.params.warmup_ratio=0.5";
    c = config_test_parse("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, \"scheduler\": "
                          "{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 10}}}",
                          1, &set);
    assert_int_equal(c->scheduler.params.warmup_num_steps, 500);
    config_free(c);
    /* This file leaves the number of warmup steps to a trainer. */
    c = config_test_parse("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, \"scheduler\": "
                          "{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": \"auto\"}}}",
                          1, &set);
    assert_int_equal(c->scheduler.params.warmup_num_steps, 500);
    config_free(c);
}

static void a_stored_schedule_is_derived_again_for_other_train_steps(void **state)
{
    (void)state;
    const Config *demo = preset("configs/demo.json", NULL, NULL, NULL);
    char *text = config_text(demo);
    if (strstr(text, "// \"warmup_num_steps\": 100,") == NULL ||
        strstr(text, "\"warmup_ratio\": 0.0385,") == NULL)
        fail_msg("%s", text);
    const char *set = "train_steps=100";
    const Config *c = config_test_parse(text, 1, &set);
    assert_int_equal(c->scheduler.params.warmup_num_steps, 4);
    assert_int_equal(c->scheduler.params.decay_num_steps, 50);
    assert_int_equal(c->scheduler.params.total_num_steps, 100);
    config_free(c);
    config_free(demo);
    free(text);
}

/* `config show --json` prints strict JSON that can be read again as the same config and that does
 * not contain the derived total_num_steps. */
static void config_show_json_of_every_preset_is_strict_and_can_be_read_again(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("configs/*.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const Config *c = preset(found.gl_pathv[i], "parallel.data=2", NULL, NULL);
        char *text;
        size_t size;
        FILE *to = text_stream(&text, &size);
        config_print_json(c, to);
        fclose(to);
        cJSON *strict = cJSON_ParseWithOpts(text, NULL, true);
        if (strict == NULL || strstr(text, "total_num_steps") != NULL) fail_msg("%s", text);
        const Config *again = config_test_parse(text, 0, NULL);
        ConfigDifference *d;
        int n = config_diff(c, again, &d);
        if (n > 0) fail_msg("%s: %s: %s -> %s", found.gl_pathv[i], d->key, d->was, d->now);
        config_diff_free(d, n);
        config_free(again);
        config_free(c);
        cJSON_Delete(strict);
        free(text);
    }
    globfree(&found);
}

/* Returns the number of keys that differ. Sets *found to whether `key` is one of them, with
 * EFFECT_NUMBERS. */
static int differences(const Config *was, const Config *now, const char *key, bool *found)
{
    ConfigDifference *d;
    int n = config_diff(was, now, &d);
    *found = false;
    for (int i = 0; i < n; i++)
        *found |= strcmp(d[i].key, key) == 0 && d[i].effect == EFFECT_NUMBERS;
    config_diff_free(d, n);
    return n;
}

/* A run that was started before ratios existed has steps in its config. It can be resumed with the
 * preset that gives the same schedule as ratios. */
static void a_schedule_in_steps_equals_the_same_schedule_in_ratios(void **state)
{
    (void)state;
    bool found;
    const Config *demo = preset("configs/demo.json", NULL, NULL, NULL),
                 *before = preset("configs/demo.json", "scheduler.params.warmup_num_steps=100",
                                  "scheduler.params.decay_num_steps=1300",
                                  "scheduler.params.total_num_steps=2600"),
                 *longer = preset("configs/demo.json", "train_steps=4000", NULL, NULL),
                 *steeper =
                     preset("configs/demo.json", "scheduler.params.warmup_ratio=0.04", NULL, NULL);
    char *text = config_text(before);
    assert_null(strstr(text, "// \"warmup_num_steps\""));
    const Config *stored = config_test_parse(text, 0, NULL);
    assert_int_equal(differences(stored, demo, "train_steps", &found), 0);
    /* train_steps and three lengths derived from it */
    assert_int_equal(differences(demo, longer, "train_steps", &found), 4);
    assert_true(found);
    differences(demo, longer, "scheduler.params.warmup_num_steps", &found);
    assert_true(found);
    assert_int_equal(differences(demo, steeper, "scheduler.params.warmup_ratio", &found), 2);
    assert_true(found);
    config_free(demo);
    config_free(before);
    config_free(longer);
    config_free(steeper);
    config_free(stored);
    free(text);
}

/* Returns a config with a schedule for a run of `steps` steps, with lengths given in steps. */
static char *schedule_text(const char *type, int steps, const char *params)
{
    return text_format(
        "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, \"train_steps\": %d, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.8}},\n"
        "\"scheduler\": {\"type\": \"%s\", \"params\": {%s}}}",
        steps, type, params);
}

/* Tests the limit: warmup and decay fill the run exactly, or the warmup alone does. One more step
 * is refused. `rates` are the learning rates of all steps and of two after the end, with three
 * digits. */
static void warmup_and_decay_may_fill_the_run_but_not_exceed_it(void **state)
{
    (void)state;
    static const struct {
        const char *type, *fits, *too_long, *rates;
        int steps;
    } cases[] = {
        {"WSD", "\"warmup_num_steps\": 4, \"decay_num_steps\": 5",
         "\"warmup_num_steps\": 5, \"decay_num_steps\": 5",
         "0.2 0.4 0.6 0.8 0.8 0.64 0.48 0.32 0.16 0 0", 9},
        {"WSD", "\"warmup_num_steps\": 4, \"decay_num_steps\": 0",
         "\"warmup_num_steps\": 4, \"decay_num_steps\": 1", "0.2 0.4 0.6 0.8 0.8 0.8", 4},
        {"WSD", "\"warmup_num_steps\": 0, \"decay_num_steps\": 4",
         "\"warmup_num_steps\": 0, \"decay_num_steps\": 5", "0.8 0.6 0.4 0.2 0 0", 4},
        {"WarmupDecayLR",
         "\"warmup_num_steps\": 4, \"warmup_max_lr\": 0.8, \"warmup_type\": \"linear\"",
         "\"warmup_num_steps\": 5, \"warmup_max_lr\": 0.8, \"warmup_type\": \"linear\"",
         "0 0 0.2 0.4 0.6 0", 4},
        {"WarmupDecayLR",
         "\"warmup_num_steps\": 4, \"warmup_max_lr\": 0.8, \"warmup_type\": \"linear\"",
         "\"warmup_num_steps\": 6, \"warmup_max_lr\": 0.8, \"warmup_type\": \"linear\"",
         "0 0 0.2 0.4 0.6 0.8 0", 5},
        {"WarmupCosineLR",
         "\"warmup_num_steps\": 4, \"warmup_type\": \"linear\", "
         "\"cos_min_ratio\": 0.25",
         "\"warmup_num_steps\": 5, \"warmup_type\": \"linear\"", "0 0 0.2 0.4 0.6 0.2", 4},
        {"WarmupCosineLR",
         "\"warmup_num_steps\": 2, \"warmup_type\": \"linear\", "
         "\"cos_min_ratio\": 0.25",
         "\"warmup_num_steps\": 5, \"warmup_type\": \"linear\"", "0 0 0.4 0.5 0.2 0.2", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        char *good = schedule_text(cases[i].type, cases[i].steps, cases[i].fits),
             *bad = schedule_text(cases[i].type, cases[i].steps, cases[i].too_long), got[200] = "";
        const Config *c = config_test_parse(good, 0, NULL);
        for (int k = 0; k <= cases[i].steps + 1; k++)
            sprintf(got + strlen(got), k ? " %.3g" : "%.3g", lr_schedule(c, k));
        assert_string_equal(got, cases[i].rates);
        config_free(c);
        assert_null(config_parse(NULL, "c.json", bad, strlen(bad), 0, NULL, &report));
        config_report_free(&report);
        free(good);
        free(bad);
    }
}

static void a_warmup_longer_than_the_run_gives_a_notice(void **state)
{
    (void)state;
    static const struct {
        const char *scheduler, *notice;
    } cases[] = {
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 101}}",
         "c.json:2:66: notice: scheduler.params.warmup_num_steps: 101, but train_steps is 100: the "
         "run ends before the warmup does"},
        {"{\"type\": \"WarmupLR\"}",
         "c.json:2:35: notice: scheduler.params.warmup_num_steps: 1000 (the default), but "
         "train_steps is 100: the run ends before the warmup does"},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 100}}", NULL},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_ratio\": 1}}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                                 "\"gradient_clipping\": 1,\n\"train_steps\": 100, "
                                 "\"scheduler\": %s}",
                                 cases[i].scheduler);
        config_free(config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report));
        int expected = cases[i].notice != NULL;
        if (report.n_errors != 0 || report.n_notices != expected ||
            (expected && strcmp(report.notice[0], cases[i].notice) != 0))
            fail_msg("%s\n%d notices: %s", text, report.n_notices,
                     report.n_notices ? report.notice[0] : "");
        config_report_free(&report);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_is_valid_for_short_and_long_runs),
        cmocka_unit_test(warmup_ratios_of_presets_give_the_intended_steps),
        cmocka_unit_test(the_demo_has_the_same_learning_rates_with_ratios_and_with_steps),
        cmocka_unit_test(schedule_ratios_are_rounded_to_the_nearest_step),
        cmocka_unit_test(a_set_option_with_steps_replaces_a_ratio_and_the_reverse),
        cmocka_unit_test(a_stored_schedule_is_derived_again_for_other_train_steps),
        cmocka_unit_test(config_show_json_of_every_preset_is_strict_and_can_be_read_again),
        cmocka_unit_test(a_schedule_in_steps_equals_the_same_schedule_in_ratios),
        cmocka_unit_test(warmup_and_decay_may_fill_the_run_but_not_exceed_it),
        cmocka_unit_test(a_warmup_longer_than_the_run_gives_a_notice),
    };
    return cmocka_run_group_tests_name("config schedule", tests, NULL, NULL);
}
