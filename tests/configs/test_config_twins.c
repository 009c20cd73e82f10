/* test_config_twins.c -- tests notices whose condition is easily confused with a similar one: all
 * ranks or data-parallel ranks, pipeline stages or ranks. Each is tested with grids on which the
 * two conditions differ. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    int64_t world;
    const char *set[4];
    const char *notice; /* part of the only notice; NULL: there must be none */
} Case;

static void check_case(const Case *c)
{
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 16,"
                               " \"train_micro_batch_size_per_gpu\": 2,"
                               " \"gradient_clipping\": 1}";
    const ConfigContext context = {.world = c->world};
    ConfigReport report;
    int sets = 0;
    while (sets < 4 && c->set[sets] != NULL)
        sets++;
    const Config *config =
        config_parse(&context, "c.json", text, strlen(text), sets, c->set, &report);
    if (config == NULL) fail_msg("%s %s: %s", c->set[0], c->set[1], report.error[0]);
    if (report.n_notices != (c->notice != NULL))
        fail_msg("%s %s on %d ranks: %d notices, %s", c->set[0], c->set[1] ? c->set[1] : "",
                 (int)c->world, report.n_notices, report.n_notices ? report.notice[0] : "");
    if (c->notice != NULL && strstr(report.notice[0], c->notice) == NULL)
        fail_msg("%s instead of %s", report.notice[0], c->notice);
    config_report_free(&report);
    config_free(config);
}

/* Only data-parallel ranks share what ZeRO shards; other ranks do not count. */
static void a_zero_stage_gives_a_notice_on_one_data_parallel_rank(void **state)
{
    (void)state;
    static const Case cases[] = {
        {1, {"zero_optimization.stage=1"}, "1: one rank has nothing to shard"},
        {2,
         {"zero_optimization.stage=1", "parallel.tensor=2"},
         "1: one data-parallel rank has nothing to shard"},
        {2,
         {"zero_optimization.stage=2", "parallel.pipeline=2"},
         "2: one data-parallel rank has nothing to shard"},
        {4,
         {"zero_optimization.stage=3", "parallel.tensor=2", "parallel.pipeline=2"},
         "3: one data-parallel rank has nothing to shard"},
        {2, {"zero_optimization.stage=1"}, NULL},
        {4, {"zero_optimization.stage=1", "parallel.tensor=2"}, NULL},
        {4, {"zero_optimization.stage=1", "parallel.pipeline=2"}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* Reducing gradients for every micro-batch is costly only with pipeline stages, not with other
 * ranks. */
static void costly_zero_stages_give_a_notice_only_with_a_pipeline(void **state)
{
    (void)state;
    static const Case cases[] = {
        {4,
         {"zero_optimization.stage=2", "parallel.pipeline=2"},
         "2 with a pipeline: gradients are summed over ranks for every micro-batch"},
        {4,
         {"zero_optimization.stage=3", "parallel.pipeline=2"},
         "3 with a pipeline: gradients are summed over ranks, and weights gathered, for every"},
        {4, {"zero_optimization.stage=2", "parallel.tensor=2"}, NULL},
        {2, {"zero_optimization.stage=2"}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* All ranks count, not only data-parallel ones: any other rank is one to communicate with, and one
 * that can write. */
static void comms_logger_and_writers_notices_count_all_ranks(void **state)
{
    (void)state;
    static const Case cases[] = {
        {1, {"comms_logger.enabled=true"}, "one rank sends nothing"},
        {2, {"comms_logger.enabled=true", "parallel.tensor=2"}, NULL},
        {2, {"comms_logger.enabled=true", "parallel.pipeline=2"}, NULL},
        {1, {"checkpoint.writers=2"}, "2, but there is 1 rank, which writes alone"},
        {2, {"checkpoint.writers=2", "parallel.tensor=2"}, NULL},
        {2, {"checkpoint.writers=2", "parallel.pipeline=2"}, NULL},
        {4, {"checkpoint.writers=3", "parallel.tensor=2"}, NULL},
        {2, {"checkpoint.writers=3", "parallel.tensor=2"}, "3, but there are 2 ranks, so 2 write"},
        {4,
         {"checkpoint.writers=5", "parallel.pipeline=2"},
         "5, but there are 4 ranks, so 4 write"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* Replicas are compared at an interval only if they are compared at all, and if there are some. */
static void a_compare_interval_without_effect_gives_a_notice(void **state)
{
    (void)state;
    static const char every[] = "checkpoint.compare_interval=5",
                      off[] = "checkpoint.compare_replicas=false",
                      why[] = "without effect: checkpoint.compare_replicas is false, so replicas "
                              "are never compared";
    static const Case cases[] = {
        {2, {every}, NULL},
        {1, {every}, "without effect: there is 1 rank, which has no replicas"},
        {2, {every, "parallel.tensor=2"}, NULL},
        {2, {every, off}, why},
        {1, {every, off}, why},
        {2, {off}, NULL},
        {1, {off}, NULL},
        {1, {"checkpoint.compare_interval=0"}, NULL},
        {0, {every, off}, why},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* Only tensor-parallel ranks divide the rows of a micro-batch. */
static void sequence_parallel_notices_count_tensor_parallel_ranks_only(void **state)
{
    (void)state;
    static const char type[] = "seq_parallel_communication_data_type=bf16";
    static const Case cases[] = {
        {2, {"parallel.sequence_parallel=true"}, "true: tensor is 1"},
        {2, {"parallel.sequence_parallel=true", "parallel.pipeline=2"}, "true: tensor is 1"},
        {2, {"parallel.sequence_parallel=true", "parallel.tensor=2"}, NULL},
        {2, {type}, "nothing is cut by parallel.sequence_parallel"},
        {2, {type, "parallel.tensor=2"}, "nothing is cut by parallel.sequence_parallel"},
        {2,
         {"bf16.enabled=true", type, "parallel.tensor=2", "parallel.sequence_parallel=true"},
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zero_stage_gives_a_notice_on_one_data_parallel_rank),
        cmocka_unit_test(costly_zero_stages_give_a_notice_only_with_a_pipeline),
        cmocka_unit_test(comms_logger_and_writers_notices_count_all_ranks),
        cmocka_unit_test(a_compare_interval_without_effect_gives_a_notice),
        cmocka_unit_test(sequence_parallel_notices_count_tensor_parallel_ranks_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
