/* test_config_foreign.c -- tests files that were written for DeepSpeed: which of them train, with
 * which options others train, and which are refused; the values that a trainer would fill in or
 * that PyTorch would choose; other names of keys; and --set KEY=null, which drops a key of the
 * file. */
#include "configs/advice.h"
#include "model/core/check.h"
#include "tests/support/files/config_support.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Config *with_params(const char *type, const char *params, const char *more)
{
    char keys[512];
    snprintf(keys, sizeof keys, "\"optimizer\": {\"type\": \"%s\", \"params\": {%s}}%s%s", type,
             params, *more ? ", " : "", more);
    return config_test_keys(keys);
}

static void auto_learning_rate_and_warmup_equal_hugging_faces_defaults(void **state)
{
    (void)state;
    static const char *const types[] = {"AdamW", "Adam", "SGD"};
    for (int i = 0; i < 3; i++) {
        const Config *c =
            with_params(types[i], "\"lr\": \"auto\"",
                        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                        "{\"warmup_max_lr\": \"auto\", "
                        "\"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}}");
        assert_true(c->optimizer.params.lr == 5e-5);
        assert_true(c->scheduler.params.warmup_max_lr == 5e-5);
        assert_int_equal(c->scheduler.params.warmup_num_steps, 0);
        assert_int_equal(c->scheduler.params.total_num_steps, c->train_steps);
        assert_string_equal(config_origin(c, "optimizer.params.lr"), "derived");
        config_free(c);
    }
    const Config *c = with_params("AdamW", "\"weight_decay\": 0.1", "");
    assert_true(c->optimizer.params.lr ==
                1e-3); /* a key that is left out has DeepSpeed's default */
    config_free(c);
    /* If warmup_ratio is given, it replaces an "auto" number of warmup steps. */
    c = config_test_keys(
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": "
        "\"auto\", \"warmup_ratio\": 0.1}}");
    assert_int_equal(c->scheduler.params.warmup_num_steps, c->train_steps / 10);
    config_free(c);
}

static void without_a_batch_size_the_micro_batch_is_8_as_with_auto(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t world, micro, accum, batch;
    } cases[] = {
        {"", 1, 8, 1, 8},
        {"", 4, 8, 1, 32},
        {", \"gradient_accumulation_steps\": 4", 1, 8, 4, 32},
        {", \"train_batch_size\": \"auto\", \"gradient_accumulation_steps\": 2", 2, 8, 2, 32},
        {", \"train_batch_size\": null, \"train_micro_batch_size_per_gpu\": null", 1, 8, 1, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{\"data\": {\"text\": \"x\"}%s}", cases[i].keys);
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.world = cases[i].world}, "c.json", text,
                                       strlen(text), 0, NULL, &report);
        if (c == NULL) fail_msg("%s: %s", text, report.error[0]);
        assert_int_equal(c->train_micro_batch_size_per_gpu, cases[i].micro);
        assert_int_equal(c->gradient_accumulation_steps, cases[i].accum);
        assert_int_equal(c->train_batch_size, cases[i].batch);
        config_report_free(&report);
        config_free(c);
        free(text);
    }
}

/* PyTorch's AdamW has another default weight decay than DeepSpeed's. For "auto", Hugging Face's
 * trainer fills in 0. */
static void torch_adam_uses_the_default_weight_decay_of_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *type, *params;
        double decay;
    } cases[] = {
        {"AdamW", "\"torch_adam\": true", 0.01},
        {"Adam", "\"torch_adam\": true", 0.01},
        {"Adam", "\"torch_adam\": \"true\"", 0.01},
        {"Adam", "\"torch_adam\": \"false\"", 0},
        {"Adam", "\"torch_adam\": true, \"adam_w_mode\": false", 0},
        {"AdamW", "\"torch_adam\": true, \"adam_w_mode\": false", 0.01},
        {"AdamW", "\"torch_adam\": true, \"weight_decay\": 0.2", 0.2},
        {"AdamW", "\"torch_adam\": true, \"weight_decay\": \"auto\"", 0},
        {"AdamW", "\"torch_adam\": false", 0},
        {"AdamW", "", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = with_params(cases[i].type, cases[i].params, "");
        if (c->optimizer.params.weight_decay != cases[i].decay)
            fail_msg("%s {%s}: %g", cases[i].type, cases[i].params,
                     c->optimizer.params.weight_decay);
        config_free(c);
    }
}

static void a_count_larger_than_any_run_is_clamped(void **state)
{
    (void)state;
    const Config *c = config_test_keys(
        "\"steps_per_print\": 2e16, \"zero_optimization\": {\"stage3_max_live_parameters\": 2e16, "
        "\"sub_group_size\": 2e16}, \"fp16\": {\"loss_scale_window\": 9223372036854775807}");
    assert_true(c->steps_per_print == (int64_t)1e12);
    assert_true(c->zero_optimization.stage3_max_live_parameters == (int64_t)1e12);
    assert_true(c->fp16.loss_scale_window == (int64_t)1e12);
    config_free(c);
}

static void max_grad_norm_of_an_optimizer_is_gradient_clipping(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        double norm;
    } cases[] = {{"", 0.5}, {"\"gradient_clipping\": 0.5", 0.5}};
    for (int i = 0; i < 2; i++) {
        const Config *c = with_params("AdamW", "\"max_grad_norm\": 0.5", cases[i].more);
        assert_true(c->gradient_clipping == cases[i].norm);
        config_free(c);
    }
    const Config *c = with_params("AdamW", "\"max_grad_norm\": 0", "");
    assert_true(c->gradient_clipping == 0); /* off */
    config_free(c);
}

/* Returns the config of these keys with one or two --set options, which must be valid. */
static const Config *dropped(const char *keys, const char *first, const char *second)
{
    char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, %s}", keys);
    const char *sets[] = {first, second};
    const Config *c = config_test_parse(text, second ? 2 : 1, sets);
    free(text);
    return c;
}

static void a_set_of_null_drops_a_key_or_a_section_of_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *first, *second;
    } accepted[] = {
        {"\"model\": {}, \"zzz\": 1", "zzz=null", NULL},
        {"\"model\": {\"zzz\": {\"a\": 1}}", "model.zzz=null", NULL},
        {"\"model.zzz.a\": 1", "model.zzz=null", NULL},
        {"\"fp16\": {\"opt_level\": \"O2\", \"x\": 1}", "fp16=null", NULL},
        {"\"seed\": \"x\", \"sed\": 2", "seed=null", "sed=null"},
        {"\"seed\": 1, \"seed\": 2", "seed=null", NULL},
        {"\"compression_training\": {\"a\": {\"enabled\": true}}", "compression_training=null",
         NULL},
        {"\"optimizer\": {\"type\": \"Lamb\"}", "optimizer=null", NULL},
        {"\"bfloat16\": {\"x\": 1}", "bfloat16=null", NULL},
        {"\"bfloat16\": {\"x\": 1}", "bf16=null", NULL},
        {"\"optimizer\": {\"params\": {\"grad_norm\": 1}}", "optimizer.params.grad_norm=null",
         "optimizer.params.lr=1"},
    };
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        config_free(dropped(accepted[i].keys, accepted[i].first, accepted[i].second));
    const Config *c =
        dropped("\"optimizer\": {\"params\": {\"lr\": 3, \"eps\": 0.5}}", "optimizer=null", NULL);
    assert_true(c->optimizer.params.lr == 1e-3 && c->optimizer.params.eps == 1e-8);
    config_free(c);
    /* The order counts: what is given after the null holds, what was given before it does not. */
    c = dropped("\"seed\": 5", "seed=null", "seed=7");
    assert_int_equal(c->seed, 7);
    config_free(c);
    c = dropped("\"seed\": 5", "seed=7", "seed=null");
    assert_int_equal(c->seed, 1337);
    config_free(c);
    /* Once the other name of a key is dropped, the key has the value that the file gives it. */
    c = dropped("\"gradient_clipping\": 0.5, \"optimizer\": {\"params\": {\"max_grad_norm\": 2}}",
                "optimizer.params.max_grad_norm=null", NULL);
    assert_true(c->gradient_clipping == 0.5);
    config_free(c);
}

/* ---- a table of files ------------------------------------------------------------------------ */

static char *golden; /* the text of golden/config_foreign.txt */

/* Returns what happens to a config file, in the words of golden/config_foreign.txt. */
static char *outcome(const char *text)
{
    static const char *const sets[] = {"data.text=x", "train_steps=1000"};
    const ConfigContext context = {.world = 1};
    ConfigReport report;
    put_text("f.json", text);
    const Config *c = config_load("f.json", 2, sets, &context, &report);
    char *words = c ? NULL : config_remedy("f.json", 2, sets, &context, NULL, NULL), *out;
    if (c != NULL || words != NULL) {
        out = text_format("%s%s", c ? "trains" : "paste", c ? "" : words);
    } else {
        out = must_strdup("refused");
        for (int i = 0; i < report.n_errors; i++) {
            char *more = text_format("%s%s%s", out, i ? "\n" : " ", report.error[i]);
            free(out);
            out = more;
        }
    }
    free(words);
    config_free(c);
    config_report_free(&report);
    return out;
}

static void each_file_of_the_table_is_accepted_or_refused_as_the_table_says(void **state)
{
    (void)state;
    int n_files = 0;
    assert_non_null(golden);
    char *text = NULL, *wanted = NULL, *rest = golden;
    /* The expected outcome begins with "= " and may have several lines; an empty line ends it. */
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        if (strncmp(line, "> ", 2) == 0) text = line + 2;
        if (strncmp(line, "= ", 2) == 0)
            wanted = must_strdup(line + 2);
        else if (wanted != NULL && *line != '\0') {
            char *more = text_format("%s\n%s", wanted, line);
            free(wanted);
            wanted = more;
        }
        if (wanted == NULL || (rest != NULL && *rest != '\n' && *rest != '\0')) continue;
        char *is = outcome(text);
        if (strcmp(is, wanted) != 0) fail_msg("%s\nis:  %s\nnot: %s", text, is, wanted);
        free(is);
        free(wanted);
        wanted = NULL;
        n_files++;
    }
    assert_true(n_files >= 60);
}

int main(void)
{
    golden = take_text("tests/golden/config_foreign.txt");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_file_of_the_table_is_accepted_or_refused_as_the_table_says),
        cmocka_unit_test(auto_learning_rate_and_warmup_equal_hugging_faces_defaults),
        cmocka_unit_test(without_a_batch_size_the_micro_batch_is_8_as_with_auto),
        cmocka_unit_test(torch_adam_uses_the_default_weight_decay_of_pytorch),
        cmocka_unit_test(a_count_larger_than_any_run_is_clamped),
        cmocka_unit_test(max_grad_norm_of_an_optimizer_is_gradient_clipping),
        cmocka_unit_test(a_set_of_null_drops_a_key_or_a_section_of_the_file),
    };
    int failed = cmocka_run_group_tests_name("config foreign", tests, enter_scratch, leave_scratch);
    free(golden);
    return failed;
}
