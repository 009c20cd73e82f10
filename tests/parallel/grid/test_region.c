/* test_region.c -- tests the beginning and end of a tensor-parallel region on thread ranks, against
 * sums computed by the test: with whole rows and with sequence parallelism, on the CPU and on the
 * device that TEST_DEVICE names. */
#include "model/core/check.h"
#include "parallel/grid/tp.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 12, COLS = 10 }; /* 1 to 4 ranks divide the rows */

typedef struct {
    bool sequence_parallel;
    DType dtype;
} Case;

/* A rank with its device and region. */
typedef struct {
    Comm *world;
    Device dev;
    Region region;
    const Case *c;
} Here;

/* Returns element i of a rank's input. It is exact in every dtype, and so are sums of four. */
static double brought(int rank, int64_t i)
{
    return (double)((i * 7 + rank * 13) % 31 - 15);
}

static double sum_of(int ranks, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++)
        sum += brought(r, i);
    return sum;
}

static double most_of(int ranks, int64_t i)
{
    double most = brought(0, i);
    for (int r = 1; r < ranks; r++)
        if (brought(r, i) > most) most = brought(r, i);
    return most;
}

/* Returns a tensor of n rows on the device: rows [first, first + n) of the input of rank `from`. */
static Tensor rows(Here *p, int64_t first, int64_t n, int from)
{
    Tensor host = tensor_2d(must_calloc((size_t)(n * COLS), sizeof(double)), p->c->dtype, n, COLS);
    for (int64_t i = 0; i < n * COLS; i++)
        dtype_set(host.dtype, host.data, i, brought(from, first * COLS + i));
    Tensor there = device_put(&p->dev, host);
    free(host.data);
    return there;
}

/* Fails unless rows [first, ...) of the whole tensor have the values that `want` gives. */
static void check(Here *p, const char *border, Tensor x, int64_t first,
                  double (*want)(int rank, int64_t i), int rank)
{
    int64_t n = tensor_count(x);
    Tensor host = tensor_2d(must_calloc((size_t)n, sizeof(double)), x.dtype, n / COLS, COLS);
    device_copy(&p->dev, host, x);
    device_synchronize(&p->dev);
    for (int64_t i = 0; i < n; i++) {
        double is = dtype_get(host.dtype, host.data, i), wanted = want(rank, first * COLS + i);
        if (is != wanted)
            rank_wrong(p->world, "%s, %s%s: element %lld is %g, not %g", border,
                       dtype_name(x.dtype), p->c->sequence_parallel ? ", cut rows" : "",
                       (long long)i, is, wanted);
    }
    free(host.data);
}

/* Tests an operator that makes all rows available on every rank. Before it, all ranks have the rows
 * of rank 0 or, with sequence parallelism, each rank has a part of these rows. */
static void check_gathering(Here *p, const char *name,
                            void (*border)(const Region *, Tensor, Tensor))
{
    int64_t n = ROWS / p->region.parts, first = n * p->region.part;
    Tensor stream = rows(p, first, n, 0);
    Tensor whole = p->region.parts > 1 ? rows(p, 0, ROWS, 9) : stream;
    border(&p->region, whole, stream);
    check(p, name, whole, 0, brought, 0);
    device_drop(&p->dev, whole);
    if (p->region.parts > 1) device_drop(&p->dev, stream);
}

/* Tests the sums at the end of a region, in place and into another tensor. */
static void check_summing(Here *p, const char *name, bool backward, bool elsewhere)
{
    int64_t n = ROWS / p->region.parts, first = n * p->region.part;
    Tensor made = rows(p, 0, ROWS, p->world->rank),
           stream = elsewhere ? rows(p, 0, n, 9) : region_rows(&p->region, made);
    if (backward) {
        region_enter_backward(&p->region, stream, made);
        region_await(&p->region);
    } else {
        region_exit_forward(&p->region, stream, made);
    }
    check(p, name, stream, first, sum_of, p->world->size);
    if (elsewhere) device_drop(&p->dev, stream);
    device_drop(&p->dev, made);
}

static void check_reductions(Here *p)
{
    Tensor x = rows(p, 0, ROWS, p->world->rank), y = rows(p, 0, ROWS, p->world->rank);
    region_reduce(&p->region, x, REDUCE_SUM);
    check(p, "sum", x, 0, sum_of, p->world->size);
    region_reduce(&p->region, y, REDUCE_MAX);
    check(p, "maximum", y, 0, most_of, p->world->size);
    device_drop(&p->dev, x);
    device_drop(&p->dev, y);
    if (p->world->size == 1) return; /* one rank has all rows and gathers nothing */
    int64_t n = ROWS / p->world->size;
    Tensor part = rows(p, n * p->world->rank, n, 0), whole = rows(p, 0, ROWS, 9);
    region_gather(&p->region, whole, part);
    check(p, "gather", whole, 0, brought, 0);
    device_drop(&p->dev, part);
    device_drop(&p->dev, whole);
}

static void open_here(Here *p, Comm *world, const Case *c)
{
    const char *name = getenv("TEST_DEVICE");
    DeviceOptions options = {.threads = 1, .local_ranks = world->size, .index = world->rank};
    char err[256];
    *p = (Here){.world = world, .c = c};
    if (!device_open(&p->dev, name && c->dtype != F64 ? name : "cpu", &options, err, sizeof err))
        rank_wrong(world, "%s", err);
    p->region = tp_region_open(world, &p->dev, c->sequence_parallel);
}

static void close_here(Here *p)
{
    tp_region_close(&p->region);
    device_close(&p->dev);
}

static void on_rank(Comm *world, void *context)
{
    Here p;
    open_here(&p, world, context);
    check_gathering(&p, "enter forward", region_enter_forward);
    check_gathering(&p, "exit backward", region_exit_backward);
    for (int elsewhere = 0; elsewhere < 1 + (p.region.parts > 1); elsewhere++) {
        check_summing(&p, "exit forward", false, elsewhere);
        check_summing(&p, "enter backward", true, elsewhere);
    }
    check_reductions(&p);
    close_here(&p);
}

static void test_sums_and_gathered_rows_of_a_region_are_correct(void **state)
{
    (void)state;
    static const DType dtypes[] = {F64, F32, BF16, F16};
    for (int i = 0; i < 4 * 4 * 2; i++) {
        Case c = {.dtype = dtypes[i / 2 % 4], .sequence_parallel = i % 2};
        thread_ranks(1 + i / 8, 60, on_rank, &c);
    }
}

/* ---- whole rows although sequence parallelism is on ------------------------------------ */

/* A decoding pass has its few rows on every rank. */
static void whole_rows_on_rank(Comm *world, void *context)
{
    Here p;
    open_here(&p, world, context);
    p.region.parts = 1;
    p.region.part = 0;
    check_gathering(&p, "enter forward, whole rows", region_enter_forward);
    check_summing(&p, "exit forward, whole rows", false, false);
    close_here(&p);
}

static void test_decoding_keeps_whole_rows_under_sequence_parallelism(void **state)
{
    (void)state;
    Case c = {.dtype = F32, .sequence_parallel = true};
    for (int ranks = 1; ranks <= 4; ranks++)
        thread_ranks(ranks, 60, whole_rows_on_rank, &c);
}

/* ---- what a step must not do ------------------------------------------------------------------
 */

static void count_on_rank(Comm *world, void *context)
{
    Here p;
    open_here(&p, world, context);
    int64_t n = ROWS / p.region.parts;
    Tensor made = rows(&p, 0, ROWS, 0), stream = region_rows(&p.region, made);
    int64_t waits = p.dev.waits, allocations = p.dev.allocations;
    for (int i = 0; i < 3; i++) {
        region_enter_forward(&p.region, made, stream);
        region_exit_forward(&p.region, stream, made);
        region_exit_backward(&p.region, made, stream);
        region_enter_backward(&p.region, stream, made);
        region_await(&p.region);
        region_reduce(&p.region, tensor_slice_rows(made, 0, n), REDUCE_SUM);
    }
    if (p.dev.waits != waits || p.dev.allocations != allocations)
        rank_wrong(world, "the host waited %lld times and allocated %lld times",
                   (long long)(p.dev.waits - waits), (long long)(p.dev.allocations - allocations));
    device_synchronize(&p.dev);
    device_drop(&p.dev, made);
    close_here(&p);
}

static void test_a_region_neither_allocates_nor_makes_the_host_wait(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        Case c = {.dtype = F32, .sequence_parallel = i % 2};
        thread_ranks(1 + i / 2, 60, count_on_rank, &c);
    }
}

/* Only one sum may be pending, and only a started sum may be awaited. */
static void forget_on_rank(Comm *world, void *context)
{
    Here p;
    Case c = {.dtype = F32};
    open_here(&p, world, &c);
    Tensor made = rows(&p, 0, ROWS, 0);
    region_enter_backward(&p.region, made, made);
    if (*(bool *)context)
        region_enter_backward(&p.region, made, made);
    else
        region_await(&p.region), region_await(&p.region);
}

static void test_a_sum_that_is_never_awaited_ends_the_program(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        int status = 0;
        bool entered_twice = twice;
        pid_t pid = fork();
        if (pid == 0) {
            setenv("EMU_FORK", "allow", 1); /* it may use the emulated device, too */
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
            thread_ranks(2, 60, forget_on_rank, &entered_twice);
            _exit(0);
        }
        waitpid(pid, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_BUG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_and_gathered_rows_of_a_region_are_correct),
        cmocka_unit_test(test_decoding_keeps_whole_rows_under_sequence_parallelism),
        cmocka_unit_test(test_a_region_neither_allocates_nor_makes_the_host_wait),
        cmocka_unit_test(test_a_sum_that_is_never_awaited_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
