/* counted.c -- see counted.h. */
#include "parallel/comm/counted.h"

#include "model/core/check.h"

#include <stdio.h>
#include <string.h>

/* dst[i] = times * src[i], on the host. */
#define MULTIPLY(type)                                                                             \
    do {                                                                                           \
        for (int64_t i = 0; i < n; i++)                                                            \
            ((type *)dst.data)[i] = (type)times * ((const type *)src.data)[i];                     \
    } while (0)

static void multiply(Tensor dst, Tensor src, int times)
{
    int64_t n = tensor_count(dst);
    switch (dst.dtype) {
    case F64: MULTIPLY(double); break;
    case F32: MULTIPLY(float); break;
    case I64: MULTIPLY(int64_t); break;
    case I32: MULTIPLY(int32_t); break;
    default: CHECK(0, "a sum of %s on the host", dtype_name(dst.dtype));
    }
}

static void counted_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    if (on == NULL && op == REDUCE_SUM) multiply(x, x, comm->size);
}

static void counted_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    int64_t n = tensor_count(part);
    if (on) return;
    multiply(part, tensor_slice_rows(tensor_flat(whole), comm->rank * n, n), comm->size);
}

static void counted_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    size_t bytes = tensor_bytes(part);
    for (int r = 0; r < comm->size && on == NULL; r++)
        memmove((char *)whole.data + (size_t)r * bytes, part.data, bytes);
}

static void counted_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    (void)comm, (void)on, (void)x, (void)root;
}

static void counted_message(Comm *comm, Device *on, Tensor x, int peer)
{
    (void)on, (void)x;
    CHECK(peer != comm->rank, "a message of rank %d to itself", peer);
}

static void counted_nothing(Comm *comm)
{
    (void)comm;
}

static Comm counted_split(Comm *comm, const char *name, int color, int key)
{
    (void)key;
    CHECK(comm->size == 1, "group %s by color %d in a world that is only counted", name, color);
    return comm_self(name);
}

static Comm counted_group(const char *name, int rank, int size);

static Comm counted_line(Comm *comm, const char *name, CommLine line)
{
    /* As on other transports, a group of one rank needs no transport. */
    if (line.size == 1) return comm_self(name);
    return counted_group(name, (comm->rank - line.first) / line.stride, line.size);
}

static Comm counted_group(const char *name, int rank, int size)
{
    static const CommOps counted = {.name = "counted",
                                    .all_reduce = counted_all_reduce,
                                    .reduce_scatter = counted_reduce_scatter,
                                    .all_gather = counted_all_gather,
                                    .broadcast = counted_broadcast,
                                    .send = counted_message,
                                    .receive = counted_message,
                                    .group_begin = counted_nothing,
                                    .group_end = counted_nothing,
                                    .barrier = counted_nothing,
                                    .split = counted_split,
                                    .line = counted_line,
                                    .wait_without_limit = counted_nothing,
                                    .close = counted_nothing};
    Comm comm = {
        .rank = rank, .size = size, .ops = &counted, .counts = must_calloc(1, sizeof *comm.counts)};
    snprintf(comm.name, sizeof comm.name, "%s", name);
    return comm;
}

Comm comm_counted(int rank, int size)
{
    CHECK(size >= 1 && size <= COMM_MAX_RANKS && rank >= 0 && rank < size, "rank %d of %d", rank,
          size);
    return counted_group("world", rank, size);
}

bool comm_is_counted(const Comm *comm)
{
    return comm->ops && strcmp(comm->ops->name, "counted") == 0;
}
