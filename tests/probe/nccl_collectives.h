/* nccl_collectives.h -- part of nccl.cu: tests each collective, checks every value, and times it
 * for three message sizes; also tests splitting and destroying a communicator. */
#ifndef TESTS_PROBE_NCCL_COLLECTIVES_H
#define TESTS_PROBE_NCCL_COLLECTIVES_H

#include "tests/probe/nccl_api.h"

#define BYTES_MAX ((size_t)64 << 20)

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, RING, OPERATIONS };
static const char *const operation_names[] = {"allreduce", "reducescatter", "allgather", "ring"};
static const size_t message_sizes[] = {(size_t)1 << 10, (size_t)1 << 20, BYTES_MAX};
static const char *const message_names[] = {"1KiB", "1MiB", "64MiB"};
enum { SIZES = 3 };

/* Small integers, so that a sum over ranks is exact in f32 in any order. */
static __device__ float value(int rank, size_t i)
{
    return (float)(probe_hash((uint32_t)i + 0x9e3779b9u * (uint32_t)(rank + 1)) & 0xffff);
}

static __global__ void fill_kernel(float *x, size_t n, int rank)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        x[i] = value(rank, i);
}

/* The expected result. If chunk != 0, it is the ranks' chunks, one after another. Otherwise it is
 * the sum of the values from `offset` on over the ranks first, first + step, ... < end. */
struct expected {
    size_t chunk, offset;
    int first, step, end;
};

static __global__ void check_kernel(const float *x, size_t n, struct expected e, unsigned *wrong)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float sum = 0;
        if (e.chunk)
            sum = value((int)(i / e.chunk), i % e.chunk);
        else
            for (int r = e.first; r < e.end; r += e.step)
                sum += value(r, e.offset + i);
        if (!(x[i] == sum)) atomicAdd(wrong, 1u);
    }
}

/* Counts how many of n received values are wrong and adds that to the set's counter. */
static void received_check(const struct rank *at, size_t n, struct expected e)
{
    unsigned wrong = 0;
    CUDA(at, cudaMemsetAsync(at->wrong, 0, sizeof wrong, at->stream));
    check_kernel<<<256, 256, 0, at->stream>>>(at->recv, n, e, at->wrong);
    CUDA(at, cudaGetLastError());
    CUDA(at, cudaMemcpyAsync(&wrong, at->wrong, sizeof wrong, cudaMemcpyDeviceToHost, at->stream));
    CUDA(at, cudaStreamSynchronize(at->stream));
    __atomic_add_fetch(&at->s->wrong, wrong, __ATOMIC_SEQ_CST);
}

/* Starts a rank: creates its context, buffers of BYTES_MAX, a stream and a communicator. */
static struct rank rank_start(struct set *s, int rank)
{
    struct rank at = {s, rank, s->n, NULL, NULL, NULL, NULL, NULL};
    char why[256];
    int64_t from = set_now();
    settings_apply(s, rank);
    CUDA(&at, cudaSetDevice(0));
    CUDA(&at, cudaFree(NULL));
    CUDA(&at, cudaStreamCreateWithFlags(&at.stream, cudaStreamNonBlocking));
    CUDA(&at, cudaMalloc(&at.send, BYTES_MAX));
    CUDA(&at, cudaMalloc(&at.recv, BYTES_MAX));
    CUDA(&at, cudaMalloc(&at.wrong, sizeof *at.wrong));
    fill_kernel<<<256, 256, 0, at.stream>>>(at.send, BYTES_MAX / sizeof(float), rank);
    CUDA(&at, cudaStreamSynchronize(at.stream));
    if (api_open(why, sizeof why)) set_fail(s, rank, "%s", why);
    if (rank == 0 && s->report_init)
        probe_number(probe_name("%s.context", s->prefix), set_seconds_since(from), "s");
    set_ask(s, rank, "init", 12, "failed: no answer");
    from = set_now();
    at.comm = comm_make(&at);
    if (rank == 0 && s->report_init) probe_number(s->question, set_seconds_since(from), "s");
    return at;
}

/* ---- the collectives ------------------------------------------------------------------------- */

static void collective_issue(const struct rank *at, int operation, size_t n)
{
    size_t chunk = n / (size_t)at->n;
    int next = (at->rank + 1) % at->n, previous = (at->rank + at->n - 1) % at->n;
    switch (operation) {
    case ALL_REDUCE:
        NCCL(at, AllReduce, at->send, at->recv, n, ncclFloat, ncclSum, at->comm, at->stream);
        break;
    case REDUCE_SCATTER:
        NCCL(at, ReduceScatter, at->send, at->recv, chunk, ncclFloat, ncclSum, at->comm,
             at->stream);
        break;
    case ALL_GATHER:
        NCCL(at, AllGather, at->send, at->recv, chunk, ncclFloat, at->comm, at->stream);
        break;
    default:
        NCCL(at, GroupStart);
        NCCL(at, Send, at->send, n, ncclFloat, next, at->comm, at->stream);
        NCCL(at, Recv, at->recv, n, ncclFloat, previous, at->comm, at->stream);
        NCCL(at, GroupEnd);
    }
}

static void collective_check(const struct rank *at, int operation, size_t n)
{
    size_t chunk = n / (size_t)at->n;
    int previous = (at->rank + at->n - 1) % at->n;
    struct expected sum = {0, 0, 0, 1, at->n},
                    scattered = {0, chunk * (size_t)at->rank, 0, 1, at->n};
    struct expected gathered = {chunk, 0, 0, 1, 0}, sent = {0, 0, previous, 1, previous + 1};
    switch (operation) {
    case ALL_REDUCE: received_check(at, n, sum); break;
    case REDUCE_SCATTER: received_check(at, chunk, scattered); break;
    case ALL_GATHER: received_check(at, n, gathered); break;
    default: received_check(at, n, sent);
    }
}

/* Returns this rank's time in seconds for one of `calls` calls; all ranks start together. */
static double collective_time(const struct rank *at, int operation, size_t n, int calls)
{
    int64_t from;
    set_barrier(at->s, at->rank);
    from = set_now();
    for (int i = 0; i < calls; i++)
        collective_issue(at, operation, n);
    comm_wait(at, at->comm, at->stream);
    return set_seconds_since(from) / calls;
}

static void collective_ask(const struct rank *at, int operation, int size)
{
    struct set *s = at->s;
    size_t bytes = message_sizes[size], n = bytes / sizeof(float);
    double seconds;
    set_ask(s, at->rank, probe_name("%s.%s", operation_names[operation], message_names[size]), 8,
            "failed: no answer");
    if (at->rank == 0) s->wrong = 0;
    /* All bits set is a NaN, so a value that was never received counts as wrong. */
    CUDA(at, cudaMemsetAsync(at->recv, 0xff, BYTES_MAX, at->stream));
    collective_time(at, operation, n, 1);
    collective_check(at, operation, n);
    seconds = collective_time(at, operation, n, 1);
    if (at->rank == 0) s->calls = seconds > 0.15 ? 1 : seconds < 0.003 ? 50 : (int)(0.15 / seconds);
    set_barrier(s, at->rank);
    seconds = collective_time(at, operation, n, s->calls);
    if (at->rank) return;
    probe_number(s->question, (double)bytes / seconds, "B/s");
    probe_number(probe_name("%s.time", s->question), seconds, "s");
    probe_number(probe_name("%s.wrong", s->question), s->wrong, "values");
}

/* Splits the ranks into groups of two, the higher rank first, and tests an all-reduce in each
 * group. */
static void split_ask(struct rank *at)
{
    struct set *s = at->s;
    ncclComm_t whole = at->comm, half = NULL;
    int colors = at->n / 2, color = at->rank % colors, rank = -1, count = -1;
    struct expected sum = {0, 0, color, colors, at->n};
    int64_t from;
    double seconds;
    set_ask(s, at->rank, "split", 6, "failed: no answer");
    if (at->rank == 0) s->wrong = 0;
    set_barrier(s, at->rank);
    from = set_now();
    NCCL(at, CommSplit, whole, color, at->n - at->rank, &half, NULL);
    seconds = set_seconds_since(from);
    NCCL(at, CommUserRank, half, &rank);
    NCCL(at, CommCount, half, &count);
    if (count != 2 || rank != (at->n - 1 - at->rank) / colors)
        set_fail(s, at->rank, "is rank %d of %d in its part", rank, count);
    CUDA(at, cudaMemsetAsync(at->recv, 0xff, BYTES_MAX, at->stream));
    at->comm = half;
    collective_time(at, ALL_REDUCE, (size_t)1 << 18, 1);
    at->comm = whole;
    received_check(at, (size_t)1 << 18, sum);
    NCCL(at, CommDestroy, half);
    set_barrier(s, at->rank);
    if (at->rank) return;
    probe_number(s->question, seconds, "s");
    probe_number(probe_name("%s.wrong", s->question), s->wrong, "values");
}

/* Runs all tests of collectives from number s->first on. s->step tells the parent which test was
 * running if the set ends early. */
static void collectives_body(struct set *s, int rank)
{
    struct rank at = rank_start(s, rank);
    int64_t from;
    for (int i = s->first; i < SIZES * s->operations; i++) {
        set_barrier(s, rank);
        if (rank == 0) s->step = i;
        collective_ask(&at, i % s->operations, i / s->operations);
    }
    if (s->operations < OPERATIONS) return;
    set_barrier(s, rank);
    if (rank == 0) s->step = SIZES * OPERATIONS;
    if (s->first <= SIZES * OPERATIONS) split_ask(&at);
    set_ask(s, rank, "destroy", 4, "failed: no answer");
    if (rank == 0) s->step = SIZES * OPERATIONS + 1;
    from = set_now();
    NCCL(&at, CommDestroy, at.comm);
    if (rank == 0) probe_number(s->question, set_seconds_since(from), "s");
}

/* If a test ends its set of processes, starts a new set and continues with the next test, for at
 * most `seconds` in all. Returns -1 if not even the communicator could be created. */
static int collectives_run(struct set *s, const char *prefix, int n, int operations, double seconds)
{
    int64_t from = set_now();
    int last = SIZES * operations + (operations == OPERATIONS);
    s->operations = operations;
    s->first = 0;
    for (s->report_init = 1;; s->report_init = 0) {
        double left = seconds - set_seconds_since(from);
        if (s->first && left < 3) {
            probe_word(probe_name("%s.unasked", prefix), "skipped: the time was over");
            return 0;
        }
        if (set_run(s, prefix, n, collectives_body, left) == 0) return 0;
        if (s->step < 0) return s->first ? 0 : -1;
        s->first = s->step + 1;
        if (s->first >= last) return 0;
    }
}

#endif
