/* test_comms_print.c -- the table of comms_logger lists every operation of every group with its
 * counts. */
#include "model/core/check.h"
#include "parallel/grid/launch.h"
#include "parallel/report/comms.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Writes the output of comms_print and comms_print_json to the file "printed". */
static void print_to_file(const Comm *const *group, int n)
{
    fflush(stdout);
    int out = dup(1);
    assert_non_null(freopen("printed", "w", stdout));
    comms_print(group, n);
    comms_print_json(group, n, stdout);
    fflush(stdout);
    dup2(out, 1);
    close(out);
}

static int talk(Comm *world, void *context)
{
    (void)context;
    Grid grid = grid_open(world, (GridPlace){.pp = 1, .dp = 2, .cp = 1, .tp = 1}, NULL);
    float whole[6] = {1, 2, 3, 4, 5, 6}, part[3] = {0};
    double sum[2] = {1, 2};
    for (int i = 0; i < 2; i++)
        comm_reduce_scatter(&grid.shard, NULL, tensor_1d(part, F32, 3), tensor_1d(whole, F32, 6));
    comm_all_reduce(&grid.dp, NULL, tensor_1d(sum, F64, 2), REDUCE_SUM);
    comm_all_reduce(&grid.tp, NULL, tensor_1d(sum, F64, 2), REDUCE_SUM); /* a group of one rank */
    const Comm *const group[] = {&grid.dp, &grid.shard, &grid.tp};
    if (world->rank == 0) print_to_file(group, 3);
    grid_close(&grid);
    return 0;
}

static void test_the_table_has_a_line_for_every_operation_of_a_group(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks(2, &(LaunchOptions){.timeout = 60}, talk, NULL), 0);
    char *text = take_text("printed");
    assert_string_equal(text,
                        "comms   what rank 0 has called since the program started\n"
                        "        group     operation      type     calls    elements        bytes\n"
                        "        dp        all-reduce     f64          1           2     16 bytes\n"
                        "        shard     reduce-scatter f32          2          12     48 bytes\n"
                        "[{\"group\": \"dp\", \"operation\": \"all-reduce\", \"type\": \"f64\", "
                        "\"calls\": 1, \"elements\": 2, \"bytes\": 16}, "
                        "{\"group\": \"shard\", \"operation\": \"reduce-scatter\", \"type\": "
                        "\"f32\", \"calls\": 2, \"elements\": 12, \"bytes\": 48}]");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_has_a_line_for_every_operation_of_a_group),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
