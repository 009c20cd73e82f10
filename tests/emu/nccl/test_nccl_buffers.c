/* test_nccl_buffers.c -- violations of the rules for buffers, which the emulated NCCL must refuse.
 * The real library would read or write whatever is at the address. Each function breaks its rule if
 * rank->planted, else it follows the rule. */
#include "tests/emu/nccl/nccl_ranks.h"

enum { N = 8 };

static void all_reduce(Rank *r)
{
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
}

/* ---- rule (vi): memory ----------------------------------------------------------------------- */

/* "In place" means that the part is this rank's part of the whole. */
static void gather_in_place(Rank *r)
{
    rank_open(r);
    int part = r->planted ? 1 - r->rank : r->rank;
    OK(r->nccl->AllGather(r->y + part * N, r->y, N, ncclFloat32, r->comm, r->stream));
    rank_close(r);
}

static void scatter_in_place(Rank *r)
{
    rank_open(r);
    int part = r->planted ? 0 : r->rank;
    OK(r->nccl->ReduceScatter(r->x, r->x + part * N, N, ncclFloat32, ncclSum, r->comm, r->stream));
    rank_close(r);
}

static void reduce_in_place(Rank *r)
{
    rank_open(r);
    OK(r->nccl->AllReduce(r->x, r->planted ? r->x + 1 : r->x, N, ncclFloat32, ncclSum, r->comm,
                          r->stream));
    rank_close(r);
}

static void past_the_allocation(Rank *r)
{
    rank_open(r);
    OK(r->nccl->AllGather(r->x, r->y, WORLD_ROOM / 2 + r->planted, ncclFloat32, r->comm,
                          r->stream));
    rank_close(r);
}

static void host_memory(Rank *r)
{
    float here[N] = {0};
    rank_open(r);
    OK(r->nccl->AllReduce(r->planted ? here : r->x, r->y, N, ncclFloat32, ncclSum, r->comm,
                          r->stream));
    rank_close(r);
}

static void freed_memory(Rank *r)
{
    float *gone;
    rank_open(r);
    OK(cudaMalloc((void **)&gone, N * sizeof *gone));
    if (r->planted) OK(cudaFree(gone));
    OK(r->nccl->AllReduce(r->x, gone, N, ncclFloat32, ncclSum, r->comm, r->stream));
    rank_wait(r);
    if (!r->planted) OK(cudaFree(gone));
    rank_close(r);
}

static void another_devices_memory(Rank *r)
{
    float *there;
    rank_open(r);
    OK(cudaSetDevice(r->planted ? 1 - r->rank : r->rank));
    OK(cudaMalloc((void **)&there, N * sizeof *there));
    OK(cudaSetDevice(r->rank));
    OK(r->nccl->AllReduce(r->x, there, N, ncclFloat32, ncclSum, r->comm, r->stream));
    rank_wait(r);
    OK(cudaFree(there));
    rank_close(r);
}

static void another_devices_stream(Rank *r)
{
    cudaStream_t there;
    rank_open(r);
    OK(cudaSetDevice(r->planted ? 1 - r->rank : r->rank));
    OK(cudaStreamCreate(&there));
    OK(cudaSetDevice(r->rank));
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, there));
    rank_wait(r);
    OK(cudaStreamSynchronize(there));
    OK(cudaStreamDestroy(there));
    rank_close(r);
}

static void misaligned(Rank *r)
{
    rank_open(r);
    OK(r->nccl->AllReduce((char *)r->x + (r->planted ? 2 : 4), r->y, N, ncclFloat32, ncclSum,
                          r->comm, r->stream));
    rank_close(r);
}

/* Two calls of a group write the same place. In the next function, a call reads what another one of
 * its group writes. */
static void group_writes_twice(Rank *r)
{
    rank_open(r);
    OK(r->nccl->GroupStart());
    all_reduce(r);
    OK(r->nccl->AllReduce(r->x, r->planted ? r->y + N - 1 : r->y + N, N, ncclFloat32, ncclSum,
                          r->other, r->stream));
    OK(r->nccl->GroupEnd());
    rank_close(r);
}

static void group_reads_what_it_writes(Rank *r)
{
    rank_open(r);
    OK(r->nccl->GroupStart());
    all_reduce(r);
    OK(r->nccl->AllReduce(r->planted ? r->y : r->x, r->y + N, N, ncclFloat32, ncclSum, r->other,
                          r->stream));
    OK(r->nccl->GroupEnd());
    rank_close(r);
}

/* The first call has made the connections, so the second stays pending without blocking the
 * host. */
static void freed_while_pending(Rank *r)
{
    rank_open(r);
    all_reduce(r);
    rank_wait(r);
    all_reduce(r);
    if (!r->planted) rank_wait(r);
    OK(cudaFree(r->y));
    OK(cudaMalloc((void **)&r->y, N * sizeof *r->y));
    rank_close(r);
}

static const Violation violations[] = {
    {"vi",
     "all-gather into another rank's part",
     gather_in_place,
     2,
     "ncclAllGather: the send and the receive buffer overlap",
     {0}},
    {"vi",
     "reduce-scatter into another rank's part",
     scatter_in_place,
     2,
     "ncclReduceScatter: the send and the receive buffer overlap",
     {0}},
    {"vi",
     "all-reduce one element further",
     reduce_in_place,
     2,
     "ncclAllReduce: the send and the receive buffer overlap",
     {0}},
    {"vi",
     "a buffer longer than its allocation",
     past_the_allocation,
     2,
     "the receive buffer's last 8 bytes are past its allocation of 256",
     {0}},
    {"vi", "host memory", host_memory, 2, "is not in live device memory", {0}},
    {"vi", "memory that was freed", freed_memory, 2, "is not in live device memory", {0}},
    {"vi", "another device's memory", another_devices_memory, 2, "is memory of device", {0}},
    {"vi", "another device's stream", another_devices_stream, 2, "the stream is of device", {0}},
    {"vi", "a misaligned buffer", misaligned, 2, "is not aligned to its type's 4 bytes", {0}},
    {"vi",
     "two results of a group in one place",
     group_writes_twice,
     2,
     "it writes what ncclAllReduce of the same group writes",
     {0}},
    {"vi",
     "a result that the same group reads",
     group_reads_what_it_writes,
     2,
     "it reads what ncclAllReduce of the same group writes",
     {0}},
    {"vi",
     "a free while pending",
     freed_while_pending,
     2,
     "ncclAllReduce",
     {"EMU_STREAMS=deferred"}},
};

int main(void)
{
    return violations_main("memory of NCCL calls", violations,
                           sizeof violations / sizeof *violations);
}
