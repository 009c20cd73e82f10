/* collective.c -- collectives of thread ranks. All ranks publish their tensors and meet, each rank
 * does its part on its own stream, and all meet again. */
#include "model/core/min_max.h"
#include "parallel/comm/combine.h"
#include "parallel/comm/local/group.h"

/* Sums are computed in blocks, so that a block is still in the core's cache when it is copied to
 * the peers. */
enum { BLOCK_BYTES = 64 << 10 };

static void publish(Comm *comm, LocalCall call)
{
    local_begin(comm, call);
    local_record(comm, call.on, &local_member(comm)->before);
    local_meet(comm);
}

/* Makes this member's stream wait until the peer's stream has reached the peer's call. */
static void wait_before(Comm *comm, Device *on, int peer)
{
    if (peer != comm->rank) local_wait(on, &local_group(comm)->member[peer].before);
}

/* Called when this member has enqueued its part. Blocks until every member has done so. If `wait`,
 * this member's stream also waits until all parts are complete. */
static void finish(Comm *comm, Device *on, bool wait)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    local_record(comm, on, &self->after);
    local_meet(comm); /* so that every event is recorded before anybody waits for it */
    for (int i = 0; i < comm->size && wait; i++)
        if (i != comm->rank) local_wait(on, &group->member[i].after);
    /* A member that leaves the group waits for this counter before it destroys its events. */
    pthread_mutex_lock(&group->mutex);
    self->finished++;
    pthread_mutex_unlock(&group->mutex);
}

/* Reduces elements [first, first + n) of all members' `in` into dst, in rank order. */
static void reduce(Comm *comm, Device *on, Tensor dst, int64_t first, int64_t n, ReduceOp op)
{
    LocalGroup *group = local_group(comm);
    Tensor src[LOCAL_MAX_RANKS];
    for (int i = 0; i < comm->size; i++)
        src[i] = comm_slice(group->member[i].call.in, first, n);
    comm_combine(on, dst, src, comm->size, op);
}

/* Returns how many elements to reduce at a time: a block if the CPU computes, else all of them. */
static int64_t block_of(const Device *on, DType dtype)
{
    bool host = on == NULL || on->backend->place == PLACE_HOST;
    return host ? (int64_t)(BLOCK_BYTES / dtype_size(dtype)) : INT64_MAX;
}

void local_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    LocalGroup *group = local_group(comm);
    int64_t n = tensor_count(x), share = comm_share(n, comm->size);
    int64_t first = min_i64(n, comm->rank * share), end = min_i64(n, first + share);
    publish(comm, (LocalCall){.name = "all-reduce",
                              .count = n,
                              .dtype = x.dtype,
                              .op = op,
                              .root = -1,
                              .on = on,
                              .in = x});
    for (int i = 0; i < comm->size && n > 0; i++)
        wait_before(comm, on, i);
    /* This member sums its slice of all members' x and writes the sum to all of them. Each element
     * is summed once, by one rank, so all ranks get the same bits. */
    for (int64_t at = first, now; at < end; at += now) {
        now = min_i64(block_of(on, x.dtype), end - at);
        Tensor sum = comm_slice(x, at, now);
        reduce(comm, on, sum, at, now, op);
        for (int i = 0; i < comm->size; i++)
            local_copy(on, comm_slice(group->member[i].call.in, at, now), sum);
    }
    finish(comm, on, n > 0);
}

void local_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    int64_t n = tensor_count(part);
    publish(comm, (LocalCall){.name = "reduce-scatter",
                              .count = tensor_count(whole),
                              .dtype = whole.dtype,
                              .root = -1,
                              .on = on,
                              .in = whole});
    for (int i = 0; i < comm->size && n > 0; i++)
        wait_before(comm, on, i);
    /* Out of place, op_sum uses stores that bypass the caches, so blocks would not help. In place,
     * the destination is already in the cache. */
    bool in_place = part.data == comm_slice(whole, comm->rank * n, n).data;
    int64_t block = in_place ? block_of(on, part.dtype) : n;
    for (int64_t at = 0, now; at < n; at += now) {
        now = min_i64(block, n - at);
        reduce(comm, on, comm_slice(part, at, now), comm->rank * n + at, now, REDUCE_SUM);
    }
    finish(comm, on, n > 0);
}

void local_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    LocalGroup *group = local_group(comm);
    int64_t n = tensor_count(part);
    publish(comm, (LocalCall){.name = "all-gather",
                              .count = tensor_count(whole),
                              .dtype = whole.dtype,
                              .root = -1,
                              .on = on,
                              .in = part});
    for (int i = 0; i < comm->size && n > 0; i++) {
        wait_before(comm, on, i);
        local_copy(on, comm_slice(whole, i * n, n), group->member[i].call.in);
    }
    finish(comm, on, n > 0);
}

void local_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    LocalGroup *group = local_group(comm);
    int64_t n = tensor_count(x);
    publish(
        comm,
        (LocalCall){
            .name = "broadcast", .count = n, .dtype = x.dtype, .root = root, .on = on, .in = x});
    if (comm->rank != root && n > 0) {
        wait_before(comm, on, root);
        local_copy(on, x, group->member[root].call.in);
    }
    /* Only the root may overwrite what the others read, so only the root has to wait. */
    finish(comm, on, comm->rank == root && n > 0);
}
