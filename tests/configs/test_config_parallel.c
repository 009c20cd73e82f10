/* test_config_parallel.c -- tests the keys that say how ranks share a model: derived values,
 * notices, and which grids fit which models. The errors of grids that do not fit are in
 * golden/config_errors.txt. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Config *parse(const ConfigContext *context, const char *text, const char *set,
                           ConfigReport *report)
{
    return config_parse(context, "c.json", text, strlen(text), set != NULL, &set, report);
}

/* Parses an otherwise valid config with these keys. */
static const Config *with_keys(int64_t world, const char *keys, const char *set,
                               ConfigReport *report)
{
    char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": 4, "
                             "\"gradient_clipping\": 1%s\n%s}",
                             *keys ? "," : "", keys);
    const Config *c = parse(&(ConfigContext){.world = world}, text, set, report);
    free(text);
    return c;
}

static const Config *good(int64_t world, const char *keys, const char *set)
{
    ConfigReport report;
    const Config *c = with_keys(world, keys, set, &report);
    if (c == NULL) fail_msg("%s: %s", keys, report.error[0]);
    config_report_free(&report);
    return c;
}

static void schedule_and_partition_are_derived_unless_given(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        ScheduleKind schedule;
        Partition partition;
        const char *origin;
    } cases[] = {
        {"", SCHEDULE_1F1B, PARTITION_BEST, "derived"},
        {"\"parallel\": {\"pipeline\": 2}", SCHEDULE_1F1B, PARTITION_BEST, "derived"},
        {"\"parallel\": {\"pipeline\": 2, \"pipeline_chunks\": 3}", SCHEDULE_INTERLEAVED,
         PARTITION_BEST, "derived"},
        {"\"parallel\": {\"pipeline\": 2, \"pipeline_chunks\": 3, \"schedule\": \"auto\"}",
         SCHEDULE_INTERLEAVED, PARTITION_BEST, "derived"},
        {"\"parallel\": {\"pipeline\": 2, \"schedule\": \"gpipe\"}, \"pipeline\": {\"partition\": "
         "\"Uniform\"}",
         SCHEDULE_GPIPE, PARTITION_UNIFORM, "c.json:2"},
        {"\"parallel\": {\"schedule\": \"1f1b\"}, \"pipeline\": {\"partition\": \"parameters\"}",
         SCHEDULE_1F1B, PARTITION_PARAMETERS, "c.json:2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = good(2, cases[i].keys, NULL);
        assert_int_equal(c->parallel.schedule, cases[i].schedule);
        assert_int_equal(c->pipeline.partition, cases[i].partition);
        assert_string_equal(config_origin(c, "parallel.schedule"), cases[i].origin);
        config_free(c);
    }
}

/* When a printed config is read with other values, derived values are derived again. */
static void a_printed_grid_is_read_back_and_derived_keys_are_derived_again(void **state)
{
    (void)state;
    static const int blocks[] = {1, 2, 4, 5};
    static const char *const keys[] = {
        "", "\"parallel\": {\"pipeline\": 2, \"pipeline_split\": [5, 7]}",
        "\"parallel\": {\"pipeline\": 2, \"pipeline_chunks\": 2, \"pipeline_split\": [1, 2, 4, 5]}",
        "\"pipeline\": {\"stages\": 2, \"partition\": \"uniform\"}"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const Config *c = good(2, keys[i], NULL);
        char *text = config_text(c);
        ConfigReport report;
        ConfigDifference *d;
        const Config *again = parse(&(ConfigContext){.world = 2}, text, NULL, &report);
        if (again == NULL) fail_msg("%s: %s", text, report.error[0]);
        assert_int_equal(config_diff(c, again, &d), 0);
        config_diff_free(d, 0);
        config_report_free(&report);
        config_free(again);
        if (strcmp(keys[i], "") == 0) {
            again = parse(&(ConfigContext){.world = 2}, text,
                          "parallel={\"pipeline\": 2, \"pipeline_chunks\": 2}", &report);
            assert_non_null(again);
            assert_int_equal(again->parallel.schedule, SCHEDULE_INTERLEAVED);
            config_report_free(&report);
            config_free(again);
        }
        free(text);
        config_free(c);
    }
    const Config *c = good(2, keys[2], NULL);
    assert_int_equal(c->parallel.pipeline_split.count, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c->parallel.pipeline_split.item[i], blocks[i]);
    config_free(c);
}

static void keys_of_the_grid_without_effect_give_a_notice(void **state)
{
    (void)state;
    static const struct {
        int64_t world;
        const char *keys, *set, *notice; /* the only notice; "": there must be none */
    } cases[] = {
        {1, "\"parallel\": {\"sequence_parallel\": true}", NULL,
         "c.json:2:14: notice: parallel.sequence_parallel: true: tensor is 1, so there is nothing "
         "to cut"},
        {2, "\"parallel\": {\"sequence_parallel\": true, \"tensor\": 2}", NULL, ""},
        {8, "\"parallel\": {\"tensor\": 2}, \"zero_optimization\": {\"stage\": 3}", NULL, ""},
        {8, "\"parallel\": {\"pipeline\": 2}, \"zero_optimization\": {\"stage\": 1}", NULL, ""},
        {8, "\"parallel\": {\"pipeline\": 2}, \"zero_optimization\": {\"stage\": 2}", NULL,
         "c.json:2:52: notice: zero_optimization.stage: 2 with a pipeline: gradients are summed "
         "over ranks for every micro-batch; stage 1 does it once a step"},
        {8, "\"parallel\": {\"pipeline\": 2}, \"zero_optimization\": {\"stage\": 3}", NULL,
         "c.json:2:52: notice: zero_optimization.stage: 3 with a pipeline: gradients are summed "
         "over ranks, and weights gathered, for every micro-batch; stage 1 does it once a step"},
        {4, "\"parallel\": {\"pipeline\": 2, \"tensor\": 2}, \"zero_optimization\": {\"stage\": 2}",
         NULL,
         "c.json:2:65: notice: zero_optimization.stage: 2: one data-parallel rank has nothing to "
         "shard, so it trains as stage 0 does"},
        {1, "\"pipeline\": {\"pipe_partitioned\": false}", NULL,
         "c.json:2:14: notice: pipeline.pipe_partitioned: accepted, without effect here (with "
         "parallel.sequence_parallel each rank sends the rows that it has, else all)"},
        {1, "\"tensor_parallel\": {\"tp_overlap_comm\": true}", NULL,
         "c.json:2:21: notice: tensor_parallel.tp_overlap_comm: accepted, without effect here "
         "(sums between tensor-parallel ranks always have a stream of their own)"},
        {1, "\"seq_parallel_communication_data_type\": \"bf16\"", NULL,
         "c.json:2:1: notice: seq_parallel_communication_data_type: accepted, without effect: "
         "nothing is cut by parallel.sequence_parallel"},
        {1, "\"seq_parallel_communication_data_type\": \"fp32\"", NULL, ""},
        {2, "\"pipeline\": {\"stages\": 2, \"partition\": \"uniform\"}",
         "parallel.pipeline_split=[5, 7]",
         "c.json:2:27: notice: pipeline.partition: set aside for --set parallel.pipeline_split"},
        {2, "\"parallel\": {\"pipeline\": 2, \"pipeline_split\": [5, 7]}",
         "pipeline.partition=uniform",
         "c.json:2:29: notice: parallel.pipeline_split: set aside for --set pipeline.partition"},
        {2, "\"parallel\": {\"pipeline\": 2, \"pipeline_split\": [5, 7]}",
         "parallel.pipeline_split=null", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        const Config *c = with_keys(cases[i].world, cases[i].keys, cases[i].set, &report);
        if (c == NULL) fail_msg("%s: %s", cases[i].keys, report.error[0]);
        assert_int_equal(report.n_notices, *cases[i].notice != '\0');
        if (report.n_notices) assert_string_equal(report.notice[0], cases[i].notice);
        config_report_free(&report);
        config_free(c);
    }
}

/* DeepSpeed's names are read alone, together with this program's name and the same value, and with
 * values that mean "not given". */
static void deepspeed_names_of_tensor_and_pipeline_sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        int64_t tensor, pipeline;
    } cases[] = {
        {"\"tensor_parallel\": {\"autotp_size\": 2}", NULL, 2, 1},
        {"\"tensor_parallel\": {\"tp\": {\"tp_size\": 4}}", NULL, 4, 1},
        {"\"pipeline\": {\"stages\": 2}", NULL, 1, 2},
        {"\"pipeline\": {\"stages\": \"auto\"}", NULL, 1, 1},
        {"\"pipeline\": {\"stages\": \"auto\"}, \"parallel\": {\"pipeline\": 4}", NULL, 1, 4},
        {"\"parallel\": {\"pipeline\": 4}, \"pipeline\": {\"stages\": 4}", NULL, 1, 4},
        {"\"parallel\": {\"tensor\": 2}, \"tensor_parallel\": {\"autotp_size\": 0}", NULL, 2, 1},
        {"\"parallel\": {\"tensor\": 2}, \"tensor_parallel\": {\"autotp_size\": \"auto\"}", NULL, 2,
         1},
        {"\"tensor_parallel\": {\"autotp_size\": 2, \"tp\": {\"tp_size\": 2}}", NULL, 2, 1},
        {"\"tensor_parallel\": {\"autotp_size\": 0, \"tp\": {\"tp_size\": 2}}", NULL, 2, 1},
        {"\"parallel\": {\"tensor\": 2}", "tensor_parallel.tp.tp_size=4", 4, 1},
        {"\"parallel\": {\"tensor\": 2}", "tensor_parallel.autotp_size=0", 1, 1},
        {"\"tensor_parallel\": {\"autotp_size\": 2}", "parallel.tensor=4", 4, 1},
        {"\"pipeline\": {\"stages\": 4}", "pipeline.stages=2", 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = good(4, cases[i].keys, cases[i].set);
        assert_int_equal(c->parallel.tensor, cases[i].tensor);
        assert_int_equal(c->parallel.pipeline, cases[i].pipeline);
        config_free(c);
    }
}

/* Returns the error for a model with these sizes on `tp` tensor-parallel ranks, or NULL if it is
 * accepted. The caller frees it. */
static char *refusal(int heads, int kv, int width, int tp)
{
    ConfigReport report;
    char *keys = text_format("\"parallel\": {\"tensor\": %d}, \"model\": {\"hidden_size\": %d, "
                             "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
                             "\"intermediate_size\": %d}",
                             tp, 2 * heads, heads, kv, width),
         *said = NULL;
    const Config *c = with_keys(0, keys, NULL, &report);
    if (c == NULL) assert_int_equal(report.n_errors, 1);
    if (c == NULL) said = must_strdup(report.error[0]);
    config_report_free(&report);
    config_free(c);
    free(keys);
    return said;
}

/* A tensor size is refused if and only if tensor-parallel ranks cannot divide heads, key-value
 * heads or the mlp's width evenly. The suggested sizes must be accepted. */
static void bug_28_a_tensor_size_that_does_not_divide_the_model_is_refused(void **state)
{
    (void)state;
    int refused = 0;
    for (int heads = 1; heads <= 12; heads++)
        for (int kv = 1; kv <= heads; kv += heads % kv == 0 ? 1 : 0) {
            while (heads % kv != 0)
                kv++;
            for (int tp = 1; tp <= 13; tp++)
                for (int width = 12; width <= 60; width += 24) {
                    char *said = refusal(heads, kv, width, tp);
                    bool even =
                        heads % tp == 0 && width % tp == 0 && (kv % tp == 0 || tp % kv == 0);
                    if (even != (said == NULL))
                        fail_msg("%d heads, %d groups, width %d on %d: %s", heads, kv, width, tp,
                                 said ? said : "accepted");
                    if (even) continue;
                    refused++;
                    int low = 0, high = 0,
                        n = sscanf(strstr(said, "write "), "write %d or %d", &low, &high);
                    char *instead = refusal(heads, kv, width, low),
                         *other = n == 2 ? refusal(heads, kv, width, high) : NULL;
                    if (n < 1 || instead != NULL || other != NULL) fail_msg("%s", said);
                    assert_true(low != tp && (n == 1 || (low < tp && high > tp)));
                    free(said);
                }
        }
    assert_true(refused > 500);
}

/* Tests all grids on up to 12 ranks with 5 blocks. A grid is valid if and only if the number of
 * ranks is a multiple of tensor x pipeline and every layer range has a block. */
static void a_grid_is_accepted_if_and_only_if_it_fits_ranks_and_layers(void **state)
{
    (void)state;
    for (int world = 1; world <= 12; world++)
        for (int stages = 1; stages <= 6; stages++)
            for (int chunks = 1; chunks <= 3; chunks++)
                for (int tp = 1; tp <= 3; tp++) {
                    ConfigReport report;
                    char *keys = text_format("\"model\": {\"num_layers\": 5}, \"parallel\": "
                                             "{\"tensor\": %d, \"pipeline\": %d, "
                                             "\"pipeline_chunks\": %d}",
                                             tp, stages, chunks);
                    bool fits = world % (tp * stages) == 0 && stages * chunks <= 5 &&
                                (chunks == 1 || stages > 1);
                    const Config *c = with_keys(world, keys, NULL, &report);
                    if (fits != (c != NULL))
                        fail_msg("%s on %d: %s", keys, world, c ? "accepted" : report.error[0]);
                    if (fits) assert_int_equal(c->parallel.data, world / (tp * stages));
                    if (fits) assert_int_equal(c->world, world);
                    config_report_free(&report);
                    config_free(c);
                    free(keys);
                }
}

/* A caller with a single rank ignores the grid of the file but refuses a grid given by --set. */
static void one_rank_ignores_a_grid_in_the_file_but_refuses_a_set_option(void **state)
{
    (void)state;
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                               "\"parallel\": {\"data\": 2, \"tensor\": 2, \"pipeline\": 3, "
                               "\"pipeline_split\": [5, 5, 2], \"schedule\": \"gpipe\"}}";
    const ConfigContext alone = {.world = 1, .alone = true};
    ConfigReport report;
    const Config *c = parse(&alone, text, NULL, &report);
    assert_non_null(c);
    assert_int_equal(c->parallel.data * c->parallel.tensor * c->parallel.pipeline, 1);
    assert_int_equal(c->parallel.pipeline_split.count, 0);
    assert_int_equal(c->train_batch_size, 8);
    config_report_free(&report);
    config_free(c);
    static const char *const sets[] = {"parallel.tensor=2", "parallel.pipeline=3",
                                       "parallel.data=2"};
    for (int i = 0; i < 3; i++) {
        assert_null(parse(&alone, text, sets[i], &report));
        assert_int_equal(report.n_errors, 1);
        assert_non_null(strstr(report.error[0], "but there is 1 rank here; "));
        config_report_free(&report);
    }
}

/* Returns the error of this config on `world` ranks; the caller frees it. */
static char *error_of(int64_t world, const char *keys, const char *set)
{
    ConfigReport report;
    const Config *c = with_keys(world, keys, set, &report);
    if (c != NULL || report.n_errors != 1) fail_msg("%s: %d errors", keys, report.n_errors);
    char *error = must_strdup(report.error[0]);
    config_report_free(&report);
    return error;
}

/* The size of shard groups must divide the number of data-parallel ranks, if that is known. */
static void a_shard_size_that_does_not_divide_the_data_parallel_ranks_is_refused(void **state)
{
    (void)state;
    static const char stage[] = "\"zero_optimization\": {\"stage\": 3}";
    static const struct {
        int64_t world;
        const char *set, *error;
    } cases[] = {
        {4, "parallel.shard=3",
         "--set parallel.shard=3: parallel.shard: 3 does not divide the 4 data-parallel ranks; "
         "write 2 or 4, or 0 for all of them"},
        {8, "parallel={\"tensor\": 2, \"shard\": 8}",
         "--set parallel={\"tensor\": 2, \"shard\": 8}: parallel.shard: 8 does not divide the 4 "
         "data-parallel ranks; write 4, or 0 for all of them"},
        {1, "parallel.shard=2",
         "--set parallel.shard=2: parallel.shard: 2 does not divide the 1 data-parallel rank; "
         "write 1, or 0 for all of them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *error = error_of(cases[i].world, stage, cases[i].set);
        assert_string_equal(error, cases[i].error);
        free(error);
    }
    static const char *const sets[] = {"parallel.shard=0", "parallel.shard=\"auto\"",
                                       "parallel.shard=4"};
    for (int i = 0; i < 3; i++) {
        const Config *c = good(4, stage, sets[i]);
        assert_int_equal(config_shard(c, 4), 4);
        config_free(c);
    }
    const Config *c = good(4, stage, "parallel.shard=2");
    assert_int_equal(config_shard(c, 4), 2);
    config_free(c);
}

/* Stage 0 divides nothing, so it has no groups. */
static void shard_groups_have_no_effect_at_stage_0(void **state)
{
    (void)state;
    ConfigReport report;
    const Config *c = with_keys(4, "", "parallel.shard=2", &report);
    assert_non_null(c);
    assert_int_equal(config_shard(c, 4), 4);
    assert_int_equal(report.n_notices, 1);
    assert_non_null(strstr(report.notice[0], "parallel.shard: accepted, without effect: ZeRO stage "
                                             "0 divides nothing"));
    config_report_free(&report);
    config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_and_partition_are_derived_unless_given),
        cmocka_unit_test(a_printed_grid_is_read_back_and_derived_keys_are_derived_again),
        cmocka_unit_test(keys_of_the_grid_without_effect_give_a_notice),
        cmocka_unit_test(deepspeed_names_of_tensor_and_pipeline_sizes_are_read),
        cmocka_unit_test(bug_28_a_tensor_size_that_does_not_divide_the_model_is_refused),
        cmocka_unit_test(a_grid_is_accepted_if_and_only_if_it_fits_ranks_and_layers),
        cmocka_unit_test(one_rank_ignores_a_grid_in_the_file_but_refuses_a_set_option),
        cmocka_unit_test(a_shard_size_that_does_not_divide_the_data_parallel_ranks_is_refused),
        cmocka_unit_test(shard_groups_have_no_effect_at_stage_0),
    };
    return cmocka_run_group_tests_name("config parallel", tests, NULL, NULL);
}
