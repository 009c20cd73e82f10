/* test_counted.c -- a world of which only one rank exists (counted.h) gives the results that host
 * calls have if all ranks pass the same values, has the same counts as an ordinary world, and can
 * make a group of any line. */
#include "parallel/comm/counted.h"

#include "model/core/check.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { EACH = 3, MOST = 8 };
static const DType dtypes[] = {F64, F32, I64, I32};

/* What one rank has in memory after one call of each kind, on tensors of `dtype`. */
typedef struct {
    _Alignas(double) char bytes[5 * MOST * EACH * sizeof(double)];
} Results;

/* Makes every host call once; no rank's values depend on its number. */
static void call_all(Comm *comm, DType dtype, Results *r)
{
    size_t each = EACH * dtype_size(dtype);
    char *at = r->bytes;
    memset(r, 0, sizeof *r);
    for (int call = 0; call < 5; call++, at += MOST * each) {
        Tensor whole = tensor_1d(at, dtype, (int64_t)comm->size * EACH),
               part = tensor_slice_rows(whole, comm->rank * EACH, EACH);
        for (int64_t i = 0; i < tensor_count(whole); i++)
            dtype_set(dtype, at, i, (double)(i % EACH + 2));
        switch (call) {
        case 0: comm_all_reduce(comm, NULL, whole, REDUCE_SUM); break;
        case 1: comm_all_reduce(comm, NULL, whole, REDUCE_MAX); break;
        case 2: comm_reduce_scatter(comm, NULL, part, whole); break;
        case 3: comm_all_gather(comm, NULL, whole, part); break;
        default: comm_broadcast(comm, NULL, whole, comm->size - 1);
        }
    }
    comm_barrier(comm);
}

static void compare(Comm *world, void *context)
{
    Comm counted = comm_counted(world->rank, world->size);
    (void)context;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        Results real, alone;
        call_all(world, dtypes[d], &real);
        call_all(&counted, dtypes[d], &alone);
        if (memcmp(&real, &alone, sizeof real) != 0)
            rank_wrong(world, "the results of %s differ", dtype_name(dtypes[d]));
    }
    if (memcmp(comm_counts(world)->of, comm_counts(&counted)->of, sizeof counted.counts->of) != 0)
        rank_wrong(world, "the counts differ");
    comm_close(&counted);
}

static void test_host_calls_act_as_if_all_ranks_had_passed_the_same_value(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MOST; ranks++)
        thread_ranks(ranks, 60, compare, NULL);
}

/* A line of a line must store its members' numbers in the world, not in the first line. */
static void test_a_line_made_from_a_line_stores_its_members_world_ranks(void **state)
{
    (void)state;
    Comm world = comm_counted(65535, COMM_MAX_RANKS);
    Comm line = comm_line(&world, "line", (CommLine){7, 8, 8192});
    assert_int_equal(line.rank, 8191);
    assert_int_equal(line.size, 8192);
    Comm ends = comm_line(&line, "ends", (CommLine){0, 8191, 2});
    assert_int_equal(ends.rank, 1);
    assert_int_equal(ends.size, 2);
    assert_int_equal(ends.line.first, 7);
    assert_int_equal(ends.line.stride, 8 * 8191);
    assert_string_equal(ends.name, "ends");
    assert_true(comm_is_counted(&ends));
    comm_close(&ends);
    comm_close(&line);
    comm_close(&world);
}

/* Returns the exit code of a process in which rank 5 of 12 makes a group: by a line or, if `line`
 * is NULL, by a color. */
static int exit_of(const CommLine *line)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        Comm world = comm_counted(5, 12);
        if (line)
            comm_line(&world, "line", *line);
        else
            comm_split(&world, "color", 0, 5);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_a_line_that_does_not_contain_this_rank_is_refused(void **state)
{
    (void)state;
    assert_int_equal(exit_of(&(CommLine){1, 2, 5}), 0);
    assert_int_equal(exit_of(&(CommLine){5, 1, 1}), 0);
    const CommLine wrong[] = {{0, 2, 6}, {6, 1, 6}, {0, 1, 5}, {5, 4, 3}, {-1, 2, 4}, {5, 0, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(exit_of(&wrong[i]), EXIT_BUG);
    assert_int_equal(exit_of(NULL), EXIT_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_calls_act_as_if_all_ranks_had_passed_the_same_value),
        cmocka_unit_test(test_a_line_made_from_a_line_stores_its_members_world_ranks),
        cmocka_unit_test(test_a_line_that_does_not_contain_this_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
