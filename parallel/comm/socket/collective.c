/* collective.c -- collectives of process ranks. Each begins with a meeting, so all ranks make the
 * same call. Small tensors travel with the meeting. Of larger ones the ranks exchange blocks. */
#include "model/core/min_max.h"
#include "parallel/comm/combine.h"
#include "parallel/comm/socket/world.h"

#include <string.h>

/* Bytes of one rank's part of a reduction that are exchanged and summed at a time. */
enum { BLOCK_BYTES = 256 << 10 };

static bool expects_data(SocketGroup *group, int member)
{
    return !queue_is_empty(&socket_peer(group, member)->in);
}

/* Returns the contribution of member i to the last meeting as a tensor like x. */
static Tensor contributed(SocketGroup *group, int i, Tensor x)
{
    x.data = group->contribution + (size_t)i * tensor_bytes(x);
    return tensor_flat(x);
}

/* Copies dense tensors in host memory, which may be the same. */
static void copy(Tensor dst, Tensor src)
{
    if (tensor_bytes(src) > 0) memmove(dst.data, src.data, tensor_bytes(src));
}

/* Exchanges elements [at, at + n) of each rank's part of x, where rank i's part begins at i * share
 * and the last parts end at `all`. Each rank sums its own into dst. */
static void reduce_block(Comm *comm, Device *on, Tensor x, int64_t share, int64_t all, int64_t at,
                         int64_t n, Tensor dst, ReduceOp op)
{
    SocketGroup *group = socket_group(comm);
    Tensor src[SOCKET_MAX_RANKS];
    int64_t mine = min_i64(n, tensor_count(dst));
    for (int i = 0; i < comm->size; i++) {
        int64_t first = min_i64(all, i * share + at),
                end = min_i64(all, min_i64(first + n, (i + 1) * share));
        src[i] = tensor_flat(comm_slice(x, min_i64(all, comm->rank * share + at), mine));
        if (i == comm->rank) continue;
        src[i].data = group->world->staging + (size_t)i * BLOCK_BYTES;
        socket_put_data(group, i, comm_slice(x, first, end - first));
        socket_expect_data(group, i, src[i]);
    }
    socket_drive(comm, expects_data);
    if (mine > 0) comm_combine(on, dst, src, comm->size, op);
}

/* Sends the blocks that reduce_block has summed to all ranks, and receives theirs. */
static void gather_block(Comm *comm, Tensor x, int64_t share, int64_t at, int64_t n)
{
    SocketGroup *group = socket_group(comm);
    int64_t all = tensor_count(x);
    for (int i = 0; i < comm->size; i++) {
        int64_t first = min_i64(all, i * share + at),
                end = min_i64(all, min_i64(first + n, (i + 1) * share));
        Tensor block = comm_slice(x, first, end - first);
        for (int to = 0; to < comm->size; to++)
            if (i == comm->rank && to != i) socket_put_data(group, to, block);
        if (i != comm->rank) socket_expect_data(group, i, block);
    }
    socket_drive(comm, expects_data);
}

static void make_staging(SocketWorld *world)
{
    if (world->staging == NULL) world->staging = must_alloc((size_t)world->ranks * BLOCK_BYTES);
}

void socket_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    SocketGroup *group = socket_group(comm);
    SocketFrame call = socket_call(comm, COMM_ALL_REDUCE, on, x, op, -1);
    bool small = socket_fits(group, tensor_bytes(x));
    socket_meet(comm, call, x.data, small ? tensor_bytes(x) : 0);
    int64_t n = tensor_count(x), share = comm_share(n, comm->size);
    if (small && n > 0) {
        Tensor src[SOCKET_MAX_RANKS];
        for (int i = 0; i < comm->size; i++)
            src[i] = contributed(group, i, x);
        comm_combine(on, tensor_flat(x), src, comm->size, op);
    }
    if (small) return;
    make_staging(group->world);
    int64_t block = (int64_t)(BLOCK_BYTES / dtype_size(x.dtype)),
            first = min_i64(n, comm->rank * share), end = min_i64(n, first + share);
    for (int64_t at = 0; at < share; at += block) {
        int64_t now = min_i64(block, share - at), begin = min_i64(end, first + at),
                mine = min_i64(now, end - begin);
        reduce_block(comm, on, x, share, n, at, now, comm_slice(x, begin, mine), op);
        gather_block(comm, x, share, at, now);
    }
}

void socket_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    SocketGroup *group = socket_group(comm);
    SocketFrame call = socket_call(comm, COMM_REDUCE_SCATTER, on, whole, REDUCE_SUM, -1);
    bool small = socket_fits(group, tensor_bytes(whole));
    int64_t n = tensor_count(part), all = tensor_count(whole);
    socket_meet(comm, call, whole.data, small ? tensor_bytes(whole) : 0);
    if (small && n > 0) {
        Tensor src[SOCKET_MAX_RANKS];
        for (int i = 0; i < comm->size; i++)
            src[i] = comm_slice(contributed(group, i, whole), comm->rank * n, n);
        comm_combine(on, tensor_flat(part), src, comm->size, REDUCE_SUM);
    }
    if (small) return;
    make_staging(group->world);
    int64_t block = (int64_t)(BLOCK_BYTES / dtype_size(part.dtype));
    for (int64_t at = 0; at < n; at += block) {
        int64_t now = min_i64(block, n - at);
        reduce_block(comm, on, whole, n, all, at, now, comm_slice(part, at, now), REDUCE_SUM);
    }
}

void socket_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    SocketGroup *group = socket_group(comm);
    SocketFrame call = socket_call(comm, COMM_ALL_GATHER, on, whole, REDUCE_SUM, -1);
    bool small = socket_fits(group, tensor_bytes(part));
    int64_t n = tensor_count(part);
    socket_meet(comm, call, part.data, small ? tensor_bytes(part) : 0);
    for (int i = 0; i < comm->size; i++) {
        Tensor its = comm_slice(whole, i * n, n);
        if (small) copy(its, contributed(group, i, part));
        if (small) continue;
        if (i == comm->rank) copy(its, part);
        if (i == comm->rank) continue;
        socket_put_data(group, i, part);
        socket_expect_data(group, i, its);
    }
    if (!small) socket_drive(comm, expects_data);
}

void socket_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    SocketGroup *group = socket_group(comm);
    SocketFrame call = socket_call(comm, COMM_BROADCAST, on, x, REDUCE_SUM, root);
    bool small = socket_fits(group, tensor_bytes(x));
    socket_meet(comm, call, x.data, small ? tensor_bytes(x) : 0);
    if (small) {
        if (comm->rank != root) copy(x, contributed(group, root, x));
        return;
    }
    for (int i = 0; i < comm->size; i++)
        if (comm->rank == root && i != root) socket_put_data(group, i, x);
    if (comm->rank != root) socket_expect_data(group, root, x);
    socket_drive(comm, expects_data);
}
