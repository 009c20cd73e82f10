/* test_control.c -- tests decisions that the CPU threads of all ranks make together: the largest
 * value, the sum, and whether all ranks have succeeded. */
#include "model/core/check.h"
#include "parallel/grid/control.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void each_world(RankBody body)
{
    for (int ranks = 1; ranks <= 5; ranks++)
        thread_ranks(ranks, 60, body, NULL);
}

static void expect(const Comm *world, const char *what, int64_t got, int64_t expected)
{
    if (got != expected)
        rank_wrong(world, "%s is %lld, not %lld", what, (long long)got, (long long)expected);
}

static void run_numbers(Comm *world, void *context)
{
    (void)context;
    int64_t n = world->size;
    for (int wish = 0; wish < world->size; wish++)
        expect(world, "the wish of one rank", control_max(world, world->rank == wish ? 7 : 0), 7);
    expect(world, "the largest of numbers below zero", control_max(world, -3 - world->rank), -3);
    expect(world, "the sum", control_sum(world, world->rank + 1), n * (n + 1) / 2);
}

static void test_all_ranks_get_the_largest_value_and_the_sum(void **state)
{
    (void)state;
    each_world(run_numbers);
}

static void run_shares(Comm *world, void *context)
{
    (void)context;
    char text[32], bytes[3] = {(char)world->rank, 1, 2};
    snprintf(text, sizeof text, "the word of rank %d", world->rank);
    control_share(world, bytes, sizeof bytes);
    expect(world, "the shared byte", bytes[0], 0);
    char *shared = control_share_text(world, text);
    if (strcmp(shared, "the word of rank 0") != 0) rank_wrong(world, "the text is %s", shared);
    free(shared);
    shared = control_share_text(world, "");
    expect(world, "the length of an empty text", shared ? (int64_t)strlen(shared) : -1, 0);
    free(shared);
    if (control_share_text(world, world->rank == 0 ? NULL : text))
        rank_wrong(world, "rank 0 has no text, and this rank has got one");
}

static void test_all_ranks_get_the_value_of_rank_0(void **state)
{
    (void)state;
    each_world(run_shares);
}

/* For every set of failed ranks, all ranks get the error message of the lowest one. */
static void run_agrees(Comm *world, void *context)
{
    (void)context;
    for (int failed = 0; failed < 1 << world->size; failed++) {
        char err[64] = "as it was", sentence[64] = "as it was";
        bool good = (failed >> world->rank & 1) == 0;
        if (!good) snprintf(err, sizeof err, "rank %d: the disk is full", world->rank);
        for (int r = world->size - 1; r >= 0; r--)
            if (failed >> r & 1)
                snprintf(sentence, sizeof sentence, "rank %d: the disk is full", r);
        bool all = control_agree(world, good, err, sizeof err);
        if (all != (failed == 0) || strcmp(err, sentence) != 0)
            rank_wrong(world, "of failures %x: %d, %s, not %s", (unsigned)failed, all, err,
                       sentence);
    }
}

static void test_all_ranks_get_the_error_message_of_a_failed_rank(void **state)
{
    (void)state;
    each_world(run_agrees);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_get_the_largest_value_and_the_sum),
        cmocka_unit_test(test_all_ranks_get_the_value_of_rank_0),
        cmocka_unit_test(test_all_ranks_get_the_error_message_of_a_failed_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
