/* test_nccl_core.c -- compares the collectives of the emulated NCCL with plain sums, for all types
 * and reductions, on strict, deferred and random streams, and checks how a ring rounds sums. */
#include "model/core/dtype.h"
#include "tests/emu/nccl/nccl_runs.h"

#include <stdint.h>

/* ---- elements -------------------------------------------------------------------------------- */

static const size_t TYPE_SIZE[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static void put(ncclDataType_t type, void *p, size_t i, int value)
{
    switch (type) {
    case ncclInt8: ((int8_t *)p)[i] = (int8_t)value; break;
    case ncclUint8: ((uint8_t *)p)[i] = (uint8_t)value; break;
    case ncclInt32: ((int32_t *)p)[i] = value; break;
    case ncclUint32: ((uint32_t *)p)[i] = (uint32_t)value; break;
    case ncclInt64: ((int64_t *)p)[i] = value; break;
    case ncclUint64: ((uint64_t *)p)[i] = (uint64_t)value; break;
    case ncclFloat16: ((uint16_t *)p)[i] = f16_from_f32((float)value); break;
    case ncclFloat32: ((float *)p)[i] = (float)value; break;
    case ncclFloat64: ((double *)p)[i] = value; break;
    default: ((uint16_t *)p)[i] = bf16_from_f32((float)value); break;
    }
}

static double get(ncclDataType_t type, const void *p, size_t i)
{
    switch (type) {
    case ncclInt8: return ((const int8_t *)p)[i];
    case ncclUint8: return ((const uint8_t *)p)[i];
    case ncclInt32: return ((const int32_t *)p)[i];
    case ncclUint32: return ((const uint32_t *)p)[i];
    case ncclInt64: return (double)((const int64_t *)p)[i];
    case ncclUint64: return (double)((const uint64_t *)p)[i];
    case ncclFloat16: return f16_to_f32(((const uint16_t *)p)[i]);
    case ncclFloat32: return ((const float *)p)[i];
    case ncclFloat64: return ((const double *)p)[i];
    default: return bf16_to_f32(((const uint16_t *)p)[i]);
    }
}

/* Returns a number so small that every type can hold every result, of both signs for signed
 * types. */
static int value_of(ncclDataType_t type, ncclRedOp_t reduction, int rank, size_t i)
{
    int v = (int)(i * 7 + (size_t)rank * 5) % 13;
    bool has_sign = type != ncclUint8 && type != ncclUint32 && type != ncclUint64;
    if (reduction == ncclProd) return 1 + v % 3;
    if (has_sign) v -= 6;
    return reduction == ncclAvg ? 4 * v : v;
}

static double reduced(ncclDataType_t type, ncclRedOp_t reduction, int ranks, size_t i)
{
    double all = value_of(type, reduction, 0, i);
    for (int r = 1; r < ranks; r++) {
        double v = value_of(type, reduction, r, i);
        switch (reduction) {
        case ncclProd: all *= v; break;
        case ncclMax: all = all > v ? all : v; break;
        case ncclMin: all = all < v ? all : v; break;
        default: all += v; break;
        }
    }
    return reduction == ncclAvg ? all / ranks : all;
}

/* ---- collectives ----------------------------------------------------------------------------- */

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, VERBS };
enum { MOST = 300, GUARD = 3, ROOM = (4 * MOST + GUARD) * 8 /* size of a buffer in bytes */ };

typedef struct {
    int verb;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    size_t count;
    bool in_place;
    void *send, *recv, *host, *got; /* ROOM bytes each: two in device memory, two in pinned
                                     * memory */
} Trial;

static size_t elements_sent(const Trial *t, const Rank *r)
{
    return t->verb == REDUCE_SCATTER ? (size_t)r->ranks * t->count : t->count;
}

static size_t elements_received(const Trial *t, const Rank *r)
{
    return t->verb == ALL_GATHER ? (size_t)r->ranks * t->count : t->count;
}

/* Sets the addresses that the operation reads and writes. In place, both are inside `recv`. */
static void trial_place(const Trial *t, const Rank *r, char **send, char **recv)
{
    size_t part = (size_t)r->rank * t->count * TYPE_SIZE[t->type];
    *send = t->in_place ? t->recv : t->send;
    *recv = t->recv;
    if (t->in_place && t->verb == ALL_GATHER) *send += part;
    if (t->in_place && t->verb == REDUCE_SCATTER) *recv += part;
}

static void trial_call(const Trial *t, const Rank *r, const char *send, char *recv)
{
    const Nccl *n = r->nccl;
    int root = 1 % r->ranks;
    switch (t->verb) {
    case ALL_REDUCE:
        OK(n->AllReduce(send, recv, t->count, t->type, t->reduction, r->comm, r->stream));
        break;
    case REDUCE_SCATTER:
        OK(n->ReduceScatter(send, recv, t->count, t->type, t->reduction, r->comm, r->stream));
        break;
    case ALL_GATHER: OK(n->AllGather(send, recv, t->count, t->type, r->comm, r->stream)); break;
    default: OK(n->Broadcast(send, recv, t->count, t->type, root, r->comm, r->stream)); break;
    }
}

static double trial_expected(const Trial *t, const Rank *r, size_t i)
{
    switch (t->verb) {
    case ALL_REDUCE: return reduced(t->type, t->reduction, r->ranks, i);
    case REDUCE_SCATTER:
        return reduced(t->type, t->reduction, r->ranks, (size_t)r->rank * t->count + i);
    case ALL_GATHER: return value_of(t->type, t->reduction, (int)(i / t->count), i % t->count);
    default: return value_of(t->type, t->reduction, 1 % r->ranks, i);
    }
}

/* Checks the result, and that nothing after it was overwritten. */
static void trial_run(const Trial *t, Rank *r)
{
    char *send, *recv;
    size_t size = TYPE_SIZE[t->type], sent = elements_sent(t, r), got = elements_received(t, r);
    trial_place(t, r, &send, &recv);
    memset(t->host, 0x55, ROOM);
    OK(cudaMemcpyAsync(t->recv, t->host, ROOM, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    for (size_t i = 0; i < sent; i++)
        put(t->type, t->host, i, value_of(t->type, t->reduction, r->rank, i));
    OK(cudaMemcpyAsync(send, t->host, sent * size, cudaMemcpyDefault, r->stream));
    trial_call(t, r, send, recv);
    OK(cudaMemcpyAsync(t->got, recv, (got + GUARD) * size, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    for (size_t i = 0; i < got; i++)
        if (get(t->type, t->got, i) != trial_expected(t, r, i)) {
            fprintf(stderr,
                    "verb %d, type %d, reduction %d, count %zu, in place %d: [%zu] is %g, not %g\n",
                    t->verb, t->type, t->reduction, t->count, t->in_place, i,
                    get(t->type, t->got, i), trial_expected(t, r, i));
            _exit(98);
        }
    bool sends_past_it = t->in_place && t->verb == REDUCE_SCATTER;
    for (size_t i = got * size; i < (got + GUARD) * size && !sends_past_it; i++)
        MUST(((const unsigned char *)t->got)[i] == 0x55);
}

static void every_reduction(Trial *t, Rank *r)
{
    for (int reduction = ncclSum; reduction <= ncclAvg; reduction++) {
        bool exact = reduction != ncclAvg || r->ranks != 3;
        bool reduces = t->verb == ALL_REDUCE || t->verb == REDUCE_SCATTER;
        t->reduction = (ncclRedOp_t)reduction;
        if ((reduces && exact) || reduction == ncclSum) trial_run(t, r);
    }
}

static void every_collective(Rank *r)
{
    static const size_t counts[] = {1, 5, MOST};
    Trial t = {0};
    OK(cudaMalloc(&t.send, ROOM));
    OK(cudaMalloc(&t.recv, ROOM));
    OK(cudaMallocHost(&t.host, ROOM));
    OK(cudaMallocHost(&t.got, ROOM));
    for (t.verb = 0; t.verb < VERBS; t.verb++)
        for (int i = 0; i < 3; i++)
            for (int type = ncclInt8; type <= ncclBfloat16; type++) {
                t.type = (ncclDataType_t)type;
                t.count = counts[i];
                t.in_place = (i + type) % 2;
                every_reduction(&t, r);
            }
    OK(cudaFree(t.send));
    OK(cudaFree(t.recv));
    OK(cudaFreeHost(t.host));
    OK(cudaFreeHost(t.got));
}

static void collectives_body(Rank *r)
{
    rank_open(r);
    every_collective(r);
    rank_close(r);
}

static void test_each_collective_gives_exact_results_for_all_types_and_reductions(void **state)
{
    (void)state;
    char text[4096];
    for (int ranks = 1; ranks < 4; ranks++)
        runs_well(collectives_body, ranks, "", text, sizeof text);
    runs_well_in_all_modes(collectives_body, 4);
}

/* A call with count 0 concerns only the rank that makes it. A large count is sent in many
 * pieces. */
static void counts_body(Rank *r) /* runs on 3 ranks */
{
    enum { LARGE = 3000001 };
    float *x, *host, *got;
    rank_open(r);
    if (r->rank == 0)
        OK(r->nccl->AllReduce(r->x, r->y, 0, ncclFloat32, ncclSum, r->comm, r->stream));
    OK(cudaMalloc((void **)&x, LARGE * sizeof *x));
    OK(cudaMallocHost((void **)&host, LARGE * sizeof *x));
    OK(cudaMallocHost((void **)&got, LARGE * sizeof *x));
    for (int i = 0; i < LARGE; i++)
        host[i] = (float)(i % 1000 + r->rank);
    OK(cudaMemcpyAsync(x, host, LARGE * sizeof *x, cudaMemcpyDefault, r->stream));
    OK(r->nccl->AllReduce(x, x, LARGE, ncclFloat32, ncclSum, r->comm, r->stream));
    OK(cudaMemcpyAsync(got, x, LARGE * sizeof *x, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < LARGE; i++)
        MUST(got[i] == (float)(3 * (i % 1000) + 0 + 1 + 2));
    OK(cudaFree(x));
    OK(cudaFreeHost(host));
    OK(cudaFreeHost(got));
    rank_close(r);
}

static void test_a_call_without_elements_is_ignored_and_a_large_sum_is_exact(void **state)
{
    (void)state;
    char text[4096];
    runs_well(counts_body, 3, "EMU_STREAMS=deferred", text, sizeof text);
}

/* ---- how a ring rounds sums ------------------------------------------------------------------ */

/* Sums n numbers over the ranks and stores the results in sum[]. All numbers of rank 0 are 256
 * (bf16) or 2048 (f16), all others 0.75. */
static void sum_of_unlike(Rank *r, ncclDataType_t type, int n, double *sum)
{
    uint16_t *bits = (uint16_t *)r->host, got[8];
    float big = type == ncclBfloat16 ? 256 : 2048, v = r->rank == 0 ? big : 0.75f;
    for (int i = 0; i < n; i++)
        bits[i] = type == ncclBfloat16 ? bf16_from_f32(v) : f16_from_f32(v);
    OK(cudaMemcpyAsync(r->x, bits, (size_t)n * 2, cudaMemcpyDefault, r->stream));
    OK(r->nccl->AllReduce(r->x, r->y, (size_t)n, type, ncclSum, r->comm, r->stream));
    OK(cudaMemcpyAsync(got, r->y, (size_t)n * 2, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < n; i++)
        sum[i] = get(type, got, (size_t)i);
}

/* A 16-bit sum is rounded at each hop, so the order of the ranks decides the result. All ranks must
 * get the same bits. Rank 0 prints them. */
static void rounding_body(Rank *r)
{
    static double first[4][8]; /* the sums of each rank */
    static const ncclDataType_t types[] = {ncclBfloat16, ncclFloat16};
    rank_open(r);
    for (int t = 0; t < 2; t++) {
        double *sum = first[r->rank], big = t == 0 ? 256 : 2048;
        int small = 0;
        sum_of_unlike(r, types[t], 8, sum);
        for (int i = 0; i < 8; i++) {
            MUST(sum[i] == big || sum[i] == big + 2);
            small += sum[i] == big;
        }
        MUST(small > 0 && small < 8);
        rank_meet(r);
        MUST(memcmp(first[r->rank], first[0], sizeof first[0]) == 0);
        for (int i = 0; i < 8 && r->rank == 0; i++)
            fprintf(stderr, "%d", sum[i] == big);
        rank_meet(r);
    }
    rank_close(r);
}

/* The same seed must give the same result, and other seeds must sometimes give another. */
static void test_the_seed_decides_how_a_ring_rounds_16_bit_sums(void **state)
{
    (void)state;
    char first[64], other[64], settings[64];
    int unlike = 0;
    runs_well(rounding_body, 4, "EMU_NCCL_SEED=0", first, sizeof first);
    runs_well(rounding_body, 4, "EMU_NCCL_SEED=0 EMU_STREAMS=random", other, sizeof other);
    assert_string_equal(first, other);
    for (int seed = 1; seed < 6; seed++) {
        snprintf(settings, sizeof settings, "EMU_NCCL_SEED=%d", seed);
        runs_well(rounding_body, 4, settings, other, sizeof other);
        unlike += strcmp(first, other) != 0;
    }
    assert_true(unlike > 0);
}

/* Sums must be rounded to nearest, ties to even. */
static void nearest_body(Rank *r)
{
    static const float mine[2][3] = {{256, 258, 256}, {1, 1, 1.5f}}, sums[3] = {256, 260, 258};
    static const float more = 2048 - 256; /* added to rank 0's numbers in float16 */
    uint16_t got[6], *bits;
    rank_open(r);
    bits = (uint16_t *)r->host;
    for (int i = 0; i < 3; i++) {
        bits[i] = bf16_from_f32(mine[r->rank][i]);
        bits[3 + i] = f16_from_f32(mine[r->rank][i] + (r->rank == 0 ? more : 0));
    }
    OK(cudaMemcpyAsync(r->x, bits, sizeof got, cudaMemcpyDefault, r->stream));
    uint16_t *x = (uint16_t *)r->x, *y = (uint16_t *)r->y;
    OK(r->nccl->AllReduce(x, y, 3, ncclBfloat16, ncclSum, r->comm, r->stream));
    OK(r->nccl->AllReduce(x + 3, y + 3, 3, ncclFloat16, ncclSum, r->comm, r->stream));
    OK(cudaMemcpyAsync(got, r->y, sizeof got, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < 3; i++)
        MUST(bf16_to_f32(got[i]) == sums[i] && f16_to_f32(got[3 + i]) == sums[i] + more);
    rank_close(r);
}

static void test_16_bit_sums_are_rounded_to_nearest_ties_to_even(void **state)
{
    (void)state;
    char text[4096];
    runs_well(nearest_body, 2, "", text, sizeof text);
}

/* The maximum or minimum of numbers and a NaN must be one of the numbers. */
static void nan_body(Rank *r)
{
    static const ncclRedOp_t reductions[] = {ncclMax, ncclMin, ncclSum};
    float got[3];
    rank_open(r);
    for (int i = 0; i < 3; i++) {
        r->host[i] = i == r->rank ? 0.0f / 0.0f : (float)r->rank;
        if (r->rank == 0 && i == 0) r->host[i] = -(0.0f / 0.0f);
    }
    for (int i = 0; i < 3; i++) {
        OK(cudaMemcpyAsync(r->x, r->host, sizeof got, cudaMemcpyDefault, r->stream));
        OK(r->nccl->AllReduce(r->x, r->y, 3, ncclFloat32, reductions[i], r->comm, r->stream));
        OK(cudaMemcpyAsync(got, r->y, sizeof got, cudaMemcpyDefault, r->stream));
        OK(cudaStreamSynchronize(r->stream));
        if (i == 0) MUST(got[0] == 2 && got[1] == 2 && got[2] == 1);
        if (i == 1) MUST(got[0] == 1 && got[1] == 0 && got[2] == 0);
        if (i == 2) MUST(got[0] != got[0] && got[1] != got[1] && got[2] != got[2]);
    }
    rank_close(r);
}

static void test_max_and_min_ignore_a_nan_and_a_sum_returns_it(void **state)
{
    (void)state;
    char text[4096];
    runs_well(nan_body, 3, "", text, sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_collective_gives_exact_results_for_all_types_and_reductions),
        cmocka_unit_test(test_a_call_without_elements_is_ignored_and_a_large_sum_is_exact),
        cmocka_unit_test(test_the_seed_decides_how_a_ring_rounds_16_bit_sums),
        cmocka_unit_test(test_16_bit_sums_are_rounded_to_nearest_ties_to_even),
        cmocka_unit_test(test_max_and_min_ignore_a_nan_and_a_sum_returns_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
