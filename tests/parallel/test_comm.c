/* test_comm.c -- collectives of thread ranks against plain loops over all ranks' numbers. */
#include "model/core/check.h"
#include "tests/support/support.h"
#include "tests/support/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct {
    int64_t n; /* elements of an all-reduce or broadcast; of a part, in gathers and scatters */
    DType dtype;
    ReduceOp op;
    bool in_place;
} Case;

/* Element i of what a rank holds: sums of these round, so that their order is seen. */
static double held(DType dtype, int rank, int64_t i)
{
    double x = drawn_normal(77 + (uint64_t)rank, i), stored[1];
    dtype_set(dtype, stored, 0, dtype_is_float(dtype) ? x : (double)(int64_t)(x * 1e6));
    return dtype_get(dtype, stored, 0);
}

static Tensor filled(DType dtype, int rank, int64_t n)
{
    Tensor x = tensor_1d(must_calloc((size_t)n + 1, 8), dtype, n);
    for (int64_t i = 0; i < n; i++)
        dtype_set(dtype, x.data, i, held(dtype, rank, i));
    return x;
}

/* Element i of what all ranks hold, reduced in rank order in the type itself. */
static double reduced(const Case *c, int ranks, int64_t i)
{
    double all[1], x = held(c->dtype, 0, i);
    for (int r = 1; r < ranks; r++) {
        double y = held(c->dtype, r, i);
        dtype_set(c->dtype, all, 0, c->op == REDUCE_SUM ? x + y : x > y ? x : y);
        x = dtype_get(c->dtype, all, 0);
    }
    return x;
}

static void expect(const Comm *comm, const char *what, Tensor x, int64_t i, double exact)
{
    double got = dtype_get(x.dtype, x.data, i);
    if (got != exact)
        rank_wrong(comm, "%s of %lld %s: element %lld is %.17g, not %.17g", what,
                   (long long)tensor_count(x), dtype_name(x.dtype), (long long)i, got, exact);
}

static void run_all_reduce(Comm *comm, void *context)
{
    const Case *c = context;
    Tensor x = filled(c->dtype, comm->rank, c->n);
    comm_all_reduce(comm, NULL, x, c->op);
    for (int64_t i = 0; i < c->n; i++)
        expect(comm, "all-reduce", x, i, reduced(c, comm->size, i));
    free(x.data);
}

static void run_reduce_scatter(Comm *comm, void *context)
{
    const Case *c = context;
    Tensor whole = filled(c->dtype, comm->rank, c->n * comm->size), other = {0};
    Tensor part = tensor_slice_rows(whole, comm->rank * c->n, c->n);
    if (!c->in_place) part = other = filled(c->dtype, 99, c->n);
    comm_reduce_scatter(comm, NULL, part, whole);
    for (int64_t i = 0; i < c->n; i++)
        expect(comm, "reduce-scatter", part, i, reduced(c, comm->size, comm->rank * c->n + i));
    for (int64_t i = 0; i < c->n * comm->size; i++)
        if (!c->in_place || i / c->n != comm->rank)
            expect(comm, "what was scattered", whole, i, held(c->dtype, comm->rank, i));
    free(other.data);
    free(whole.data);
}

static void run_all_gather(Comm *comm, void *context)
{
    const Case *c = context;
    Tensor whole = filled(c->dtype, 99, c->n * comm->size), other = {0};
    Tensor part = tensor_slice_rows(whole, comm->rank * c->n, c->n);
    if (!c->in_place) part = other = filled(c->dtype, comm->rank, c->n);
    for (int64_t i = 0; i < c->n; i++)
        dtype_set(c->dtype, part.data, i, held(c->dtype, comm->rank, i));
    comm_all_gather(comm, NULL, whole, part);
    for (int64_t i = 0; i < c->n * comm->size; i++)
        expect(comm, "all-gather", whole, i, held(c->dtype, (int)(i / c->n), i % c->n));
    free(other.data);
    free(whole.data);
}

static void run_broadcast(Comm *comm, void *context)
{
    const Case *c = context;
    for (int root = 0; root < comm->size; root++) {
        Tensor x = filled(c->dtype, comm->rank, c->n);
        comm_broadcast(comm, NULL, x, root);
        for (int64_t i = 0; i < c->n; i++)
            expect(comm, "broadcast", x, i, held(c->dtype, root, i));
        free(x.data);
    }
}

enum { SIZES = 5, GROUPS = 6 };
static const int64_t sizes[SIZES] = {0, 1, 7, 1023, 70001};
static const int groups[GROUPS] = {1, 2, 3, 4, 5, 8};

static void each_case(RankBody body, const DType *dtypes, int n_dtypes, bool in_place, ReduceOp op)
{
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < SIZES; s++)
            for (int d = 0; d < n_dtypes; d++) {
                /* The longest once per type and number of ranks: it is there for the blocks. */
                Case c = {sizes[s], dtypes[d], op, in_place};
                if (sizes[s] > 10000 && groups[g] > 3) continue;
                thread_ranks(groups[g], 60, body, &c);
            }
}

static const DType summed[] = {F64, F32, I64, I32}, moved[] = {F64, BF16, U8};

static void test_all_reduce_is_the_sum_in_rank_order(void **state)
{
    (void)state;
    each_case(run_all_reduce, summed, 4, true, REDUCE_SUM);
}

static void test_all_reduce_finds_the_largest(void **state)
{
    (void)state;
    each_case(run_all_reduce, summed, 4, true, REDUCE_MAX);
}

static void test_reduce_scatter_leaves_each_rank_its_part(void **state)
{
    (void)state;
    each_case(run_reduce_scatter, summed, 2, true, REDUCE_SUM);
    each_case(run_reduce_scatter, summed, 2, false, REDUCE_SUM);
}

static void test_all_gather_puts_parts_in_rank_order(void **state)
{
    (void)state;
    each_case(run_all_gather, moved, 3, true, REDUCE_SUM);
    each_case(run_all_gather, moved, 3, false, REDUCE_SUM);
}

static void test_broadcast_from_every_root(void **state)
{
    (void)state;
    each_case(run_broadcast, moved, 3, true, REDUCE_SUM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce_is_the_sum_in_rank_order),
        cmocka_unit_test(test_all_reduce_finds_the_largest),
        cmocka_unit_test(test_reduce_scatter_leaves_each_rank_its_part),
        cmocka_unit_test(test_all_gather_puts_parts_in_rank_order),
        cmocka_unit_test(test_broadcast_from_every_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
