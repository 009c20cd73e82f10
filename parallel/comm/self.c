/* self.c -- the transport of a group with a single rank: nothing is sent, at most memory is
 * copied. */
#include "model/core/check.h"
#include "parallel/comm/comm.h"

#include <stdio.h>
#include <string.h>

static void self_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    (void)comm, (void)on, (void)x, (void)op;
}

/* The only part is the whole tensor: copy it, unless both are the same memory. */
static void move(Device *on, Tensor dst, Tensor src)
{
    if (dst.data == src.data) return;
    if (on == NULL)
        memmove(dst.data, src.data, tensor_bytes(src));
    else
        device_copy(on, tensor_flat(dst), tensor_flat(src));
}

static void self_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    (void)comm;
    move(on, part, whole);
}

static void self_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    (void)comm;
    move(on, whole, part);
}

static void self_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    (void)comm, (void)on, (void)x, (void)root;
}

/* A rank cannot send a message to itself. A caller that tries has computed its peer wrongly. */
static void self_message(Comm *comm, Device *on, Tensor x, int peer)
{
    (void)on, (void)x;
    /* Always fails in a group of one rank. */
    CHECK(comm->size > 1, "a message to rank %d of a group of one", peer);
}

static void self_nothing(Comm *comm)
{
    (void)comm;
}

static Comm self_split(Comm *comm, const char *name, int color, int key)
{
    (void)comm, (void)color, (void)key;
    return comm_self(name);
}

Comm comm_self(const char *name)
{
    static const CommOps self = {.name = "self",
                                 .all_reduce = self_all_reduce,
                                 .reduce_scatter = self_reduce_scatter,
                                 .all_gather = self_all_gather,
                                 .broadcast = self_broadcast,
                                 .send = self_message,
                                 .receive = self_message,
                                 .group_begin = self_nothing,
                                 .group_end = self_nothing,
                                 .barrier = self_nothing,
                                 .split = self_split,
                                 .wait_without_limit = self_nothing,
                                 .close = self_nothing};
    Comm comm = {.size = 1, .ops = &self, .counts = must_calloc(1, sizeof *comm.counts)};
    snprintf(comm.name, sizeof comm.name, "%s", name);
    return comm;
}
