/* test_nccl_agree.c -- violations of what ranks must agree on before any data is transferred: the
 * same calls, in the same order, of the same shape, and one order of launches on all devices. The
 * emulated NCCL must refuse each of them. Each function breaks its rule if rank->planted, else it
 * follows the rule. */
#include "tests/emu/nccl/nccl_ranks.h"

enum { N = 8 };

static void all_reduce(Rank *r, ncclComm_t comm, size_t count, cudaStream_t stream)
{
    OK(r->nccl->AllReduce(r->x, r->y, count, ncclFloat32, ncclSum, comm, stream));
}

static void open_warm(Rank *r)
{
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    rank_warm(r, r->other, r->side);
}

/* ---- rule (i): the same operation on all ranks ----------------------------------------------- */

static void other_operation(Rank *r)
{
    open_warm(r);
    if (r->planted && r->rank == 1)
        OK(r->nccl->ReduceScatter(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
    else
        all_reduce(r, r->comm, N, r->stream);
    rank_close(r);
}

static void other_count(Rank *r)
{
    open_warm(r);
    all_reduce(r, r->comm, r->planted && r->rank == 1 ? N - 1 : N, r->stream);
    rank_close(r);
}

static void other_type(Rank *r)
{
    open_warm(r);
    ncclDataType_t type = r->planted && r->rank == 1 ? ncclInt32 : ncclFloat32;
    OK(r->nccl->AllReduce(r->x, r->y, N, type, ncclMax, r->comm, r->stream));
    rank_close(r);
}

static void other_reduction(Rank *r)
{
    open_warm(r);
    ncclRedOp_t reduction = r->planted && r->rank == 1 ? ncclMax : ncclSum;
    OK(r->nccl->ReduceScatter(r->x, r->y, N, ncclFloat32, reduction, r->comm, r->stream));
    rank_close(r);
}

static void other_root(Rank *r)
{
    open_warm(r);
    int root = r->planted && r->rank == 1 ? 1 : 0;
    OK(r->nccl->Broadcast(r->x, r->y, N, ncclFloat32, root, r->comm, r->stream));
    rank_close(r);
}

/* One group of two calls on one rank, two single calls on the other. */
static void other_group(Rank *r)
{
    bool grouped = !(r->planted && r->rank == 1);
    open_warm(r);
    if (grouped) OK(r->nccl->GroupStart());
    all_reduce(r, r->comm, N, r->stream);
    OK(r->nccl->AllGather(r->x, r->y + N, N, ncclFloat32, r->comm, r->stream));
    if (grouped) OK(r->nccl->GroupEnd());
    rank_close(r);
}

static void other_order(Rank *r)
{
    open_warm(r);
    for (int i = 0; i < 2; i++)
        if ((i == 0) == (r->planted && r->rank == 1))
            OK(r->nccl->AllGather(r->x, r->y + N, N, ncclFloat32, r->comm, r->stream));
        else
            all_reduce(r, r->comm, N, r->stream);
    rank_close(r);
}

/* A call without elements does not count as a call. If only one rank's call has none, all its later
 * calls are shifted. */
static void nothing_on_one_rank(Rank *r)
{
    open_warm(r);
    all_reduce(r, r->comm, r->planted && r->rank == 0 ? 0 : N, r->stream);
    OK(r->nccl->AllGather(r->x, r->y + N, N, ncclFloat32, r->comm, r->stream));
    rank_close(r);
}

static void message_for_collective(Rank *r)
{
    open_warm(r);
    if (r->planted && r->rank == 1)
        OK(r->nccl->Send(r->x, N, ncclFloat32, 0, r->comm, r->stream));
    else
        all_reduce(r, r->comm, N, r->stream);
    rank_close(r);
}

/* ---- rule (ii): messages match in order and are never buffered ------------------------------- */

static void message(Rank *r, bool send, int offset, size_t count)
{
    if (send)
        OK(r->nccl->Send(r->x + offset, count, ncclFloat32, 1 - r->rank, r->comm, r->stream));
    else
        OK(r->nccl->Recv(r->y + offset, count, ncclFloat32, 1 - r->rank, r->comm, r->stream));
}

/* The receiver takes two messages in the wrong order. */
static void messages_swapped(Rank *r)
{
    bool swapped = r->planted && r->rank == 1;
    open_warm(r);
    OK(r->nccl->GroupStart());
    message(r, r->rank == 0, 0, swapped ? N : N + 1);
    message(r, r->rank == 0, 2 * N, swapped ? N + 1 : N);
    OK(r->nccl->GroupEnd());
    rank_close(r);
}

static void message_type(Rank *r)
{
    open_warm(r);
    if (r->rank == 0)
        message(r, true, 0, N);
    else
        OK(r->nccl->Recv(r->y, N, r->planted ? ncclInt32 : ncclFloat32, 0, r->comm, r->stream));
    rank_close(r);
}

/* Both ranks send and then receive. In a group that is allowed. Without a group, each send waits
 * forever for the other rank's receive. */
static void messages_crossed(Rank *r)
{
    open_warm(r);
    if (!r->planted) OK(r->nccl->GroupStart());
    message(r, true, 0, N);
    message(r, false, 0, N);
    if (!r->planted) OK(r->nccl->GroupEnd());
    rank_close(r);
}

static void message_swallowed(Rank *r)
{
    open_warm(r);
    OK(r->nccl->GroupStart());
    for (int i = 0; i < 2; i++)
        if (!(r->planted && r->rank == 1 && i == 1)) message(r, r->rank == 0, i * N, N);
    OK(r->nccl->GroupEnd());
    all_reduce(r, r->comm, N, r->stream);
    rank_close(r);
}

/* ---- rule (iv): the first use ---------------------------------------------------------------- */

/* Both hosts would wait in their calls forever. */
static void first_use_of_another(Rank *r)
{
    rank_open(r);
    if (r->planted && r->rank == 1)
        OK(r->nccl->AllGather(r->x, r->y, N, ncclFloat32, r->comm, r->stream));
    else
        all_reduce(r, r->comm, N, r->stream);
    rank_close(r);
}

/* ---- rule (iii): one order of launches ------------------------------------------------------- */

/* The two ranks use two communicators in different orders, on separate streams. On these streams
 * the calls would complete, but they are still refused. */
static void two_orders(Rank *r)
{
    open_warm(r);
    for (int i = 0; i < 2; i++)
        if ((i == 0) == (r->planted && r->rank == 1))
            OK(r->nccl->AllReduce(r->x, r->y + N, N, ncclFloat32, ncclSum, r->other, r->side));
        else
            all_reduce(r, r->comm, N, r->stream);
    rank_close(r);
}

/* A group is a single launch. On another rank, a call between the group's two parts waits for
 * both. */
static void order_inside_a_group(Rank *r)
{
    bool apart = r->planted && r->rank == 1;
    open_warm(r);
    rank_ids(r, 1);
    ncclComm_t third = rank_join(r, 0, r->ranks, r->rank);
    all_reduce(r, third, N, r->stream);
    rank_wait(r);
    if (!apart) OK(r->nccl->GroupStart());
    all_reduce(r, r->comm, N, r->stream);
    if (apart) all_reduce(r, third, N, r->stream);
    OK(r->nccl->AllReduce(r->x, r->y + N, N, ncclFloat32, ncclSum, r->other, r->side));
    if (!apart) {
        OK(r->nccl->GroupEnd());
        all_reduce(r, third, N, r->stream);
    }
    rank_wait(r);
    OK(r->nccl->CommDestroy(third));
    rank_close(r);
}

/* Each of three devices is in two of three pairs. Any two devices agree on an order, but all three
 * do not. */
static void order_of_three(Rank *r)
{
    enum { PAIRS = 3 };
    ncclComm_t pair[PAIRS] = {NULL}; /* pair[i] is the communicator of ranks i and i + 1 */
    int before = (r->rank + 2) % PAIRS;
    rank_open(r);
    rank_ids(r, PAIRS);
    for (int i = 0; i < PAIRS; i++)
        if (i == r->rank || i == before) pair[i] = rank_join(r, i, 2, i == before);
    for (int i = 0; i < PAIRS; i++)
        if (pair[i]) all_reduce(r, pair[i], N, i == before ? r->side : r->stream);
    rank_wait(r);
    if (r->planted) {
        all_reduce(r, pair[r->rank], N, r->stream);
        all_reduce(r, pair[before], N, r->side);
    } else
        for (int i = 0; i < PAIRS; i++)
            if (pair[i]) all_reduce(r, pair[i], N, r->stream);
    rank_wait(r);
    for (int i = 0; i < PAIRS; i++)
        if (pair[i]) OK(r->nccl->CommDestroy(pair[i]));
    rank_close(r);
}

/* Nothing orders the calls on two streams. */
static void no_order(Rank *r)
{
    rank_open(r);
    all_reduce(r, r->comm, N, r->stream);
    OK(r->nccl->AllReduce(r->x, r->y + N, N, ncclFloat32, ncclSum, r->other,
                          r->planted ? r->side : r->stream));
    rank_close(r);
}

static const Violation violations[] = {
    {"i", "another operation", other_operation, 2, "ncclReduceScatter", {0}},
    {"i", "another count", other_count, 2, "7 float32", {0}},
    {"i", "another type", other_type, 2, "int32", {0}},
    {"i", "another reduction", other_reduction, 2, "max", {0}},
    {"i", "another root", other_root, 2, "root", {0}},
    {"i", "a group on one rank alone", other_group, 2, "group", {0}},
    {"i", "two calls the other way round", other_order, 2, "ncclAllGather", {0}},
    {"i", "no elements on one rank alone", nothing_on_one_rank, 2, "ncclAllGather", {0}},
    {"i", "a message for a collective", message_for_collective, 2, "ncclSend", {0}},
    {"ii", "two messages taken in the other order", messages_swapped, 2, "8 float32", {0}},
    {"ii", "a message of another type", message_type, 2, "int32", {0}},
    {"ii",
     "both send first, then receive",
     messages_crossed,
     2,
     "waiting for each other",
     {"EMU_STREAMS=deferred"}},
    {"ii", "a message that nobody takes", message_swallowed, 2, "ncclSend", {0}},
    {"iii",
     "two communicators in two orders",
     two_orders,
     2,
     "waiting for each other",
     {"EMU_STREAMS=deferred"}},
    {"iii",
     "a launch between two that are one elsewhere",
     order_inside_a_group,
     2,
     "waiting for each other",
     {"EMU_STREAMS=deferred"}},
    {"iii",
     "three devices whose orders close a circle",
     order_of_three,
     3,
     "waiting for each other",
     {"EMU_STREAMS=deferred"}},
    {"iii",
     "two streams and no order",
     no_order,
     2,
     "NCCL_LAUNCH_ORDER_IMPLICIT=1",
     {"NCCL_LAUNCH_ORDER_IMPLICIT="}},
    {"iv", "first uses of two operations", first_use_of_another, 2, "for the first time", {0}},
};

int main(void)
{
    return violations_main("ranks that agree, over NCCL", violations,
                           sizeof violations / sizeof *violations);
}
