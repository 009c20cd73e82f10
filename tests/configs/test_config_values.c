/* test_config_values.c -- tests the values of valid configs: defaults, derived values, --set,
 * and properties of every row of the option tables. */
#include "configs/config.h"
#include "configs/reader/options.h"
#include "model/core/check.h"
#include "model/core/dtype.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- values ---------------------------------------------------------------------------------- */

static void keys_that_are_absent_or_null_get_their_defaults(void **state)
{
    (void)state;
    const Config *c = config_test_keys("\"_note\": [1, {\"a\": 1}], \"steps_per_print\": null");
    assert_int_equal(c->model.num_layers, 12);
    assert_int_equal(c->model.head_dim, 64);
    assert_int_equal(c->model.num_key_value_heads, 12);
    assert_int_equal(c->model.intermediate_size, 3072);
    assert_int_equal(c->model.vocab_size, 0);
    assert_int_equal(c->model.max_position_embeddings, 1024);
    assert_int_equal(c->steps_per_print, 10);
    assert_int_equal(c->optimizer.type, OPTIMIZER_ADAMW);
    assert_true(c->optimizer.params.adam_w_mode && c->optimizer.params.bias_correction);
    assert_true(c->optimizer.params.lr == 1e-3 && c->optimizer.params.betas[1] == 0.999);
    assert_true(c->optimizer.params.eps == 1e-8 && c->gradient_clipping == 1.0);
    assert_int_equal(c->scheduler.type, SCHEDULER_CONSTANT);
    assert_int_equal(c->fp16.initial_scale_power, 16);
    assert_true(c->bf16.check_grad_overflow && !c->bf16.enabled && !c->fp64.enabled);
    assert_int_equal(c->max_consecutive_skipped_steps, 20);
    assert_string_equal(c->data.text.item[0], "x");
    assert_string_equal(c->data.cache, "out/corpora");
    assert_null(c->data.corpus);
    assert_string_equal(c->name, "c");
    assert_string_equal(config_origin(c, "model.num_layers"), "default");
    assert_string_equal(config_origin(c, "model.head_dim"), "derived");
    assert_string_equal(config_origin(c, "data.text"), "c.json:1");
    config_free(c);
    ConfigReport report;
    c = config_load(NULL, 0, NULL, NULL, &report);
    assert_non_null(c);
    assert_int_equal(c->train_batch_size, 8);
    assert_int_equal(report.n_notices, 0);
    config_report_free(&report);
    config_free(c);
}

static void missing_values_are_derived_from_given_ones(void **state)
{
    (void)state;
    const Config *c =
        config_test_keys("\"model\": {\"hidden_size\": 128, \"num_attention_heads\": 4, "
                         "\"activation\": \"swiglu\"}");
    assert_int_equal(c->model.intermediate_size, 384); /* 341.3, rounded up to a multiple of 64 */
    assert_int_equal(c->model.head_dim, 32);
    config_free(c);
    c = config_test_keys(
        "\"model\": {\"hidden_size\": 100, \"num_attention_heads\": 3, \"head_dim\": 10, "
        "\"num_key_value_heads\": 1}");
    assert_int_equal(c->model.head_dim, 10);
    config_free(c);
    c = config_test_keys(
        "\"scheduler\": {\"type\": \"WarmupLR\"}, \"optimizer\": {\"params\": {\"lr\": 0.5}}");
    assert_true(c->scheduler.params.warmup_max_lr == 0.5);
    config_free(c);
    c = config_test_keys("\"scheduler\": {\"type\": \"WarmupDecayLR\"}, \"train_steps\": 5000, "
                         "\"optimizer\": {\"params\": {\"lr\": 0.5}}");
    assert_true(c->scheduler.params.warmup_max_lr == 0.001);
    assert_int_equal(c->scheduler.params.total_num_steps, 5000);
    config_free(c);
    c = config_test_keys(
        "\"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_num_steps\": 10}}, "
        "\"train_steps\": 501");
    assert_int_equal(c->scheduler.params.decay_num_steps, 101);
    config_free(c);
    c = config_test_keys(
        "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0, "
        "\"cycle_max_lr\": 1, \"cycle_momentum\": false, "
        "\"cycle_first_step_size\": 7, \"cycle_first_stair_count\": 3}}");
    assert_int_equal(c->scheduler.params.cycle_second_step_size, 7);
    assert_int_equal(c->scheduler.params.cycle_second_stair_count, 3);
    config_free(c);
}

static void dtypes_follow_from_the_given_keys(void **state)
{
    (void)state;
    const Config *c = config_test_keys("\"device\": \"cuda\", \"bf16\": {\"enabled\": \"auto\"}");
    assert_true(c->bf16.enabled && config_dtype(c) == BF16 && config_grad_dtype(c) == F32);
    config_free(c);
    c = config_test_keys("\"bfloat16\": {\"enabled\": true}");
    assert_int_equal(config_dtype(c), BF16);
    config_free(c);
    c = config_test_keys("\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}");
    assert_true(config_dtype(c) == BF16 && config_grad_dtype(c) == BF16);
    config_free(c);
    c = config_test_keys("\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}, "
                         "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}");
    assert_true(config_dtype(c) == BF16 && config_grad_dtype(c) == F32);
    config_free(c);
    c = config_test_keys("\"bf16\": {\"enabled\": true}, "
                         "\"data_types\": {\"grad_accum_dtype\": \"bf16\"}");
    assert_true(!c->bf16.bf16_master_weights_and_grads && config_grad_dtype(c) == BF16);
    config_free(c);
    c = config_test_keys("\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}, "
                         "\"optimizer.params\": {\"fp32_optimizer_states\": false}");
    assert_true(c->bf16.bf16_optimizer_states);
    config_free(c);
    c = config_test_keys("\"bf16.enabled\": true, "
                         "\"optimizer.params\": {\"fp32_optimizer_states\": false}");
    assert_true(c->bf16.bf16_optimizer_states);
    config_free(c);
    c = config_test_keys("\"bf16.enabled\": true, "
                         "\"optimizer.params\": {\"fp32_optimizer_states\": true}");
    assert_true(!c->bf16.bf16_optimizer_states);
    config_free(c);
    c = config_test_keys("\"fp64\": {\"enabled\": true}");
    assert_true(config_dtype(c) == F64 && config_grad_dtype(c) == F64);
    config_free(c);
}

static void missing_batch_keys_are_derived_from_the_given_ones(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t train, micro, accum;
    } cases[] = {
        {"\"train_batch_size\": 12", 12, 12, 1},
        {"\"train_micro_batch_size_per_gpu\": 3", 3, 3, 1},
        {"\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 3", 12, 3, 4},
        {"\"train_batch_size\": 12, \"gradient_accumulation_steps\": 3", 12, 4, 3},
        {"\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 5", 15, 3, 5},
        {"\"train_batch_size\": 15, \"train_micro_batch_size_per_gpu\": 3, "
         "\"gradient_accumulation_steps\": 5",
         15, 3, 5},
        {"\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 4, "
         "\"gradient_accumulation_steps\": \"auto\"",
         4, 4, 1},
        {"\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": \"auto\"", 24, 8, 3},
        {"\"train_batch_size\": 36, \"train_micro_batch_size_per_gpu\": \"auto\"", 36, 4, 9},
        {"\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": 6",
         24, 4, 6},
        {"\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": \"auto\"",
         8, 8, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{\"data\": {\"text\": \"x\"}, %s}", cases[i].keys);
        const Config *c = config_test_parse(text, 0, NULL);
        if (c->train_batch_size != cases[i].train ||
            c->train_micro_batch_size_per_gpu != cases[i].micro ||
            c->gradient_accumulation_steps != cases[i].accum)
            fail_msg("%s: %lld = %lld x %lld", text, (long long)c->train_batch_size,
                     (long long)c->train_micro_batch_size_per_gpu,
                     (long long)c->gradient_accumulation_steps);
        config_free(c);
        free(text);
    }
}

static void set_options_are_applied_in_order_and_parsed_by_the_key_type(void **state)
{
    (void)state;
    const char *sets[] = {"seed=1",
                          "seed=2",
                          "model={\"num_layers\": 3, \"bias\": false}",
                          "data.text=[\"a\", \"b\"]",
                          "optimizer.params.betas=[0.9,0.95]",
                          "eval.sample_prompt=1=1",
                          "device=cpu",
                          "train_micro_batch_size_per_gpu=2"};
    const Config *c = config_test_parse(
        "{\"seed\": 9, \"data\": {\"text\": \"x\"}, \"train_batch_size\": 8}", 8, sets);
    assert_int_equal(c->seed, 2);
    assert_int_equal(c->model.num_layers, 3);
    assert_false(c->model.bias);
    assert_int_equal(c->data.text.count, 2);
    assert_string_equal(c->data.text.item[1], "b");
    assert_true(c->optimizer.params.betas[1] == 0.95);
    assert_string_equal(c->eval.sample_prompt, "1=1");
    assert_int_equal(c->device, DEVICE_CPU);
    assert_int_equal(c->gradient_accumulation_steps, 4);
    assert_string_equal(config_origin(c, "seed"), "--set");
    assert_string_equal(config_origin(c, "model.bias"), "--set");
    config_free(c);
    c = config_test_set("eval.sample_prompt=true");
    assert_string_equal(c->eval.sample_prompt, "true");
    config_free(c);
    c = config_test_set("eval.sample_prompt=\"a\\n\"");
    assert_string_equal(c->eval.sample_prompt, "a\n");
    config_free(c);
    c = config_test_set("data.text=my#file.txt"); /* "#" does not start a comment here */
    assert_string_equal(c->data.text.item[0], "my#file.txt");
    config_free(c);
    const char *null[] = {"train_batch_size=null", "train_micro_batch_size_per_gpu=3"};
    c = config_test_parse("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8}", 2, null);
    assert_int_equal(c->train_batch_size, 3);
    config_free(c);
}

static void a_set_option_replaces_conflicting_values_and_errors_of_the_file(void **state)
{
    (void)state;
    const char *file = "{\"data\": {\"corpus\": \"c\"}, \"train_batch_size\": 8, "
                       "\"zero_optimization\": {\"stage\": 3}, \"wandb\": {\"enabled\": true},"
                       "\"scheduler\": {\"type\": \"WSD\", \"params\": {\"warmup_num_steps\": 10, "
                       "\"decay_num_steps\": 100}}}";
    const char *sets[] = {"data.text=my.txt", "scheduler.type=Constant",
                          "zero_optimization.stage=0", "wandb.enabled=false"};
    const Config *c = config_test_parse(file, 4, sets);
    assert_null(c->data.corpus);
    assert_string_equal(c->data.text.item[0], "my.txt");
    assert_int_equal(c->scheduler.params.warmup_num_steps, 1000);
    config_free(c);
    const char *train = "data.train=b";
    c = config_test_parse("{\"data\": {\"train\": \"a\", \"val\": \"v\"}, \"train_batch_size\": 8}",
                          1, &train);
    assert_string_equal(c->data.val.item[0], "v");
    config_free(c);
}

/* A config of one micro-batch, used for measuring, keeps the batch keys consistent and changes
 * nothing else. */
static void config_of_one_micro_batch_keeps_the_batch_keys_consistent(void **state)
{
    (void)state;
    ConfigDifference *d;
    const Config *c = config_test_keys("\"gradient_accumulation_steps\": 4");
    const Config with = config_of_one_micro_batch(c, true),
                 without = config_of_one_micro_batch(c, false);
    assert_int_equal(with.train_batch_size, 2);
    assert_int_equal(with.train_micro_batch_size_per_gpu, 2);
    assert_int_equal(with.gradient_accumulation_steps, 1);
    assert_true(with.wall_clock_breakdown);
    int n = config_diff(c, &with, &d);
    assert_int_equal(n, 3);
    config_diff_free(d, n);
    assert_int_equal(c->train_batch_size, 8);
    assert_true(with.eval.sample_tokens > 0 && without.eval.sample_tokens == 0);
    config_free(c);
}

static void config_diff_lists_every_changed_key_with_its_effect(void **state)
{
    (void)state;
    ConfigDifference *d;
    const Config *was = config_test_set("seed=1"),
                 *now = config_test_keys(
                     "\"train_micro_batch_size_per_gpu\": 4, \"model\": {\"bias\": false}, "
                     "\"steps_per_print\": 1, \"seed\": 2");
    assert_int_equal(config_diff(was, was, &d), 0);
    config_diff_free(d, 0);
    int n = config_diff(was, now, &d);
    assert_int_equal(n, 7);
    assert_string_equal(d[0].key, "model.bias");
    assert_int_equal(d[0].effect, EFFECT_IMPOSSIBLE);
    assert_string_equal(d[1].key, "model.attention_bias");
    assert_true(d[1].derived && d[2].derived);
    assert_string_equal(d[2].key, "model.mlp_bias");
    assert_string_equal(d[3].key, "seed");
    assert_int_equal(d[3].effect, EFFECT_NUMBERS);
    assert_string_equal(d[3].was, "1");
    assert_string_equal(d[3].now, "2");
    assert_string_equal(d[4].key, "train_micro_batch_size_per_gpu");
    assert_int_equal(d[4].effect, EFFECT_ROUNDING);
    assert_string_equal(d[6].key, "steps_per_print");
    assert_int_equal(d[6].effect, EFFECT_NONE);
    config_diff_free(d, n);
    config_free(was);
    config_free(now);
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void config_explain_describes_every_option(void **state)
{
    (void)state;
    for (int i = 0; i < option_count + known_count; i++) {
        const char *key =
            i < option_count ? option_table[i].key : known_table[i - option_count].key;
        const char *help =
            i < option_count ? option_table[i].help : known_why(&known_table[i - option_count]);
        assert_true(help != NULL && strlen(help) >= 4);
        char *text, near[100];
        size_t length;
        FILE *to = open_memstream(&text, &length);
        assert_true(config_explain(key, to, near, sizeof near));
        fclose(to);
        if (strstr(text, help) == NULL || strstr(text, key) == NULL) fail_msg("%s: %s", key, text);
        free(text);
        if (i < option_count)
            assert_true(option_table[i].fallback != NULL || option_table[i].derived != NULL);
        for (int j = 0; j < i; j++)
            if (strcmp(key, j < option_count ? option_table[j].key
                                             : known_table[j - option_count].key) == 0)
                fail_msg("%s has two rows", key);
    }
    char near[100];
    assert_false(config_explain("optimizer.lr", stdout, near, sizeof near));
    assert_string_equal(near, "optimizer.params.lr");
}

static void every_key_accepts_its_default_and_null(void **state)
{
    (void)state;
    int n_notices;
    for (int i = 0; i < option_count; i++) {
        const Option *o = &option_table[i];
        bool alone = o->types == 0 ||
                     (o->types & 1u << OPTIMIZER_ADAMW && strncmp(o->key, "optimizer", 9) == 0);
        if (strncmp(o->key, "data.", 5) != 0 && config_test_errors(o->key, "null", &n_notices) != 0)
            fail_msg("%s: null", o->key);
        if (o->fallback == NULL || !alone || strncmp(o->key, "data.", 5) == 0) continue;
        if (config_test_errors(o->key, o->fallback, &n_notices) != 0)
            fail_msg("%s: its default %s", o->key, o->fallback);
    }
}

static void the_printed_defaults_load_as_the_default_config(void **state)
{
    (void)state;
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    config_print_defaults(to);
    fclose(to);
    const char *sets[] = {"data.text=x", "train_batch_size=8"};
    const Config *c = config_test_parse(text, 2, sets), *plain = config_test_set("seed=1337");
    ConfigDifference *d;
    int n = config_diff(c, plain, &d);
    if (n != 0) fail_msg("%s: %s, %s", d[0].key, d[0].was, d[0].now);
    config_diff_free(d, n);
    config_free(c);
    config_free(plain);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_that_are_absent_or_null_get_their_defaults),
        cmocka_unit_test(missing_values_are_derived_from_given_ones),
        cmocka_unit_test(dtypes_follow_from_the_given_keys),
        cmocka_unit_test(missing_batch_keys_are_derived_from_the_given_ones),
        cmocka_unit_test(set_options_are_applied_in_order_and_parsed_by_the_key_type),
        cmocka_unit_test(a_set_option_replaces_conflicting_values_and_errors_of_the_file),
        cmocka_unit_test(config_of_one_micro_batch_keeps_the_batch_keys_consistent),
        cmocka_unit_test(config_diff_lists_every_changed_key_with_its_effect),
        cmocka_unit_test(config_explain_describes_every_option),
        cmocka_unit_test(every_key_accepts_its_default_and_null),
        cmocka_unit_test(the_printed_defaults_load_as_the_default_config),
    };
    return cmocka_run_group_tests_name("config values", tests, NULL, NULL);
}
