/* test_split.c -- tests how a pipeline splits the model, against all possible splits; and the costs
 * of the layers of a config's model. */
#include "parallel/pipeline/split.h"
#include "parallel/trainer/session.h"
#include "tests/support/files/config_support.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST_BLOCKS = 12, MOST_RUNS = 6 };

/* Tries all splits, those with the shortest first range first. A split that comes later replaces
 * the best one only if it costs less. */
typedef struct {
    const int64_t *cost; /* of each block; the first includes the embedding, the last the head */
    int blocks, runs;
    int size[MOST_RUNS], best_size[MOST_RUNS];
    int64_t best_most, best_squares; /* -1: none found yet */
} Search;

static void try_all(Search *s, int run, int first, int64_t most, int64_t squares)
{
    if (run == s->runs) {
        if (first < s->blocks) return;
        if (s->best_most >= 0 &&
            (most > s->best_most || (most == s->best_most && squares >= s->best_squares)))
            return;
        s->best_most = most;
        s->best_squares = squares;
        memcpy(s->best_size, s->size, sizeof s->size);
        return;
    }
    int64_t cost = 0;
    for (int end = first + 1; end <= s->blocks; end++) {
        cost += s->cost[end - 1];
        s->size[run] = end - first;
        try_all(s, run + 1, end, cost > most ? cost : most, squares + cost * cost);
    }
}

static int64_t cost_by(LayerCost c, Partition by, int layer, int layers)
{
    if (by == PARTITION_BEST) return c.flops;
    if (by == PARTITION_PARAMETERS) return c.parameters;
    return layer > 0 && layer < layers - 1;
}

static void check(const LayerCost *cost, int blocks, int runs, Partition by)
{
    int64_t by_block[MOST_BLOCKS];
    int border[MOST_RUNS + 1], layers = blocks + 2;
    for (int i = 0; i < blocks; i++)
        by_block[i] = cost_by(cost[i + 1], by, i + 1, layers);
    by_block[0] += cost_by(cost[0], by, 0, layers);
    by_block[blocks - 1] += cost_by(cost[layers - 1], by, layers - 1, layers);
    Search s = {.cost = by_block, .blocks = blocks, .runs = runs, .best_most = -1};
    try_all(&s, 0, 0, 0, 0);
    pipeline_split(cost, layers, runs, by, border);
    assert_int_equal(border[0], 0);
    assert_int_equal(border[runs], layers);
    for (int r = 0; r < runs; r++) {
        int size = border[r + 1] - border[r] - (r == 0) - (r == runs - 1);
        if (size != s.best_size[r])
            fail_msg("partition %d of %d blocks in %d runs: run %d has %d, not %d", (int)by, blocks,
                     runs, r, size, s.best_size[r]);
    }
}

/* Uses random costs with few different values, so many splits are equally good; sometimes with an
 * expensive embedding or head. */
static void test_the_split_is_the_best_of_all_possible_ones(void **state)
{
    (void)state;
    uint64_t at = 0;
    for (int blocks = 1; blocks <= MOST_BLOCKS; blocks++) {
        for (int runs = 1; runs <= blocks && runs <= MOST_RUNS; runs++) {
            for (int round = 0; round < 20; round++) {
                LayerCost cost[MOST_BLOCKS + 2];
                uint64_t kinds = 1 + drawn(7, at++) % 4, ends = drawn(7, at++) % 12;
                for (int i = 0; i < blocks + 2; i++) {
                    bool end = i == 0 || i == blocks + 1;
                    cost[i].flops = (int64_t)(drawn(7, at++) % (end ? 1 + ends : kinds));
                    cost[i].parameters = (int64_t)(1 + drawn(7, at++) % (end ? 1 + ends : kinds));
                }
                for (int by = PARTITION_BEST; by <= PARTITION_UNIFORM; by++)
                    check(cost, blocks, runs, (Partition)by);
            }
        }
    }
}

static void check_borders(const int *border, const int *expected, int n)
{
    for (int i = 0; i < n; i++)
        if (border[i] != expected[i])
            fail_msg("border %d is %d, not %d", i, border[i], expected[i]);
}

/* Remaining blocks go to the last ranges. A head that costs as much as five blocks shares its range
 * with one block, and the other blocks are divided evenly. Squared costs of real models exceed 64
 * bits. */
static void test_last_ranges_get_extra_blocks_but_few_if_the_head_is_costly(void **state)
{
    (void)state;
    LayerCost even[14], gpt2[14];
    int border[6];
    for (int i = 0; i < 14; i++) {
        bool end = i == 0 || i == 13;
        even[i] = (LayerCost){end ? 0 : 7, 1};
        gpt2[i] = (LayerCost){end ? 0 : 7077888LL * 2000000, 1};
    }
    gpt2[13].flops = 38597376LL * 2000000;
    pipeline_split(even, 14, 5, PARTITION_UNIFORM, border);
    check_borders(border, (int[]){0, 3, 5, 7, 10, 14}, 6);
    pipeline_split(even, 7, 2, PARTITION_UNIFORM, border);
    check_borders(border, (int[]){0, 3, 7}, 3);
    pipeline_split(gpt2, 14, 4, PARTITION_BEST, border);
    check_borders(border, (int[]){0, 4, 8, 12, 14}, 5);
    pipeline_split_blocks((int64_t[]){5, 4, 2, 1}, 4, border);
    check_borders(border, (int[]){0, 6, 10, 12, 14}, 5);
    pipeline_split_blocks((int64_t[]){12}, 1, border);
    check_borders(border, (int[]){0, 14}, 2);
}

/* The largest number of blocks, on 2048 stages: trying all ends of each range takes seconds. */
static void test_a_deep_model_is_split_into_many_stages_within_a_second(void **state)
{
    (void)state;
    enum { BLOCKS = 3000, STAGES = 2048 };
    static LayerCost cost[BLOCKS + 2];
    static int border[STAGES + 1];
    for (int i = 0; i < BLOCKS + 2; i++)
        cost[i] = (LayerCost){i == 0 ? 0 : 1000 + i % 7, 1};
    clock_t begun = clock();
    pipeline_split(cost, BLOCKS + 2, STAGES, PARTITION_BEST, border);
    double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    if (seconds > 1) fail_msg("it takes %.1f s", seconds);
    assert_int_equal(border[STAGES], BLOCKS + 2);
    for (int s = 1; s < STAGES; s++)
        assert_in_range(border[s + 1] - border[s], 1, 3);
}

/* GPT-2 small on four stages. Counted by operations, the head costs as much as 5 of the 12 blocks
 * and the embedding costs nothing. Counted by parameters, the tied table counts on both ends. */
static void test_config_keys_choose_how_layers_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int border[5];
    } cuts[] = {
        {"pipeline.partition=\"best\"", {0, 4, 8, 12, 14}},
        {"pipeline.partition=\"parameters\"", {0, 2, 7, 12, 14}},
        {"pipeline.partition=\"uniform\"", {0, 4, 7, 10, 14}},
        {"parallel.pipeline_split=[1, 2, 4, 5]", {0, 2, 4, 8, 14}},
    };
    char *text = config_test_file("configs/gpt2_124m.json");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        const char *const sets[] = {"parallel.pipeline=4", cuts[i].set};
        const Config *config = config_test_parse(text, 2, sets);
        int *border = session_borders(config, 4);
        check_borders(border, cuts[i].border, 5);
        free(border);
        config_free(config);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_split_is_the_best_of_all_possible_ones),
        cmocka_unit_test(test_last_ranges_get_extra_blocks_but_few_if_the_head_is_costly),
        cmocka_unit_test(test_a_deep_model_is_split_into_many_stages_within_a_second),
        cmocka_unit_test(test_config_keys_choose_how_layers_are_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
