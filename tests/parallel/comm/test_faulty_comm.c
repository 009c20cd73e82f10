/* test_faulty_comm.c -- checks the test communicator with planted faults: it must apply exactly the
 * faults in its table. */
#include "model/core/check.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/faulty_comm.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct {
    const CommFault *fault;
    int n;
    int64_t sums[4]; /* expected results of a rank's four calls */
} Planted;

static int64_t reduced(Comm *comm)
{
    int64_t x = 1;
    comm_all_reduce(comm, NULL, tensor_1d(&x, I64, 1), REDUCE_SUM);
    return x;
}

/* Makes two calls in the world of 3 ranks and two in a group of the same ranks. */
static void run_sums(Comm *world, void *context)
{
    const Planted *p = context;
    Comm comm = faulty_comm(world, p->fault, p->n), part = comm_split(&comm, "part", 0, 0);
    int64_t sums[] = {reduced(&comm), reduced(&comm), reduced(&part), reduced(&part)};
    for (int i = 0; i < 4; i++)
        if (sums[i] != p->sums[i])
            rank_wrong(world, "call %d gives %lld, not %lld", i, (long long)sums[i],
                       (long long)p->sums[i]);
    if (comm_counts(&part)->of[COMM_ALL_REDUCE][I64].calls != 2)
        rank_wrong(world, "calls that are left out count as well");
    comm_close(&part);
    comm_close(&comm);
}

static void expect_sums(const CommFault *fault, int n, Planted expected)
{
    expected.fault = fault;
    expected.n = n;
    thread_ranks(3, 60, run_sums, &expected);
}

static void test_only_the_calls_in_the_fault_table_are_skipped(void **state)
{
    (void)state;
    _Atomic int64_t hits = 0;
    CommFault second = {COMM_SKIP, COMM_ALL_REDUCE, NULL, -1, 2, &hits};
    CommFault part = {COMM_SKIP, COMM_ALL_REDUCE, "part", -1, 0, &hits};
    CommFault other = {COMM_SKIP, COMM_BROADCAST, NULL, -1, 0, &hits};
    CommFault late = {COMM_LATE, COMM_ALL_REDUCE, "world", 1, 1, &hits};
    expect_sums(NULL, 0, (Planted){.sums = {3, 3, 3, 3}});
    expect_sums(&other, 1, (Planted){.sums = {3, 3, 3, 3}});
    assert_int_equal(hits, 0);
    expect_sums(&second, 1, (Planted){.sums = {3, 1, 3, 1}});
    assert_int_equal(hits, 6);
    expect_sums(&part, 1, (Planted){.sums = {3, 3, 1, 1}});
    assert_int_equal(hits, 12);
    expect_sums(&late, 1, (Planted){.sums = {3, 3, 3, 3}});
    assert_int_equal(hits, 13);
    expect_sums((CommFault[]){late, second}, 2, (Planted){.sums = {3, 1, 3, 1}});
}

/* Computes 1 + 2^-8 + 2^-8 in bf16, where the next number after 1 is 1 + 2^-7. If each addition is
 * rounded, the result stays 1. */
static void run_storage(Comm *world, void *context)
{
    CommFault fault[] = {{COMM_SUM_IN_STORAGE, COMM_ALL_REDUCE, NULL, -1, 0, NULL},
                         {COMM_SUM_IN_STORAGE, COMM_REDUCE_SCATTER, NULL, -1, 0, NULL}};
    double sum = *(bool *)context ? 1 : 1 + 0x1p-7;
    Comm comm = faulty_comm(world, fault, *(bool *)context ? 2 : 0);
    Device device;
    DeviceOptions options = {.threads = 1, .blas = BLAS_BUILTIN};
    uint16_t x[3], all, part = 0;
    char err[256];
    if (!device_open(&device, "cpu", &options, err, sizeof err)) rank_wrong(world, "%s", err);
    x[0] = x[1] = x[2] = all = bf16_from_f32(world->rank ? 0x1p-8f : 1.0f);
    comm_all_reduce(&comm, &device, tensor_1d(&all, BF16, 1), REDUCE_SUM);
    comm_reduce_scatter(&comm, &device, tensor_1d(&part, BF16, 1), tensor_1d(x, BF16, 3));
    if ((double)bf16_to_f32(all) != sum || (double)bf16_to_f32(part) != sum)
        rank_wrong(world, "%.9g and %.9g, not %.9g", (double)bf16_to_f32(all),
                   (double)bf16_to_f32(part), sum);
    comm_close(&comm);
    device_close(&device);
}

static void test_a_planted_sum_in_16_bits_rounds_at_each_addition(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++) {
        bool fault = planted;
        thread_ranks(3, 60, run_storage, &fault);
    }
}

static void fail_in_a_call(void *context)
{
    expect_sums(context, 1, (Planted){.sums = {3, 3, 3, 3}});
}

static void test_a_planted_failure_of_a_call_ends_all_ranks(void **state)
{
    (void)state;
    char text[512];
    CommFault fault = {COMM_FAIL, COMM_ALL_REDUCE, "part", 2, 1, NULL};
    assert_int_equal(child_run(fail_in_a_call, &fault, text, sizeof text), EXIT_UNAVAILABLE);
    assert_string_equal(text, "error[69] rank 2: planted: all-reduce 1 of group part\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_calls_in_the_fault_table_are_skipped),
        cmocka_unit_test(test_a_planted_sum_in_16_bits_rounds_at_each_addition),
        cmocka_unit_test(test_a_planted_failure_of_a_call_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
