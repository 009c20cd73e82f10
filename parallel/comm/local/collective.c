/* collective.c -- collectives of thread ranks: all publish their tensors and meet, each does
 * its part on its own stream, all meet again. */
#include "model/core/check.h"
#include "model/core/min_max.h"
#include "model/kernels/ops.h"
#include "parallel/comm/local/group.h"

/* Sums go block by block, so that what is written to the peers still lies in a core's cache. */
enum { BLOCK_BYTES = 64 << 10 };

_Static_assert((int)COMM_MAX_RANKS <= (int)SUM_SOURCES,
               "op_sum and op_maximum take all ranks' tensors");

/* Elements [first, first + n) of a dense tensor. */
static Tensor slice(Tensor t, int64_t first, int64_t n)
{
    return tensor_slice_rows(tensor_flat(t), first, n);
}

static void publish(Comm *comm, LocalCall call)
{
    local_begin(comm, call);
    local_record(comm, call.on, &local_member(comm)->before);
    local_meet(comm);
}

/* This member's stream begins no earlier than the peer's has got to where it called. */
static void wait_before(Comm *comm, Device *on, int peer)
{
    if (peer != comm->rank) local_wait(on, &local_group(comm)->member[peer].before);
}

/* This member's part is on its stream. Returns when every member's is; if it must `wait`, this
 * stream goes on after all parts are done. */
static void finish(Comm *comm, Device *on, bool wait)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    local_record(comm, on, &self->after);
    local_meet(comm); /* every event is recorded before somebody waits for it */
    for (int i = 0; i < comm->size && wait; i++)
        if (i != comm->rank) local_wait(on, &group->member[i].after);
    /* Whoever leaves the group destroys its events, and first waits for this. */
    pthread_mutex_lock(&group->mutex);
    self->finished++;
    pthread_mutex_unlock(&group->mutex);
}

/* dst = src[0] combined with the others in order, on the host; dst may be a source. */
#define COMBINE(type)                                                                              \
    do {                                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                          \
            type x = ((const type *)src[0].data)[i];                                               \
            for (int r = 1; r < ranks; r++) {                                                      \
                type y = ((const type *)src[r].data)[i];                                           \
                x = op == REDUCE_SUM ? x + y : y > x || y != y ? y : x;                            \
            }                                                                                      \
            ((type *)dst.data)[i] = x;                                                             \
        }                                                                                          \
    } while (0)

static void combine(Tensor dst, const Tensor *src, int ranks, ReduceOp op)
{
    int64_t n = tensor_count(dst);
    switch (dst.dtype) {
    case F64: COMBINE(double); break;
    case F32: COMBINE(float); break;
    case I64: COMBINE(int64_t); break;
    case I32: COMBINE(int32_t); break;
    default: CHECK(0, "a reduction of %s on the host", dtype_name(dst.dtype));
    }
}

/* dst = elements [first, first + n) of all members' `in`, reduced in rank order. */
static void reduce(Comm *comm, Device *on, Tensor dst, int64_t first, int64_t n, ReduceOp op)
{
    LocalGroup *group = local_group(comm);
    Tensor src[COMM_MAX_RANKS];
    for (int i = 0; i < comm->size; i++)
        src[i] = slice(group->member[i].call.in, first, n);
    if (on && op == REDUCE_SUM)
        op_sum(on, dst, src, comm->size);
    else if (on)
        op_maximum(on, dst, src, comm->size);
    else
        combine(dst, src, comm->size, op);
}

/* Elements to reduce at a time: few where the host computes, all on a device of its own memory. */
static int64_t block_of(const Device *on, DType dtype)
{
    bool host = on == NULL || on->backend->place == PLACE_HOST;
    return host ? (int64_t)(BLOCK_BYTES / dtype_size(dtype)) : INT64_MAX;
}

void local_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    LocalGroup *group = local_group(comm);
    /* Each member's slice, of whole cache lines. */
    int64_t n = tensor_count(x), line = 64;
    int64_t share = ((n + comm->size - 1) / comm->size + line - 1) / line * line;
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
    /* This member sums its slice of everybody's x, and writes it to all: each element is summed
     * once, by one rank, so all ranks have the same bits. */
    for (int64_t at = first, now; at < end; at += now) {
        now = min_i64(block_of(on, x.dtype), end - at);
        Tensor sum = slice(x, at, now);
        reduce(comm, on, sum, at, now, op);
        for (int i = 0; i < comm->size; i++)
            local_copy(on, slice(group->member[i].call.in, at, now), sum);
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
    /* Out of place op_sum writes past the caches; in place what it writes lies there already. */
    bool in_place = part.data == slice(whole, comm->rank * n, n).data;
    int64_t block = in_place ? block_of(on, part.dtype) : n;
    for (int64_t at = 0, now; at < n; at += now) {
        now = min_i64(block, n - at);
        reduce(comm, on, slice(part, at, now), comm->rank * n + at, now, REDUCE_SUM);
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
        local_copy(on, slice(whole, i * n, n), group->member[i].call.in);
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
    /* The root alone may write to what the others read. */
    finish(comm, on, comm->rank == root && n > 0);
}
