/* test_comm.c -- compares collectives and messages of thread ranks, bit for bit, with plain loops
 * over all ranks' data, for tensors in host memory and on a device. If TEST_DEVICE=cuda finds
 * several GPUs, each rank has its own and the ranks communicate through NCCL, whose order of sums
 * differs. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/gpus.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/grid/thread_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    int64_t n; /* elements of an all-reduce or broadcast; of one part in gathers and scatters */
    DType dtype;
    ReduceOp op;
    bool in_place;
} Case;

/* One rank's arguments of a case: its communicator, and where its tensors are. */
typedef struct {
    Comm *comm;
    Device *on; /* NULL: host memory */
    bool nccl;
    const Case *c;
} Here;

/* Returns element i of a rank's input. Sums of these numbers round, so a wrong order is noticed. */
static double held(DType dtype, int rank, int64_t i)
{
    uint64_t bits = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1342543de82ef95u;
    bits = (bits ^ bits >> 31) * 0x94d049bb133111ebu;
    double x = (double)(int64_t)(bits ^ bits >> 29) * 0x1p-63, stored[1] = {0};
    dtype_set(dtype, stored, 0, dtype_is_float(dtype) ? x : dtype == U8 ? 120 + 120 * x : 1e8 * x);
    return dtype_get(dtype, stored, 0);
}

/* Returns a tensor in host memory with n elements of a rank's input. */
static Tensor filled(DType dtype, int rank, int64_t n)
{
    Tensor x = tensor_1d(must_calloc((size_t)n + 1, 8), dtype, n);
    for (int64_t i = 0; i < n; i++)
        dtype_set(dtype, x.data, i, held(dtype, rank, i));
    return x;
}

/* Copies the tensor to where the collective uses it: device memory, if the case runs there. */
static Tensor put(const Here *p, Tensor host)
{
    return p->on ? device_put(p->on, host) : host;
}

/* Copies the result x back to the host and at once overwrites x on the device, so that a rank that
 * still reads x gets wrong numbers. */
static void take(const Here *p, Tensor host, Tensor x)
{
    if (p->on == NULL) return;
    device_copy(p->on, host, x);
    op_fill(p->on, x, 77);
    device_synchronize(p->on);
    device_drop(p->on, x);
}

/* Returns element i of all ranks' inputs, reduced in rank order: 16-bit floats in f32, all other
 * types in their own precision. */
static double reduced(const Here *p, int64_t i)
{
    DType dtype = p->c->dtype, wide = dtype_is_float(dtype) ? dtype_compute(dtype) : dtype;
    double x = held(dtype, 0, i), stored[1] = {0};
    for (int r = 1; r < p->comm->size; r++) {
        double y = held(dtype, r, i);
        dtype_set(wide, stored, 0, p->c->op == REDUCE_SUM ? x + y : x > y ? x : y);
        x = dtype_get(wide, stored, 0);
    }
    dtype_set(dtype, stored, 0, x);
    return dtype_get(dtype, stored, 0);
}

static void expect(const Here *p, const char *what, Tensor x, int64_t i, double exact)
{
    double got = dtype_get(x.dtype, x.data, i);
    if (got != exact)
        rank_wrong(p->comm, "%s, %lld %s%s%s: element %lld is %.17g, not %.17g", what,
                   (long long)tensor_count(x), dtype_name(x.dtype),
                   p->c->in_place ? ", in place" : "", p->on ? ", of a device" : "", (long long)i,
                   got, exact);
}

/* Like expect, for a reduction: NCCL's sums may differ by one rounding per hop, in any order. */
static void expect_reduced(const Here *p, const char *what, Tensor x, int64_t i, int64_t element)
{
    double got = dtype_get(x.dtype, x.data, i), exact = reduced(p, element), most = 0;
    for (int r = 0; r < p->comm->size; r++)
        most += fabs(held(x.dtype, r, element));
    double bound = p->comm->size * dtype_info[x.dtype].roundoff * most;
    if (p->nccl && p->on && p->c->op == REDUCE_SUM && fabs(got - exact) <= bound) return;
    expect(p, what, x, i, exact);
}

static void run_all_reduce(const Here *p)
{
    const Case *c = p->c;
    Tensor host = filled(c->dtype, p->comm->rank, c->n), x = put(p, host);
    comm_all_reduce(p->comm, p->on, x, c->op);
    take(p, host, x);
    for (int64_t i = 0; i < c->n; i++)
        expect_reduced(p, "all-reduce", host, i, i);
    free(host.data);
}

static void run_reduce_scatter(const Here *p)
{
    const Case *c = p->c;
    int64_t n = c->n, all = n * p->comm->size, first = n * p->comm->rank;
    Tensor host = filled(c->dtype, p->comm->rank, all), host_part = filled(c->dtype, 99, n);
    Tensor whole = put(p, host), part = put(p, host_part);
    comm_reduce_scatter(p->comm, p->on, c->in_place ? tensor_slice_rows(whole, first, n) : part,
                        whole);
    take(p, host, whole);
    take(p, host_part, part);
    for (int64_t i = 0; i < n; i++)
        expect_reduced(p, "reduce-scatter", c->in_place ? host : host_part,
                       c->in_place ? first + i : i, first + i);
    for (int64_t i = 0; i < all; i++)
        if (!c->in_place || i < first || i >= first + n)
            expect(p, "what was reduced and scattered", host, i, held(c->dtype, p->comm->rank, i));
    free(host.data);
    free(host_part.data);
}

static void run_all_gather(const Here *p)
{
    const Case *c = p->c;
    int64_t n = c->n, all = n * p->comm->size, first = n * p->comm->rank;
    Tensor host = filled(c->dtype, 99, all), host_part = filled(c->dtype, p->comm->rank, n);
    for (int64_t i = 0; i < n && c->in_place; i++)
        dtype_set(c->dtype, host.data, first + i, held(c->dtype, p->comm->rank, i));
    Tensor whole = put(p, host), part = put(p, host_part);
    comm_all_gather(p->comm, p->on, whole, c->in_place ? tensor_slice_rows(whole, first, n) : part);
    take(p, host, whole);
    take(p, host_part, part);
    for (int64_t i = 0; i < all; i++)
        expect(p, "all-gather", host, i, held(c->dtype, (int)(i / n), i % n));
    for (int64_t i = 0; i < n; i++)
        expect(p, "what was gathered", host_part, i, held(c->dtype, p->comm->rank, i));
    free(host.data);
    free(host_part.data);
}

static void run_broadcast(const Here *p)
{
    const Case *c = p->c;
    for (int root = 0; root < p->comm->size; root++) {
        Tensor host = filled(c->dtype, p->comm->rank, c->n), x = put(p, host);
        comm_broadcast(p->comm, p->on, x, root);
        take(p, host, x);
        for (int64_t i = 0; i < c->n; i++)
            expect(p, "broadcast", host, i, held(c->dtype, root, i));
        free(host.data);
    }
}

/* Passes messages along the chain of ranks, outside any group of calls, and then around the ring in
 * one group of calls. */
static void run_messages(const Here *p)
{
    const Case *c = p->c;
    int n = p->comm->size, me = p->comm->rank, next = (me + 1) % n, before = (me + n - 1) % n;
    if (n == 1) return; /* a rank cannot send a message to itself */
    Tensor host = filled(c->dtype, me, c->n), first = filled(c->dtype, 99, c->n),
           second = filled(c->dtype, 99, c->n);
    Tensor y = put(p, first), z = put(p, second);
    Tensor x = put(p, host); /* last, because allocating memory may wait for the device */
    if (me > 0) comm_receive(p->comm, p->on, y, before);
    if (me + 1 < n) comm_send(p->comm, p->on, x, next);
    comm_group_begin(p->comm);
    comm_send(p->comm, p->on, x, next);
    comm_receive(p->comm, p->on, z, before);
    comm_group_end(p->comm);
    /* Odd ranks wait for their results before even ranks synchronize their devices. */
    if (me % 2 == 0) comm_barrier(p->comm);
    if (p->on) device_synchronize(p->on);
    if (me % 2) comm_barrier(p->comm);
    take(p, host, x);
    take(p, first, y);
    take(p, second, z);
    for (int64_t i = 0; i < c->n; i++) {
        expect(p, "a message alone", first, i, held(c->dtype, me > 0 ? before : 99, i));
        expect(p, "a message of a group", second, i, held(c->dtype, before, i));
    }
    free(host.data);
    free(first.data);
    free(second.data);
}

/* ---- all sizes and numbers of ranks ---------------------------------------------------------- */

typedef struct {
    void (*run)(const Here *);
    const DType *dtypes;
    int n_dtypes;
    bool either_place; /* run the case both in place and out of place */
    ReduceOp op;
    bool on_device;
} Cases;

/* Numbers of elements: none, one, fewer than there are ranks, not divisible by any number of ranks
 * above one, and more than a block of a sum. */
static const int64_t sizes[] = {0, 1, 3, 64, 1021, 33001};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void run_cases(Comm *world, void *context)
{
    const Cases *cases = context;
    Device device = {0};
    DeviceOptions options = {
        .threads = 1, .local_ranks = world->size, .index = world->rank, .blas = BLAS_BUILTIN};
    const char *name = getenv("TEST_DEVICE");
    bool sample = getenv("TEST_SAMPLE") != NULL;
    char err[256];
    if (cases->on_device && !device_open(&device, name ? name : "cpu", &options, err, sizeof err))
        _exit(error_print(EXIT_UNAVAILABLE, "%s", err));
    Comm all = comm_split(world, "all", 0, world->rank); /* is closed before the device is */
    bool nccl = cases->on_device && gpus_agree(world, &device) == GPUS_EACH;
    if (nccl) nccl_connect(&all, &device, (NcclUse){NCCL_IN_RING, 0}, 60);
    for (int d = 0; d < cases->n_dtypes; d++)
        for (int s = 0; s < SIZES; s++)
            for (int in_place = 0; in_place <= cases->either_place; in_place++) {
                Case c = {sizes[s], cases->dtypes[d], cases->op, in_place};
                Here here = {&all, cases->on_device ? &device : NULL, nccl, &c};
                if (c.n > 10000 && (world->size == 1 || world->size > (sample ? 2 : 3))) continue;
                if (cases->on_device && !device_has_storage(&device, c.dtype)) continue;
                cases->run(&here);
            }
    comm_barrier(world); /* streams wait for each other's events until here */
    if (cases->on_device) device_synchronize(&device);
    comm_close(&all);
    if (cases->on_device) device_close(&device);
}

/* Returns whether a world of this size can run: the ranks share one GPU, or there is a GPU for
 * each. */
static bool gpus_serve(int ranks)
{
    const char *name = getenv("TEST_DEVICE");
    const Backend *backend = device_choice(name ? name : "cpu");
    int gpus = backend && backend->count ? backend->count() : 1;
    return gpus == 1 || ranks <= gpus;
}

static void each_world(Cases cases)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    /* In slow builds that check every memory access, three ranks cover what more ranks do. */
    int count = getenv("TEST_SAMPLE") ? 3 : (int)(sizeof worlds / sizeof *worlds);
    for (int i = 0; i < count; i++)
        if (!cases.on_device || gpus_serve(worlds[i]))
            thread_ranks(worlds[i], 60, run_cases, &cases);
}

static const DType of_host[] = {F64, F32, I64, I32}, floats[] = {F64, F32, BF16, F16},
                   any[] = {F64, BF16, U8};

static void test_all_reduce_is_the_sum_in_rank_order(void **state)
{
    (void)state;
    each_world((Cases){run_all_reduce, of_host, 4, false, REDUCE_SUM, false});
    each_world((Cases){run_all_reduce, floats, 4, false, REDUCE_SUM, true});
}

static void test_all_reduce_max_returns_the_largest_of_all_ranks(void **state)
{
    (void)state;
    each_world((Cases){run_all_reduce, of_host, 4, false, REDUCE_MAX, false});
    each_world((Cases){run_all_reduce, floats, 4, false, REDUCE_MAX, true});
}

static void test_reduce_scatter_gives_each_rank_its_part_of_the_sum(void **state)
{
    (void)state;
    each_world((Cases){run_reduce_scatter, of_host, 4, true, REDUCE_SUM, false});
    each_world((Cases){run_reduce_scatter, floats, 4, true, REDUCE_SUM, true});
}

static void test_all_gather_concatenates_the_parts_in_rank_order(void **state)
{
    (void)state;
    each_world((Cases){run_all_gather, any, 3, true, REDUCE_SUM, false});
    each_world((Cases){run_all_gather, any, 2, true, REDUCE_SUM, true});
}

static void test_broadcast_from_any_root_copies_its_tensor_to_all_ranks(void **state)
{
    (void)state;
    each_world((Cases){run_broadcast, any, 3, false, REDUCE_SUM, false});
    each_world((Cases){run_broadcast, any, 2, false, REDUCE_SUM, true});
}

/* Many splits follow each other without any other call between them, as in grid_open. Each rank
 * must get the group of the current split, which a maximum over the group shows. */
static void run_splits(Comm *comm, void *context)
{
    (void)context;
    for (int64_t i = 0; i < 300; i++) {
        Comm all = comm_split(comm, "all", 0, comm->rank);
        Comm half = comm_split(comm, "half", comm->rank % 2, -comm->rank);
        int64_t x = comm->rank + i;
        comm_all_reduce(&half, NULL, tensor_1d(&x, I64, 1), REDUCE_MAX);
        int64_t last = comm->size - 1, most = last % 2 == comm->rank % 2 ? last : last - 1;
        if (x != most + i) rank_wrong(comm, "split %lld: %lld", (long long)i, (long long)x);
        comm_close(&half);
        comm_close(&all);
    }
}

static void test_each_of_many_consecutive_splits_returns_its_own_group(void **state)
{
    (void)state;
    thread_ranks(4, 60, run_splits, NULL);
    thread_ranks(5, 60, run_splits, NULL);
}

static void test_messages_along_a_chain_and_around_a_ring_arrive_intact(void **state)
{
    (void)state;
    each_world((Cases){run_messages, any, 3, false, REDUCE_SUM, false});
    each_world((Cases){run_messages, any, 2, false, REDUCE_SUM, true});
}

/* The ranks have NaNs at different elements. At every fourth element no rank has a NaN. */
static void run_largest_of_nans(Comm *world, void *context)
{
    enum { N = 200 };
    Device device = {0};
    DeviceOptions options = {.threads = 1, .local_ranks = world->size, .blas = BLAS_BUILTIN};
    char err[256];
    (void)context;
    if (!device_open(&device, "cpu", &options, err, sizeof err))
        _exit(error_print(EXIT_UNAVAILABLE, "%s", err));
    Comm all = comm_split(world, "all", 0, world->rank);
    for (int on_device = 0; on_device < 2; on_device++) {
        Tensor x = filled(F64, world->rank, N);
        for (int i = world->rank; i < N; i += 4)
            dtype_set(F64, x.data, i, (double)NAN);
        comm_all_reduce(&all, on_device ? &device : NULL, x, REDUCE_MAX);
        for (int i = 0; i < N; i++)
            if (isnan(dtype_get(F64, x.data, i)) != (i % 4 < world->size))
                rank_wrong(world, "the largest of NaNs: element %d is %g", i,
                           dtype_get(F64, x.data, i));
        comm_barrier(world);
        free(x.data);
    }
    comm_close(&all);
    device_close(&device);
}

static void test_all_reduce_max_keeps_a_nan_of_any_rank(void **state)
{
    (void)state;
    thread_ranks(3, 60, run_largest_of_nans, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce_is_the_sum_in_rank_order),
        cmocka_unit_test(test_all_reduce_max_returns_the_largest_of_all_ranks),
        cmocka_unit_test(test_all_reduce_max_keeps_a_nan_of_any_rank),
        cmocka_unit_test(test_reduce_scatter_gives_each_rank_its_part_of_the_sum),
        cmocka_unit_test(test_all_gather_concatenates_the_parts_in_rank_order),
        cmocka_unit_test(test_broadcast_from_any_root_copies_its_tensor_to_all_ranks),
        cmocka_unit_test(test_messages_along_a_chain_and_around_a_ring_arrive_intact),
        cmocka_unit_test(test_each_of_many_consecutive_splits_returns_its_own_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
