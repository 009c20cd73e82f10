/* test_config.c -- tests errors of wrong configs, by message and position; config files written for
 * other trainers; the presets; and mutated config files. */
#include "configs/config.h"
#include "model/core/check.h"
#include "tests/fuzz/fuzz_config.h"
#include "tests/support/files/config_support.h"
#include "tests/support/files/mutate.h"
#include "tests/support/turns.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_SETS 4

static bool mentions(char **sentences, int n, const char *part)
{
    for (int i = 0; i < n; i++)
        if (strstr(sentences[i], part) != NULL) return true;
    return false;
}

/* ---- errors, one config each ----------------------------------------------------------------- */

/* Checks that the config gives exactly this error when read for `world` ranks (0: not known).
 * `text` is a config if `whole`, otherwise keys to add to a valid one. */
static void expect_error(const char *text, bool whole, int n_sets, const char *const *sets,
                         int64_t world, const char *sentence)
{
    ConfigReport report;
    const char *join = text[0] ? ",\n" : "";
    char *full = whole ? must_strdup(text)
                       : text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                                     "\"model.tie_word_embeddings\": true%s%s}",
                                     join, text);
    const Config *config = config_parse(&(ConfigContext){.world = world}, "c.json", full,
                                        strlen(full), n_sets, sets, &report);
    if (config != NULL) fail_msg("%s\naccepted, instead of\n%s", full, sentence);
    if (report.n_errors != 1 || strcmp(report.error[0], sentence) != 0)
        fail_msg("%s\n%d errors:\n%s\ninstead of\n%s", full, report.n_errors, report.error[0],
                 sentence);
    config_report_free(&report);
    free(full);
}

static void each_listed_mistake_gives_its_error_message_and_position(void **state)
{
    (void)state;
    char *file = config_test_file("tests/golden/config_errors.txt"), *rest = file;
    const char *text = "", *sets[MAX_SETS];
    bool whole = false;
    int n_sets = 0, n_cases = 0, world = 0;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        if (strncmp(line, ">> ", 3) == 0 || strncmp(line, "> ", 2) == 0) {
            whole = line[1] == '>';
            text = line + 2 + whole;
        } else if (strncmp(line, "+ ", 2) == 0 && n_sets < MAX_SETS) {
            sets[n_sets++] = line + 2;
        } else if (strncmp(line, "@ ", 2) == 0) {
            world = atoi(line + 2);
        } else if (strncmp(line, "= ", 2) == 0) {
            expect_error(text, whole, n_sets, sets, world, line + 2);
            text = "";
            whole = false;
            n_sets = world = 0;
            n_cases++;
        }
    }
    assert_true(n_cases >= 150);
    free(file);
}

static void several_mistakes_are_all_reported_sorted_by_position(void **state)
{
    (void)state;
    const char *text =
        "{\n \"train_batch_size\": \"8\",\n \"model\": {\"hidden_size\": 10, \"bias\": 1},\n"
        " \"lr\": 1, \"sed\": 1,\n \"data\": {\"text\": \"x\", \"seq_length\": -1}\n}";
    const char *sets[] = {"seed=x", "zero=1"};
    const char *places[] = {"c.json:2:22: ", "c.json:3:12: ", "c.json:3:39: ",  "c.json:4:2: ",
                            "c.json:4:11: ", "c.json:5:38: ", "--set seed=x: ", "--set zero=1: "};
    ConfigReport report;
    assert_null(config_parse(NULL, "c.json", text, strlen(text), 2, sets, &report));
    assert_int_equal(report.n_errors, 8);
    for (int i = 0; i < 8; i++)
        if (strncmp(report.error[i], places[i], strlen(places[i])) != 0)
            fail_msg("%s is not at %s", report.error[i], places[i]);
    config_report_free(&report);
}

static void a_config_with_990_mistakes_reports_100_errors(void **state)
{
    (void)state;
    char *text = must_alloc(1 << 16), *at = text;
    at += sprintf(at, "{\"model\": {}, \"key\": 1");
    for (int i = 0; i < 989; i++)
        at += sprintf(at, ", \"key%d\": 1", i);
    sprintf(at, "}");
    ConfigReport report;
    assert_null(config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report));
    assert_int_equal(report.n_errors, 100);
    config_report_free(&report);
    free(text);
}

/* A number of key-value heads that does not divide the query heads is refused before any data is
 * opened. */
static void bug_28_kv_heads_that_do_not_divide_the_heads_are_refused(void **state)
{
    (void)state;
    expect_error(
        "\"model\": {\"num_key_value_heads\": 5}", false, 0, NULL, 0,
        "c.json:2:11: model.num_key_value_heads: 5 does not divide num_attention_heads 12; "
        "write 4 or 6");
    expect_error("\"model\": {\"num_key_value_heads\": 24}", false, 0, NULL, 0,
                 "c.json:2:11: model.num_key_value_heads: 24 does not divide num_attention_heads "
                 "12; write 12");
}

/* In 16 bits the combination is refused: see config_errors.txt. */
static void fused_gelu_with_selective_recompute_is_accepted_in_f32_and_f64(void **state)
{
    (void)state;
    static const char both[] = "\"model\": {\"fused_gelu\": true}, "
                               "\"activation_checkpointing\": {\"policy\": \"selective\"}";
    char keys[256];
    for (int f64 = 0; f64 < 2; f64++) {
        snprintf(keys, sizeof keys, "%s, \"fp64\": {\"enabled\": %s}", both,
                 f64 ? "true" : "false");
        const Config *c = config_test_keys(keys);
        assert_true(c->model.fused_gelu);
        assert_int_equal(c->activation_checkpointing.policy, RECOMPUTE_SELECTIVE);
        assert_true(c->fp64.enabled == f64 && !c->bf16.enabled);
        config_free(c);
    }
}

/* Before the data are opened, the vocabulary is guessed: a tokenizer that will be trained on the
 * text has the configured size, or the model's; a named tokenizer, or token files, are assumed to
 * be GPT-2's. */
static void config_likely_vocab_guesses_the_vocabulary_from_the_config(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab;
    } cases[] = {
        {"{\"data\": {\"text\": \"x\", \"tokenizer_vocab_size\": 300}}", 300},
        {"{\"data\": {\"text\": \"x\", \"tokenizer\": \"t.json\"}}", 50257},
        {"{\"data\": {\"train\": \"x.bin\", \"val_fraction\": 0.1}}", 50257},
        {"{\"data\": {\"text\": \"x\"}, \"model\": {\"vocab_size\": 500}}", 500},
        {"{\"data\": {\"text\": \"x\"}, \"model\": {\"vocab_size\": 128256}}", 128256},
        {"{\"data\": {\"text\": \"x\"}, \"model\": {\"vocab_size\": 17}}", 17},
        {"{\"data\": {\"train\": \"x\"}, \"model\": {\"vocab_size\": 128256}}", 128256},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *batch = "train_batch_size=8";
        const Config *c = config_test_parse(cases[i].text, 1, &batch);
        assert_int_equal(config_likely_vocab(c), cases[i].vocab);
        config_free(c);
    }
}

static void a_file_that_cannot_be_read_is_named_in_the_error(void **state)
{
    (void)state;
    ConfigReport report;
    assert_null(config_load("no/such/file.json", 0, NULL, NULL, &report));
    assert_string_equal(report.error[0],
                        "no/such/file.json: cannot be read: No such file or directory");
    config_report_free(&report);
    assert_null(config_load("tests", 0, NULL, NULL, &report));
    assert_string_equal(report.error[0], "tests: cannot be read: Is a directory");
    config_report_free(&report);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void every_preset_loads_and_prints_back_to_itself(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("configs/*.json", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 8);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        ConfigReport report;
        const Config *c = config_load(found.gl_pathv[i], 0, NULL, NULL, &report);
        if (c == NULL) fail_msg("%s", report.error[0]);
        char *text = config_test_file(found.gl_pathv[i]);
        /* this checks the round trip */
        assert_true(fuzz_config((const uint8_t *)text, strlen(text)));
        assert_int_equal(c->device, DEVICE_AUTO);
        free(text);
        config_report_free(&report);
        config_free(c);
    }
    globfree(&found);
}

/* The stored config of an imported run may name no data. It can be inspected nevertheless, and
 * starting the run gives one error that says what to add. */
static void a_stored_config_without_data_can_be_inspected_but_not_started(void **state)
{
    (void)state;
    static const char text[] = "{\"model\": {}, \"train_steps\": 3}";
    ConfigReport report;
    const ConfigContext inspected = {.stored = true}, started = {.resumed = true};
    const Config *c = config_parse(&inspected, "c.json", text, strlen(text), 0, NULL, &report);
    assert_non_null(c);
    config_report_free(&report);
    config_free(c);
    assert_null(config_parse(&started, "c.json", text, strlen(text), 0, NULL, &report));
    assert_int_equal(report.n_errors, 1);
    assert_string_equal(report.error[0],
                        "c.json:1:1: data: this run names nothing to train on yet; add --set "
                        "data.text=my.txt (text files) or --set data.train='shards/*.bin' (token "
                        "shards)");
    config_report_free(&report);
    const char *set = "data.text=my.txt";
    c = config_parse(&started, "c.json", text, strlen(text), 1, &set, &report);
    assert_non_null(c);
    config_report_free(&report);
    config_free(c);
}

static void
deepspeed_and_hugging_face_files_load_or_are_refused_with_a_list_of_changes(void **state)
{
    (void)state;
    char *text = config_test_file("tests/golden/config_smallest.json");
    config_free(config_test_parse(text, 0, NULL));
    free(text);

    text = config_test_file("tests/golden/config_auto.json");
    ConfigReport report;
    assert_null(config_parse(NULL, "a.json", text, strlen(text), 0, NULL, &report));
    assert_int_equal(report.n_errors, 1);
    assert_true(mentions(report.error, 1, "a.json:1:1: data: nothing to train on"));
    config_report_free(&report);
    const char *set = "data.text=a";
    const Config *c = config_test_parse(text, 1, &set);
    assert_int_equal(c->zero_optimization.stage, 3);
    assert_true(c->scheduler.params.warmup_max_lr == 5e-5 &&
                c->scheduler.params.total_num_steps == 1000);
    assert_true(c->train_batch_size == 8 && c->gradient_clipping == 1.0 && !c->bf16.enabled);
    config_free(c);
    free(text);

    static const char *const refused[] = {
        "train_batch_size: 512 is not micro 4 x accum 16 x dp 1 = 64", "fp16.type"};
    text = config_test_file("tests/golden/config_monitors.json");
    const ConfigContext one = {.world = 1};
    assert_null(config_parse(&one, "m.json", text, strlen(text), 0, NULL, &report));
    assert_int_equal(report.n_errors, 2);
    for (int i = 0; i < 2; i++)
        if (!mentions(report.error, 2, refused[i])) fail_msg("nothing about %s", refused[i]);
    config_report_free(&report);
    free(text);
}

static void mutated_configs_are_accepted_or_refused_without_a_crash(void **state)
{
    (void)state;
    static const char *const paths[] = {"configs/demo.json",
                                        "configs/gpt2_124m.json",
                                        "tests/golden/config_auto.json",
                                        "tests/golden/config_known.json",
                                        "tests/golden/config_monitors.json",
                                        "tests/golden/config_smallest.json",
                                        "tests/fuzz/corpus/config/grid.json"};
    static const char *const sets[] = {"seed=3",
                                       "compile.backend=1e-300",
                                       "scheduler.params.warmup_ratio=0.25",
                                       "amp.enabled=false",
                                       "bfloat16.enabled=false",
                                       "sparse_attention.mode=fixed",
                                       "parallel.tensor=1"};
    enum { ROUNDS = 2000 };
    int accepted = 0, tried = 0, every = (int)turns_every(9);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char *text = config_test_file(paths[i]);
        size_t length = strlen(text);
        const char *set = sets[i % (sizeof sets / sizeof *sets)];
        size_t n_set = strlen(set);
        memcpy(text + length + 1, set, n_set); /* append a --set after the NUL byte */
        for (int round = (int)turns_first(every); round < ROUNDS; round += every) {
            tried++;
            size_t n;
            uint8_t *mutant = mutate(text, length + (n_set + 1) * (size_t)(round % 2), i + 1,
                                     (uint64_t)round, &n);
            accepted += fuzz_config(mutant, n);
            free(mutant);
        }
        free(text);
    }
    assert_true(accepted > tried / 28); /* otherwise the mutations only test the scanner */
}

/* ---- the command ----------------------------------------------------------------------------- */

static void config_commands_exit_with_the_documented_codes(void **state)
{
    (void)state;
    static const struct {
        const char *word[4];
        int code;
    } cases[] = {
        {{NULL}, 64},
        {{"--help"}, 0},
        {{"frobnicate"}, 64},
        {{"check"}, 64},
        {{"check", "--help"}, 0},
        {{"check", "configs/demo.json", "--set=data.text=README.md"}, 0},
        {{"check", "configs/demo.json", "--set"}, 64},
        {{"check", "configs/demo.json", "--set=data.text=no/such.txt"}, 66},
        {{"check", "configs/demo.json", "--set=data.train=README.md"}, 65},
        {{"check", "configs/demo.json", "--set=data.corpus=atlantis"}, 66},
        {{"check", "configs/gpt2_124m.json"}, 66},
        {{"check", "configs/gpt2_124m.json", "no/such/file.json"}, 66},
        {{"check", "no/such/file.json", "configs/gpt2_124m.json"}, 66},
        {{"check", "configs/demo.json", "--set", "optimizer.params.lrr=1"}, 78},
        {{"check", "no/such/file.json"}, 66},
        {{"check", "tests"}, 66},
        {{"check", "README.md"}, 78},
        {{"show", "no/such/file.json"}, 66},
        {{"diff", "configs/demo.json", "no/such/file.json"}, 66},
        {{"show", "configs/demo.json"}, 0},
        {{"show", "configs/demo.json", "configs/demo.json"}, 64},
        {{"show", "configs/demo.json", "--bogus"}, 64},
        {{"explain", "optimizer"}, 0},
        {{"explain", "optimizr"}, 64},
        {{"defaults"}, 0},
        {{"diff", "configs/demo.json", "configs/demo.json"}, 0},
        {{"diff", "configs/demo.json", "configs/gpt2_124m.json"}, 1},
        {{"diff", "configs/demo.json"}, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const *w = cases[i].word;
        char *argv[] = {"config", (char *)w[0], (char *)w[1], (char *)w[2], (char *)w[3], NULL};
        int code = config_test_command(argv);
        if (code != cases[i].code)
            fail_msg("%s %s: %d", w[0] ? w[0] : "", w[0] && w[1] ? w[1] : "", code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_listed_mistake_gives_its_error_message_and_position),
        cmocka_unit_test(several_mistakes_are_all_reported_sorted_by_position),
        cmocka_unit_test(a_config_with_990_mistakes_reports_100_errors),
        cmocka_unit_test(bug_28_kv_heads_that_do_not_divide_the_heads_are_refused),
        cmocka_unit_test(fused_gelu_with_selective_recompute_is_accepted_in_f32_and_f64),
        cmocka_unit_test(config_likely_vocab_guesses_the_vocabulary_from_the_config),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named_in_the_error),
        cmocka_unit_test(every_preset_loads_and_prints_back_to_itself),
        cmocka_unit_test(a_stored_config_without_data_can_be_inspected_but_not_started),
        cmocka_unit_test(
            deepspeed_and_hugging_face_files_load_or_are_refused_with_a_list_of_changes),
        cmocka_unit_test(config_commands_exit_with_the_documented_codes),
        cmocka_unit_test(mutated_configs_are_accepted_or_refused_without_a_crash),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
