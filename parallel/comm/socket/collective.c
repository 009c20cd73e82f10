/* collective.c -- collectives of process ranks. Each begins with a meeting, which ensures that all
 * ranks make the same call. Small tensors are sent with the meeting; larger ones are exchanged in
 * blocks. */
#include "model/core/min_max.h"
#include "parallel/comm/combine.h"
#include "parallel/comm/socket/world.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of one rank's part of a reduction that are exchanged and summed at a time: BLOCK_BYTES, or
 * fewer in very large groups, down to SMALLEST_BLOCK, so that all blocks together do not exceed
 * STAGING_BYTES. */
enum { BLOCK_BYTES = 256 << 10, SMALLEST_BLOCK = 1 << 10, STAGING_BYTES = 16 << 20 };

/* Copies a dense tensor in host memory. dst and src may be the same. */
static void copy(Tensor dst, Tensor src)
{
    if (tensor_bytes(src) > 0) memmove(dst.data, src.data, tensor_bytes(src));
}

/* Returns an array for the operands of a reduction. */
static Tensor *sources(SocketGroup *group)
{
    if (group->source == NULL)
        group->source = must_calloc((size_t)socket_size(group), sizeof *group->source);
    return group->source;
}

/* ---- small tensors: over member 0 ------------------------------------------------------------ */

/* Returns how many elements of x each member contributes to one meeting at most; 0: x is too large,
 * and the ranks exchange it in blocks. */
static int64_t elements_at_once(const SocketGroup *group, Tensor x)
{
    int64_t size = socket_size(group), room = (int64_t)group->meeting_bytes / size,
            bytes = (int64_t)tensor_bytes(x);
    if (bytes > (size > SMALL_GROUP ? MEETING_BYTES : room)) return 0;
    return room / (int64_t)dtype_size(x.dtype);
}

/* On member 0: reduces all contributions, which have the shape of x. The result replaces member 0's
 * contribution. */
static Tensor combine(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    SocketGroup *group = socket_group(comm);
    Tensor *src = sources(group);
    for (int i = 0; i < comm->size; i++) {
        src[i] = tensor_flat(x);
        src[i].data = group->contribution + (size_t)i * tensor_bytes(x);
    }
    if (tensor_count(x) > 0) comm_combine(on, src[0], src, comm->size, op);
    return src[0];
}

/* All-reduces x, elements [at, at + n) of the call's tensor, through member 0. */
static void all_reduce_over_0(Comm *comm, SocketFrame call, Device *on, Tensor x, int64_t at,
                              ReduceOp op)
{
    SocketGroup *group = socket_group(comm);
    socket_arrive(comm, call, x.data, tensor_bytes(x), at == 0);
    if (comm->rank == 0) {
        copy(x, combine(comm, on, x, op));
        socket_answer_all(group, x.data, tensor_bytes(x));
    }
    socket_part(comm);
    if (comm->rank > 0 && tensor_bytes(x) > 0) memcpy(x.data, group->contribution, tensor_bytes(x));
}

/* On member 0: sends the sum x, elements [at, at + n) of a reduce-scatter, to the others. In a
 * small group each member receives only the elements in its own part (of `part` elements). */
static void answer_parts(Comm *comm, Tensor x, int64_t part, int64_t at)
{
    SocketGroup *group = socket_group(comm);
    int64_t end = at + tensor_count(x);
    size_t size = dtype_size(x.dtype);
    if (socket_tree_is_deep(comm->size)) {
        socket_answer_all(group, group->contribution, tensor_bytes(x));
        return;
    }
    for (int i = 1; i < comm->size; i++) {
        int64_t first = max_i64(at, i * part), last = max_i64(first, min_i64(end, (i + 1) * part));
        const unsigned char *sum = group->contribution + (size_t)(first - at) * size;
        socket_answer(group, i, sum, (size_t)(last - first) * size);
    }
}

/* Reduce-scatters x, elements [at, at + n) of `whole`, through member 0. Each rank stores the
 * elements that fall into its own part. */
static void reduce_scatter_over_0(Comm *comm, SocketFrame call, Device *on, Tensor part, Tensor x,
                                  int64_t at)
{
    SocketGroup *group = socket_group(comm);
    int64_t n = tensor_count(part), end = at + tensor_count(x);
    size_t size = dtype_size(x.dtype);
    bool has_all = comm->rank == 0 || socket_tree_is_deep(comm->size);
    socket_arrive(comm, call, x.data, tensor_bytes(x), at == 0);
    if (comm->rank == 0) {
        combine(comm, on, x, REDUCE_SUM);
        answer_parts(comm, x, n, at);
    }
    socket_part(comm);
    int64_t first = max_i64(at, comm->rank * n),
            last = max_i64(first, min_i64(end, (comm->rank + 1) * n));
    const unsigned char *sum = group->contribution + (has_all ? (size_t)(first - at) * size : 0);
    if (last > first)
        memcpy((char *)part.data + (size_t)(first - comm->rank * n) * size, sum,
               (size_t)(last - first) * size);
}

/* All-gathers elements [at, at + n) of each part through member 0; x: this rank's elements. */
static void all_gather_over_0(Comm *comm, SocketFrame call, Tensor whole, Tensor x, int64_t part,
                              int64_t at)
{
    SocketGroup *group = socket_group(comm);
    size_t bytes = tensor_bytes(x);
    socket_arrive(comm, call, x.data, bytes, at == 0);
    if (comm->rank == 0) socket_answer_all(group, group->contribution, bytes * (size_t)comm->size);
    socket_part(comm);
    for (int i = 0; i < comm->size && bytes > 0; i++)
        memmove(comm_slice(whole, i * part + at, tensor_count(x)).data,
                group->contribution + (size_t)i * bytes, bytes);
}

/* Broadcasts x, elements [at, at + n) of the call's tensor, through member 0. */
static void broadcast_over_0(Comm *comm, SocketFrame call, Tensor x, int64_t at, int root)
{
    SocketGroup *group = socket_group(comm);
    size_t bytes = tensor_bytes(x);
    bool own = comm->rank == root;
    const unsigned char *sent = group->contribution + (comm->rank == 0 ? root * bytes : 0);
    socket_arrive(comm, call, own ? x.data : NULL, bytes, at == 0);
    if (comm->rank == 0) socket_answer_all(group, own ? x.data : sent, bytes);
    socket_part(comm);
    if (!own && bytes > 0) memcpy(x.data, sent, bytes);
}

/* ---- larger tensors: blocks ------------------------------------------------------------------ */

static bool expects_data(SocketGroup *group, int member)
{
    const SocketPeer *peer = group->world->peer[socket_world_rank(group, member)];
    return peer && !queue_is_empty(&peer->in);
}

static size_t block_bytes(const Comm *comm)
{
    int64_t bytes = STAGING_BYTES / comm->size / SMALLEST_BLOCK * SMALLEST_BLOCK;
    return (size_t)max_i64(SMALLEST_BLOCK, min_i64(bytes, BLOCK_BYTES));
}

/* Allocates memory for the blocks of all members, and returns the number of elements of a block. */
static int64_t prepare_blocks(Comm *comm, DType dtype)
{
    SocketWorld *world = socket_group(comm)->world;
    size_t bytes = (size_t)comm->size * block_bytes(comm);
    if (world->staging_bytes < bytes) {
        free(world->staging);
        world->staging = must_alloc(bytes);
        world->staging_bytes = bytes;
    }
    return (int64_t)(block_bytes(comm) / dtype_size(dtype));
}

/* Exchanges elements [at, at + n) of each rank's part of x. Rank i's part begins at element i x
 * share, and no part goes beyond element `all`. Each rank reduces the elements of its own part into
 * dst. */
static void reduce_block(Comm *comm, Device *on, Tensor x, int64_t share, int64_t all, int64_t at,
                         int64_t n, Tensor dst, ReduceOp op)
{
    SocketGroup *group = socket_group(comm);
    Tensor *src = sources(group);
    int64_t mine = min_i64(n, tensor_count(dst));
    for (int i = 0; i < comm->size; i++) {
        int64_t first = min_i64(all, i * share + at),
                end = min_i64(all, min_i64(first + n, (i + 1) * share));
        src[i] = tensor_flat(comm_slice(x, min_i64(all, comm->rank * share + at), mine));
        if (i == comm->rank) continue;
        src[i].data = group->world->staging + (size_t)i * block_bytes(comm);
        socket_put_data(group, i, comm_slice(x, first, end - first));
        socket_expect_data(group, i, src[i]);
    }
    socket_drive(comm, comm->size, expects_data);
    if (mine > 0) comm_combine(on, dst, src, comm->size, op);
}

/* Sends the block that this rank has reduced in reduce_block to all other ranks, and receives
 * theirs. */
static void gather_block(Comm *comm, Tensor x, int64_t share, int64_t at, int64_t n)
{
    SocketGroup *group = socket_group(comm);
    int64_t all = tensor_count(x), me = comm->rank, own = min_i64(all, me * share + at),
            own_end = min_i64(all, min_i64(own + n, (me + 1) * share));
    for (int i = 0; i < comm->size; i++) {
        int64_t first = min_i64(all, i * share + at),
                end = min_i64(all, min_i64(first + n, (i + 1) * share));
        if (i == comm->rank) continue;
        socket_put_data(group, i, comm_slice(x, own, own_end - own));
        socket_expect_data(group, i, comm_slice(x, first, end - first));
    }
    socket_drive(comm, comm->size, expects_data);
}

/* ---------------------------------------------------------------------------------------------- */

void socket_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    SocketFrame call = socket_call(comm, COMM_ALL_REDUCE, on, x, op, -1);
    int64_t n = tensor_count(x), share = comm_share(n, comm->size), at = 0,
            once = elements_at_once(socket_group(comm), x);
    if (once > 0) {
        do {
            all_reduce_over_0(comm, call, on, comm_slice(x, at, min_i64(once, n - at)), at, op);
            at += once;
        } while (at < n);
        return;
    }
    socket_meet(comm, call);
    int64_t block = prepare_blocks(comm, x.dtype), first = min_i64(n, comm->rank * share),
            end = min_i64(n, first + share);
    for (; at < share; at += block) {
        int64_t now = min_i64(block, share - at), begin = min_i64(end, first + at),
                mine = min_i64(now, end - begin);
        reduce_block(comm, on, x, share, n, at, now, comm_slice(x, begin, mine), op);
        gather_block(comm, x, share, at, now);
    }
}

void socket_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    SocketFrame call = socket_call(comm, COMM_REDUCE_SCATTER, on, whole, REDUCE_SUM, -1);
    int64_t n = tensor_count(part), all = tensor_count(whole), at = 0,
            once = elements_at_once(socket_group(comm), whole);
    if (once > 0) {
        do {
            Tensor x = comm_slice(whole, at, min_i64(once, all - at));
            reduce_scatter_over_0(comm, call, on, part, x, at);
            at += once;
        } while (at < all);
        return;
    }
    socket_meet(comm, call);
    int64_t block = prepare_blocks(comm, part.dtype);
    for (; at < n; at += block) {
        int64_t now = min_i64(block, n - at);
        reduce_block(comm, on, whole, n, all, at, now, comm_slice(part, at, now), REDUCE_SUM);
    }
}

void socket_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    SocketGroup *group = socket_group(comm);
    SocketFrame call = socket_call(comm, COMM_ALL_GATHER, on, whole, REDUCE_SUM, -1);
    int64_t n = tensor_count(part), at = 0, once = elements_at_once(group, part);
    if (once > 0) {
        do {
            all_gather_over_0(comm, call, whole, comm_slice(part, at, min_i64(once, n - at)), n,
                              at);
            at += once;
        } while (at < n);
        return;
    }
    socket_meet(comm, call);
    for (int i = 0; i < comm->size; i++) {
        Tensor its = comm_slice(whole, i * n, n);
        if (i == comm->rank) copy(its, part);
        if (i == comm->rank) continue;
        socket_put_data(group, i, part);
        socket_expect_data(group, i, its);
    }
    socket_drive(comm, comm->size, expects_data);
}

void socket_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    SocketGroup *group = socket_group(comm);
    SocketFrame call = socket_call(comm, COMM_BROADCAST, on, x, REDUCE_SUM, root);
    int64_t n = tensor_count(x), at = 0, once = elements_at_once(group, x);
    if (once > 0) {
        do {
            broadcast_over_0(comm, call, comm_slice(x, at, min_i64(once, n - at)), at, root);
            at += once;
        } while (at < n);
        return;
    }
    socket_meet(comm, call);
    for (int i = 0; i < comm->size; i++)
        if (comm->rank == root && i != root) socket_put_data(group, i, x);
    if (comm->rank != root) socket_expect_data(group, root, x);
    socket_drive(comm, comm->size, expects_data);
}
