/* test_config_stored_grid.c -- tests which sizes of the grid of a stored run are kept if another
 * number of ranks opens it: those that divide that number. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Config *parse(const ConfigContext *context, const char *text, const char *set,
                           ConfigReport *report)
{
    return config_parse(context, "c.json", text, strlen(text), set != NULL, &set, report);
}

/* Returns the stored config of a run on `world` ranks with these keys; the caller frees it. */
static char *stored(int64_t world, const char *keys)
{
    ConfigReport report;
    char *given = text_format("{\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": "
                              "4, \"gradient_clipping\": 1, %s}",
                              keys);
    const Config *run = parse(&(ConfigContext){.world = world}, given, NULL, &report);
    if (run == NULL) fail_msg("%s: %s", keys, report.error[0]);
    char *text = config_text(run);
    config_report_free(&report);
    config_free(run);
    free(given);
    return text;
}

/* A stored run is opened by another number of ranks. It keeps its tensor and pipeline sizes if they
 * divide that number. */
static void a_stored_run_opened_on_other_ranks_keeps_sizes_that_divide_their_number(void **state)
{
    (void)state;
    static const struct {
        int64_t ranks;
        const char *set;
        int64_t tensor, pipeline, data; /* tensor 0: the config must be refused */
    } cases[] = {
        {8, NULL, 2, 2, 2},
        {4, NULL, 2, 2, 1},
        {2, NULL, 2, 1, 1},
        {6, NULL, 2, 1, 3},
        {1, NULL, 1, 1, 1},
        {3, NULL, 1, 1, 3},
        {2, "parallel.pipeline=2", 1, 2, 1},
        {2, "parallel.tensor=1", 1, 2, 1},
        {4, "parallel.tensor=4", 4, 1, 1},
        {3, "parallel.tensor=3", 3, 1, 1},
        {1, "parallel.tensor=2", 0, 0, 0},
        {4, "parallel.tensor=3", 0, 0, 0},
        {4, "parallel.tensor=5", 0, 0, 0},
        {4, "parallel.pipeline_chunks=1", 0, 0, 0}, /* pipeline_split still has four numbers */
        {2, "parallel.data=2", 0, 0, 0},
        {2, "parallel={\"tensor\": 1, \"pipeline\": 1, \"data\": 2}", 1, 1, 2},
    };
    char *text = stored(8, "\"parallel\": {\"data\": 2, \"tensor\": 2, \"pipeline\": 2, "
                           "\"pipeline_chunks\": 2, \"pipeline_split\": [3, 3, 3, 3], "
                           "\"schedule\": \"interleaved\"}, \"train_batch_size\": 8");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        const ConfigContext context = {.stored = true, .opened = cases[i].ranks};
        const Config *c = parse(&context, text, cases[i].set, &report);
        if ((c == NULL) != (cases[i].tensor == 0))
            fail_msg("%d ranks, %s: %s", (int)cases[i].ranks, cases[i].set,
                     c ? "accepted" : report.error[0]);
        config_report_free(&report);
        if (c == NULL) continue;
        bool several = cases[i].pipeline > 1;
        assert_int_equal(c->parallel.tensor, cases[i].tensor);
        assert_int_equal(c->parallel.pipeline, cases[i].pipeline);
        assert_int_equal(c->parallel.data, cases[i].data);
        assert_int_equal(c->parallel.pipeline_chunks, several ? 2 : 1);
        assert_int_equal(c->parallel.pipeline_split.count, several ? 4 : 0);
        assert_int_equal(c->parallel.schedule, several ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B);
        assert_int_equal(c->world, cases[i].ranks);
        config_free(c);
    }
    free(text);
}

/* A stored run may be opened by a number of tensor-parallel ranks that does not divide the rows of
 * a micro-batch: sequence_parallel is then dropped, unless --set gives it. */
static void a_stored_run_drops_sequence_parallel_if_rows_do_not_divide(void **state)
{
    (void)state;
    char *text = stored(2, "\"parallel\": {\"tensor\": 2, \"sequence_parallel\": true}");
    const char *sets[] = {"parallel.tensor=4", "parallel.tensor=3",
                          "parallel={\"tensor\": 3, \"sequence_parallel\": true}"};
    for (int i = 0; i < 3; i++) {
        ConfigReport report;
        const ConfigContext context = {.stored = true, .opened = 12};
        const Config *c = parse(&context, text, sets[i], &report);
        if ((c == NULL) != (i == 2)) fail_msg("%s: %s", sets[i], c ? "accepted" : report.error[0]);
        if (c != NULL) assert_int_equal(c->parallel.sequence_parallel, i == 0);
        config_report_free(&report);
        config_free(c);
    }
    free(text);
}

/* If another number of ranks opens a stored run, the size of its shard groups is kept if it divides
 * that number, and dropped otherwise. */
static void a_stored_run_drops_shard_groups_that_do_not_divide_the_ranks(void **state)
{
    (void)state;
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 24, "
                               "\"parallel\": {\"shard\": 2}, "
                               "\"zero_optimization\": {\"stage\": 3}}";
    static const int shard[] = {0, 0, 2, 0};
    for (int ranks = 1; ranks <= 3; ranks++) {
        ConfigReport report;
        const ConfigContext context = {.stored = true, .opened = ranks, .alone = ranks == 1};
        const Config *c = parse(&context, text, NULL, &report);
        assert_non_null(c);
        assert_int_equal(c->parallel.shard, shard[ranks]);
        config_report_free(&report);
        config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stored_run_opened_on_other_ranks_keeps_sizes_that_divide_their_number),
        cmocka_unit_test(a_stored_run_drops_sequence_parallel_if_rows_do_not_divide),
        cmocka_unit_test(a_stored_run_drops_shard_groups_that_do_not_divide_the_ranks),
    };
    return cmocka_run_group_tests_name("grids of stored runs", tests, NULL, NULL);
}
