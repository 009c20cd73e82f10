/* collective.cc -- collectives: all ranks compare their calls, then the data is passed around a
 * ring. */
#include "tests/emu/nccl/inside.h"

#include <stdlib.h>
#include <string.h>

Header call_header(const Call *call)
{
    Header header;
    memset(&header, 0, sizeof header);
    header.frame = call->verb == SEND      ? FRAME_SEND
                   : call->verb == RECEIVE ? FRAME_RECEIVE
                                           : FRAME_COLLECTIVE;
    header.verb = call->verb;
    header.number = call->number;
    header.count = call->count;
    header.type = call->type;
    header.reduction = call->reduction;
    header.root = call->verb == BROADCAST ? call->peer : -1;
    header.place = call->place;
    header.collectives = call->collectives;
    header.rank = call->comm->rank;
    return header;
}

void mismatch(const ncclComm *comm, const Header *mine, const Header *theirs)
{
    char name[160], here[200], there[200];
    call_describe(mine, here, sizeof here);
    call_describe(theirs, there, sizeof there);
    emu_die("%s: rank %d calls %s, but rank %d calls %s", comm_describe(comm, name, sizeof name),
            mine->rank, here, theirs->rank, there);
}

static bool equal(const Header *a, const Header *b)
{
    return a->frame == b->frame && a->verb == b->verb && a->number == b->number &&
           a->count == b->count && a->type == b->type && a->reduction == b->reduction &&
           a->root == b->root && a->place == b->place && a->collectives == b->collectives;
}

/* Returns whether the rank completes this collective without waiting for anybody. */
static bool leaves_early(const Call *call, int rank)
{
    return call->comm->early && call->verb == BROADCAST && rank == call->peer;
}

/* Exchanges headers with all ranks and ends the program if the calls differ. Nobody sends one to a
 * rank that leaves early, and it waits for none. */
static bool agree(Call *call)
{
    ncclComm *comm = call->comm;
    Header mine = call_header(call), theirs[comm->ranks];
    Piece piece[2 * comm->ranks];
    int n = 0;
    for (int r = 0; r < comm->ranks; r++) {
        const Link *link = &comm->link[r];
        if (r == comm->rank) continue;
        if (link->sends.n > 0) mismatch(comm, &mine, &link->sends.header[link->sends.first]);
        if (link->receives.n > 0)
            mismatch(comm, &mine, &link->receives.header[link->receives.first]);
        theirs[r] = mine;
        if (!leaves_early(call, r)) piece[n++] = {r, true, (char *)&mine, sizeof mine};
        if (!leaves_early(call, comm->rank))
            piece[n++] = {r, false, (char *)&theirs[r], sizeof mine};
    }
    if (!net_exchange(comm, piece, n)) return false;
    for (int r = 0; r < comm->ranks; r++)
        if (r != comm->rank && !equal(&mine, &theirs[r])) mismatch(comm, &mine, &theirs[r]);
    return true;
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* A part of a buffer. */
typedef struct {
    char *data;
    size_t count;
} Part;

/* Sends to the next rank in the ring and receives from the previous one, at the same time. */
static bool pass(Call *call, Part out, Part in)
{
    ncclComm *comm = call->comm;
    size_t size = type_size(call->type);
    int n = comm->ranks;
    Piece piece[2] = {{comm->ring[(comm->position + 1) % n], true, out.data, out.count * size},
                      {comm->ring[(comm->position + n - 1) % n], false, in.data, in.count * size}};
    return net_exchange(comm, piece, 2);
}

/* Returns the part that belongs to the ring's p-th position, for any p; if by_rank, the part of the
 * rank at that position. */
static Part part_at(const Call *call, char *buffer, size_t count, int p, bool by_rank)
{
    size_t ranks = (size_t)call->comm->ranks;
    size_t i = (size_t)((p % (int)ranks + (int)ranks) % (int)ranks);
    if (by_rank) i = (size_t)call->comm->ring[i];
    size_t from = i * count / ranks, to = (i + 1) * count / ranks;
    return {buffer + from * type_size(call->type), to - from};
}

/* Passes each part around the ring while every rank adds its own. At the end the rank at `position`
 * holds its complete part. */
static bool reduce_round(Call *call, char *buffer, size_t count, bool by_rank)
{
    int n = call->comm->ranks, p = call->comm->position;
    char *come = (char *)malloc((count / (size_t)n + 1) * type_size(call->type));
    bool well = true;
    if (come == NULL) emu_die("no memory for a part of a sum");
    for (int step = 1; step < n && well; step++) {
        Part in = part_at(call, buffer, count, p - 1 - step, by_rank);
        well = pass(call, part_at(call, buffer, count, p - step, by_rank), {come, in.count});
        if (well) reduce(in.data, come, in.count, call->type, call->reduction);
    }
    free(come);
    return well;
}

static bool gather_round(Call *call, char *buffer, size_t count, bool by_rank)
{
    int n = call->comm->ranks, p = call->comm->position;
    bool well = true;
    for (int step = 0; step + 1 < n && well; step++)
        well = pass(call, part_at(call, buffer, count, p - step, by_rank),
                    part_at(call, buffer, count, p - step - 1, by_rank));
    return well;
}

static bool all_reduce(Call *call)
{
    bool mean = call->reduction == ncclAvg;
    if (mean) average(call->input, call->count, call->type, call->comm->ranks, true);
    bool well = reduce_round(call, call->input, call->count, false) &&
                gather_round(call, call->input, call->count, false);
    if (mean) average(call->input, call->count, call->type, call->comm->ranks, false);
    memcpy(call->result, call->input, call->recv_bytes);
    return well;
}

static bool reduce_scatter(Call *call)
{
    size_t ranks = (size_t)call->comm->ranks, all = ranks * call->count;
    bool mean = call->reduction == ncclAvg;
    if (mean) average(call->input, all, call->type, (int)ranks, true);
    bool well = reduce_round(call, call->input, all, true);
    memcpy(call->result, call->input + (size_t)call->comm->rank * call->recv_bytes,
           call->recv_bytes);
    if (mean) average(call->result, call->count, call->type, (int)ranks, false);
    return well;
}

static bool all_gather(Call *call)
{
    size_t ranks = (size_t)call->comm->ranks;
    memcpy(call->result + (size_t)call->comm->rank * call->send_bytes, call->input,
           call->send_bytes);
    return gather_round(call, call->result, ranks * call->count, true);
}

/* Passes the data from the root along the ring, up to the rank before the root. */
static bool broadcast(Call *call)
{
    const ncclComm *comm = call->comm;
    int n = comm->ranks, next = comm->ring[(comm->position + 1) % n];
    Part all = {call->result, call->count}, nothing = {NULL, 0};
    bool well = true;
    if (comm->rank == call->peer)
        memcpy(call->result, call->input, call->send_bytes);
    else
        well = pass(call, nothing, all);
    if (well && next != call->peer) well = pass(call, all, nothing);
    return well;
}

bool collective_run(Call *call)
{
    if (!agree(call)) return false;
    call_read(call);
    switch (call->verb) {
    case ALL_REDUCE: return all_reduce(call);
    case REDUCE_SCATTER: return reduce_scatter(call);
    case ALL_GATHER: return all_gather(call);
    default: return broadcast(call);
    }
}
