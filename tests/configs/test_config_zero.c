/* test_config_zero.c -- tests DeepSpeed's keys for ZeRO and for gradient sums over ranks: names,
 * defaults and derived values. The values that are refused are in golden/config_errors.txt. */
#include "configs/config.h"
#include "configs/reader/options.h"
#include "model/core/check.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_zero_stage_is_accepted_on_one_rank_with_a_notice(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        char keys[80], notice[160];
        snprintf(keys, sizeof keys, "\"zero_optimization\": {\"stage\": %d}", stage);
        snprintf(notice, sizeof notice,
                 "c.json:2:23: notice: zero_optimization.stage: %d: one rank has nothing to shard, "
                 "so it trains as stage 0 does",
                 stage);
        const Config *c = config_test_says(keys, NULL, notice);
        assert_int_equal(c->zero_optimization.stage, stage);
        config_free(c);
    }
    config_free(config_test_says("\"zero_optimization\": {\"stage\": 0}", NULL, ""));
}

/* There is no notice if the number of ranks is not known or is above 1. */
static void zero_on_one_data_parallel_rank_gives_a_notice(void **state)
{
    (void)state;
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                               "\"gradient_clipping\": 1, \"zero_optimization\": {\"stage\": 3}}";
    for (int64_t world = 0; world <= 2; world++) {
        ConfigReport report;
        config_free(config_parse(&(ConfigContext){.world = world}, "c.json", text, strlen(text), 0,
                                 NULL, &report));
        assert_int_equal(report.n_errors, 0);
        assert_int_equal(report.n_notices, world == 1);
        config_report_free(&report);
    }
}

/* Stage 3 refuses "sum": see config_errors.txt. */
static void gradient_allreduce_op_sum_is_accepted_at_zero_stages_0_to_2(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++) {
        char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                                 "\"gradient_allreduce_op\": \"sum\", "
                                 "\"zero_optimization\": {\"stage\": %d}}",
                                 stage);
        const Config *c = config_test_parse(text, 0, NULL);
        assert_int_equal(c->gradient_allreduce_op, GRADIENT_SUM);
        config_free(c);
        free(text);
    }
}

/* true and false are an obsolete form of DeepSpeed's for stages 1 and 0. */
static void zero_optimization_true_and_false_mean_stages_1_and_0(void **state)
{
    (void)state;
    const Config *c =
        config_test_says("\"zero_optimization\": true", NULL,
                         "c.json:2:1: notice: zero_optimization.stage: 1: one rank has nothing to "
                         "shard, so it trains as stage 0 does");
    assert_int_equal(c->zero_optimization.stage, 1);
    config_free(c);
    c = config_test_says("\"zero_optimization\": false", NULL, "");
    assert_int_equal(c->zero_optimization.stage, 0);
    config_free(c);
    config_free(config_test_says("\"zero_optimization\": null", NULL, ""));
    c = config_test_says("\"zero_optimization\": {\"stage\": 3}", "zero_optimization=false", "");
    assert_int_equal(c->zero_optimization.stage, 0);
    config_free(c);
    c = config_test_says(
        "\"zero_optimization\": false", "zero_optimization=true",
        "--set zero_optimization=true: notice: zero_optimization.stage: 1: one rank has "
        "nothing to shard, so it trains as stage 0 does");
    assert_int_equal(c->zero_optimization.stage, 1);
    config_free(c);
}

static void a_change_of_zero_stage_is_listed_as_a_change_of_rounding(void **state)
{
    (void)state;
    const Config *plain = config_test_set("seed=1337"),
                 *sharded = config_test_set("zero_optimization.stage=3");
    char *text = config_text(sharded);
    const Config *again = config_test_parse(text, 0, NULL);
    assert_int_equal(again->zero_optimization.stage, 3);
    assert_non_null(strstr(text, "\"stage\": 3,"));
    ConfigDifference *d;
    /* overlap_comm, which is derived from the stage and changes no result, is not listed */
    assert_int_equal(config_diff(plain, sharded, &d), 1);
    assert_string_equal(d[0].key, "zero_optimization.stage");
    assert_int_equal(d[0].effect, EFFECT_ROUNDING);
    config_diff_free(d, 1);
    config_free(plain);
    config_free(sharded);
    config_free(again);
    free(text);
}

/* DeepSpeed accepts most keys of stage 3 without the prefix "stage3_" as well. */
static void every_alias_of_a_zero_key_sets_the_key(void **state)
{
    (void)state;
    int n = 0;
    for (int i = 0; i < known_count; i++) {
        const KnownKey *k = &known_table[i];
        if (k->kind != KNOWN_ALIAS || strncmp(k->stands_for, "zero_", 5) != 0) continue;
        if (k->means != NULL) continue; /* test_config_offload has this one */
        int row = option_find(k->stands_for);
        char *keys = text_format("\"%s\": 77", k->key), *set = text_format("%s=78", k->key);
        const Config *in_file = config_test_says(keys, NULL, ""),
                     *by_set = config_test_says("", set, ""),
                     *both = config_test_says(keys, set, "");
        char *a = option_text(&option_table[row], in_file),
             *b = option_text(&option_table[row], by_set),
             *c = option_text(&option_table[row], both);
        assert_string_equal(a, "77");
        assert_string_equal(b, "78");
        assert_string_equal(c, "78");
        assert_string_equal(config_origin(in_file, k->stands_for), "c.json:2");
        config_free(in_file);
        config_free(by_set);
        config_free(both);
        free(keys);
        free(set);
        free(a);
        free(b);
        free(c);
        n++;
    }
    assert_int_equal(n, 6);
    config_free(config_test_says("\"zero_optimization\": {\"max_live_parameters\": -1}",
                                 "zero_optimization.max_live_parameters=5", ""));
}

/* DeepSpeed's "no limit" is the largest 64-bit integer, which no double represents exactly. */
static void the_largest_integer_is_accepted_as_no_limit(void **state)
{
    (void)state;
    static const char *const key = "stage3_model_persistence_threshold";
    for (int i = 0; i < 2; i++) {
        char *keys = text_format("\"zero_optimization\": {\"%s\": %s}", key,
                                 i == 0 ? "9223372036854775807" : "1e30");
        const Config *c = config_test_says(keys, NULL, "");
        assert_int_equal(c->zero_optimization.stage3_model_persistence_threshold, 1000000000000);
        config_free(c);
        free(keys);
    }
}

static void overlap_comm_defaults_to_true_at_stage_3_only(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        bool overlap;
        const char *origin;
    } cases[] = {
        {"", "zero_optimization.stage=2", false, "derived"},
        {"", "zero_optimization.stage=3", true, "derived"},
        {"", "zero_optimization={\"stage\": 3, \"overlap_comm\": \"auto\"}", true, "derived"},
        {"", "zero_optimization={\"stage\": 3, \"overlap_comm\": null}", true, "derived"},
        {"\"zero_optimization\": {\"overlap_comm\": false}", "zero_optimization.stage=3", false,
         "c.json:2"},
        {"\"zero_optimization\": {\"overlap_comm\": true}", "zero_optimization.stage=0", true,
         "c.json:2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8%s\n%s}",
                                 *cases[i].keys ? "," : "", cases[i].keys);
        const Config *c = config_test_parse(text, 1, &cases[i].set);
        assert_int_equal(c->zero_optimization.overlap_comm, cases[i].overlap);
        assert_string_equal(config_origin(c, "zero_optimization.overlap_comm"), cases[i].origin);
        char *stored = config_text(c); /* the derived value is derived again at another stage */
        const char *set = "zero_optimization.stage=1";
        const Config *again = config_test_parse(stored, 1, &set);
        bool given = strcmp(cases[i].origin, "derived") != 0;
        assert_int_equal(again->zero_optimization.overlap_comm, given && cases[i].overlap);
        config_free(again);
        config_free(c);
        free(stored);
        free(text);
    }
}

/* Hugging Face's trainer computes the same sizes for "auto". */
static void auto_bucket_sizes_are_derived_from_hidden_size(void **state)
{
    (void)state;
    const Config *c = config_test_says("\"model\": {\"hidden_size\": 96}, \"zero_optimization\": {"
                                       "\"reduce_bucket_size\": \"auto\", "
                                       "\"stage3_prefetch_bucket_size\": \"auto\", "
                                       "\"stage3_max_live_parameters\": \"auto\", "
                                       "\"stage3_param_persistence_threshold\": \"auto\"}",
                                       NULL, "");
    assert_int_equal(c->zero_optimization.reduce_bucket_size, 9216);
    assert_int_equal(c->zero_optimization.stage3_prefetch_bucket_size, 8294);
    assert_int_equal(c->zero_optimization.stage3_param_persistence_threshold, 960);
    assert_int_equal(c->zero_optimization.stage3_max_live_parameters, 1000000000);
    config_free(c);
}

/* Gradients are sent in the given type, or else in the type in which they are accumulated. */
static void gradients_are_sent_in_the_accumulation_type_unless_given(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        DType expected;
    } cases[] = {
        {"", F32},
        {"\"bf16\": {\"enabled\": true}", F32},
        {"\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}", BF16},
        {"\"fp64\": {\"enabled\": true}", F64},
        {"\"communication_data_type\": \"bf16\"", BF16},
        {"\"communication_data_type\": \"fp16\"", F16},
        {"\"communication_data_type\": \"fp32\", \"bf16\": {\"enabled\": true, "
         "\"bf16_master_weights_and_grads\": true}",
         F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = config_test_says(cases[i].keys, NULL, "");
        assert_int_equal(config_communication_dtype(c), cases[i].expected);
        config_free(c);
    }
}

/* DeepSpeed's names of parallel.shard are read at stage 3, and never refused for the number of
 * ranks: a file that trains with DeepSpeed trains here. */
static void deepspeed_names_of_parallel_shard_are_read_at_stage_3_if_the_value_fits(void **state)
{
    (void)state;
    static const struct {
        int world, stage;
        const char *keys;
        int shard;
        const char *notice; /* NULL: none */
    } cases[] = {
        {8, 3, "\"mics_shard_size\": 4", 4, NULL},
        {8, 3, "\"zero_hpz_partition_size\": 2", 2, "gradients, too, stay in the group"},
        {8, 3, "\"zero_hpz_partition_size\": 4, \"mics_shard_size\": -1", 4, "gradients, too"},
        {8, 3, "\"zero_hpz_partition_size\": 1, \"mics_shard_size\": 2", 2, NULL},
        {8, 3, "\"zero_hpz_partition_size\": 4, \"mics_shard_size\": 4", 4, NULL},
        {8, 3, "\"mics_shard_size\": 8", 8, "8: all 8 data-parallel ranks divide"},
        {2, 3, "\"zero_hpz_partition_size\": 8", 2, "8: all 2 data-parallel ranks divide"},
        {1, 3, "\"mics_shard_size\": 4", 1, "4: all 1 data-parallel rank divide"},
        {8, 3, "\"mics_shard_size\": 3", 8, "3 does not divide the 8 data-parallel ranks, so all"},
        {0, 3, "\"mics_shard_size\": 3", 3, NULL},
        {0, 3, "\"zero_hpz_partition_size\": 3", 3,
         "3: of more data-parallel ranks, gradients, too"},
        {8, 2, "\"zero_hpz_partition_size\": 2", 8,
         "accepted, without effect here (it is for stage"},
        {8, 1, "\"mics_shard_size\": 3", 8, "accepted, without effect here (it is for stage"},
        /* negative values mean off, as -1 does */
        {8, 3, "\"mics_shard_size\": -2", 8, NULL},
        {8, 1, "\"zero_hpz_partition_size\": -8", 8, NULL},
        {8, 3, "\"zero_hpz_partition_size\": -4, \"mics_shard_size\": 2", 2, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                                 "\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1, "
                                 "\"zero_optimization\": {\"stage\": %d, %s}}",
                                 cases[i].stage, cases[i].keys);
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.world = cases[i].world}, "c.json", text,
                                       strlen(text), 0, NULL, &report);
        if (c == NULL) fail_msg("%s: %s", text, report.error[0]);
        if (config_shard(c, cases[i].world) != cases[i].shard)
            fail_msg("%s: %d", text, config_shard(c, cases[i].world));
        /* A group of all ranks changes nothing, so its notice is printed only with --verbose. */
        bool found = false, other = false;
        for (int n = 0; n < report.n_notices; n++) {
            bool own = strstr(report.notice[n], "_size: ") != NULL;
            found |= own && cases[i].notice && strstr(report.notice[n], cases[i].notice) &&
                     report.routine[n] == (strstr(report.notice[n], ": 8: all 8 ") != NULL);
            other |= own && cases[i].notice == NULL;
        }
        if (found != (cases[i].notice != NULL) || other)
            fail_msg("%s: %s", text, report.n_notices ? report.notice[0] : "no notice");
        config_report_free(&report);
        config_free(c);
        free(text);
    }
}

/* Two DeepSpeed names with different values contradict each other, and so do a DeepSpeed name and
 * parallel.shard. */
static void different_values_under_two_names_of_parallel_shard_are_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 4, "
        "\"zero_hpz_partition_size\": 2}",
        "\"parallel\": {\"shard\": 4}, "
        "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}"};
    for (int i = 0; i < 2; i++) {
        char *text =
            text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, %s}", keys[i]);
        ConfigReport report;
        assert_null(config_parse(&(ConfigContext){.world = 8}, "c.json", text, strlen(text), 0,
                                 NULL, &report));
        assert_int_equal(report.n_errors, 1);
        assert_non_null(strstr(report.error[0], "keep one of them"));
        config_report_free(&report);
        free(text);
    }
}

/* At stages 0 to 2 the DeepSpeed names have no effect, so they do not contradict each other, and
 * each gives a notice. But a DeepSpeed name and parallel.shard still contradict each other. */
static void deepspeed_names_of_parallel_shard_may_contradict_each_other_below_stage_3(void **state)
{
    (void)state;
    static const char both[] = "\"mics_shard_size\": 4, \"zero_hpz_partition_size\": 2";
    for (int i = 0; i < 6; i++) {
        const int stage = i % 3;
        const char *own = i < 3 ? "" : "\"parallel\": {\"shard\": 8}, ";
        char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, %s"
                                 "\"zero_optimization\": {\"stage\": %d, %s}}",
                                 own, stage, both);
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.world = 8}, "c.json", text, strlen(text),
                                       0, NULL, &report);
        if (i < 3 && c == NULL) fail_msg("%s: %s", text, report.error[0]);
        assert_true((c != NULL) == (i < 3));
        bool mics = false, hpz = false;
        for (int n = 0; n < report.n_notices; n++) {
            bool idle = strstr(report.notice[n], "without effect here (it is for stage 3") != NULL;
            mics |= idle && strstr(report.notice[n], "mics_shard_size: ") != NULL;
            hpz |= idle && strstr(report.notice[n], "zero_hpz_partition_size: ") != NULL;
        }
        if (i < 3 && !(mics && hpz)) fail_msg("%s: a notice is missing", text);
        if (c != NULL) assert_int_equal(config_shard(c, 8), 8);
        config_report_free(&report);
        config_free(c);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_zero_stage_is_accepted_on_one_rank_with_a_notice),
        cmocka_unit_test(zero_on_one_data_parallel_rank_gives_a_notice),
        cmocka_unit_test(gradient_allreduce_op_sum_is_accepted_at_zero_stages_0_to_2),
        cmocka_unit_test(zero_optimization_true_and_false_mean_stages_1_and_0),
        cmocka_unit_test(a_change_of_zero_stage_is_listed_as_a_change_of_rounding),
        cmocka_unit_test(every_alias_of_a_zero_key_sets_the_key),
        cmocka_unit_test(deepspeed_names_of_parallel_shard_are_read_at_stage_3_if_the_value_fits),
        cmocka_unit_test(different_values_under_two_names_of_parallel_shard_are_refused),
        cmocka_unit_test(deepspeed_names_of_parallel_shard_may_contradict_each_other_below_stage_3),
        cmocka_unit_test(the_largest_integer_is_accepted_as_no_limit),
        cmocka_unit_test(overlap_comm_defaults_to_true_at_stage_3_only),
        cmocka_unit_test(auto_bucket_sizes_are_derived_from_hidden_size),
        cmocka_unit_test(gradients_are_sent_in_the_accumulation_type_unless_given),
    };
    return cmocka_run_group_tests_name("config zero", tests, NULL, NULL);
}
