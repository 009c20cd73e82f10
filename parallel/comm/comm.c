/* comm.c -- the public functions of all communicators. They check what the transports rely on,
 * count every call, and pass the call to the transport: host calls to comm->host, if there is
 * one. */
#include "parallel/comm/comm.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <stdlib.h>
#include <string.h>

#define VERB_NAMES                                                                                 \
    [COMM_ALL_REDUCE] = "all-reduce", [COMM_REDUCE_SCATTER] = "reduce-scatter",                    \
    [COMM_ALL_GATHER] = "all-gather", [COMM_BROADCAST] = "broadcast", [COMM_SEND] = "send",        \
    [COMM_RECEIVE] = "receive"

const char *const comm_verb_name[COMM_VERBS] = {VERB_NAMES};
const char *const comm_call_name[COMM_CALLS] = {
    VERB_NAMES, [COMM_BARRIER] = "barrier", [COMM_SPLIT] = "split"};

static void count(Comm *comm, CommVerb verb, Tensor x)
{
    CommCount *c = &comm->counts->of[verb][x.dtype];
    /* Transports move bytes, so gaps between rows would be sent as data. */
    CHECK(tensor_is_dense(x), "%s of a strided tensor of %lld columns", comm_verb_name[verb],
          (long long)tensor_cols(x));
    c->calls++;
    c->elements += tensor_count(x);
    c->bytes += (int64_t)tensor_bytes(x);
}

/* Returns the communicator that carries the call: comm->host for host calls, if there is one. */
static Comm *carrier(Comm *comm, const Device *on)
{
    return on == NULL && comm->host ? comm->host : comm;
}

/* Returns the members' ranks in the world. If comm_line has made the group, they are stored in it.
 * Otherwise returns ranks 0 to size - 1, which is right for the world's own group, but not in
 * general for the groups of comm_split. */
static CommLine line_of(const Comm *comm)
{
    return comm->line.size > 0 ? comm->line : (CommLine){0, 1, comm->size};
}

/* Describes the group for the recorder of the device that carries a call. */
static GraphGroup recorded_group(const Comm *comm)
{
    CommLine line = line_of(comm);
    GraphGroup group = {
        .size = comm->size, .rank = comm->rank, .first = line.first, .stride = line.stride};
    memcpy(group.name, comm->name, sizeof group.name);
    return group;
}

/* State at the start of a call: the time, how long this communicator has waited so far, the
 * recorder from which the transport's work is hidden (or NULL), and the number of the call's entry
 * in the flight recorder (or 0). */
typedef struct {
    double start, waited;
    Recorder *hidden;
    int64_t noted;
} Clock;

static Clock clock_start(const Comm *comm, Recorder *hidden)
{
    recorder_hide(hidden);
    if (comm->size > 1) flight_hide(comm->flight);
    return (Clock){.start = seconds_now(), .waited = comm->waited, .hidden = hidden};
}

/* Called when the transport's work is done, so that the recorders see later work again. */
static void clock_stop(const Comm *comm, Clock begun)
{
    recorder_show(begun.hidden);
    if (comm->size > 1) flight_show(comm->flight);
}

/* Notes a collective of `comm` in its flight recorder; x is NO_TENSOR if it moves no tensor.
 * Returns the entry's number, or 0. Groups of one rank wait for nobody, so their calls are not
 * noted. */
static int64_t note_collective(Comm *comm, const Device *on, int code, Tensor x, int root)
{
    if (comm->size == 1) return 0;
    FlightEntry entry = {.kind = FLIGHT_COLLECTIVE,
                         .code = (uint8_t)code,
                         .dtype = x.data ? (uint8_t)x.dtype : FLIGHT_NO_DTYPE,
                         .elements = x.data ? tensor_count(x) : 0,
                         .group = (int8_t)comm->flight_group,
                         .peer = root,
                         .call = ++comm->collectives};
    return flight_begin(comm->flight, on, &entry);
}

static int64_t note_message(Comm *comm, const Device *on, bool send, int peer, Tensor x)
{
    if (comm->flight == NULL || comm->size == 1) return 0;
    FlightEntry entry = {.kind = FLIGHT_EXCHANGE,
                         .code = send ? COMM_SEND : COMM_RECEIVE,
                         .dtype = (uint8_t)x.dtype,
                         .elements = tensor_count(x),
                         .group = (int8_t)comm->flight_group,
                         .peer = peer,
                         .call = flight_message(comm->flight, comm->flight_group, peer, send)};
    return flight_begin(comm->flight, on, &entry);
}

/* Returns where to record a call as exposed communication; NULL: nowhere. A call on a device's own
 * compute stream is exposed for its whole duration. (Groups of calls are not covered: no caller
 * puts them on a compute stream.) */
static Exposed *exposed_of(const Comm *comm, const Device *on)
{
    return on == NULL || on->view ? NULL : comm->exposed;
}

/* Returns the recorder that must record a call; NULL: none. A group of one rank sends nothing; if
 * the device copies, this is recorded as a copy. */
static Recorder *recorder_of(const Comm *comm, const Device *on)
{
    return on && comm->size > 1 ? on->recorder : NULL;
}

static Clock call_begins(const Comm *comm, const Device *on)
{
    exposed_begin(exposed_of(comm, on));
    return clock_start(comm, recorder_of(comm, on));
}

/* Begins a collective; x is the whole tensor. */
static Clock collective_begins(Comm *comm, Device *on, CommVerb verb, Tensor x, int root)
{
    int64_t noted = note_collective(comm, on, (int)verb, x, root);
    if (recorder_of(comm, on)) {
        GraphGroup group = recorded_group(comm);
        recorder_collective(&comm->recorded, on, &group, (int)verb, x);
    }
    Clock begun = call_begins(comm, on);
    begun.noted = noted;
    return begun;
}

static Clock message_begins(Comm *comm, Device *on, bool send, int peer, Tensor x)
{
    int64_t noted = note_message(comm, on, send, peer, x);
    if (recorder_of(comm, on)) {
        GraphGroup group = recorded_group(comm);
        recorder_message(&comm->recorded, on, &group, send, peer, x);
    }
    Clock begun = call_begins(comm, on);
    /* In a group of calls, group_end carries out the message. So the message's entry in the flight
     * recorder ends there, not at the end of this call. */
    if (comm->recorded.open && comm->first_message == 0) comm->first_message = noted;
    if (!comm->recorded.open) begun.noted = noted;
    return begun;
}

/* Adds the time since the call began to the counts. */
static void count_seconds(Comm *comm, Clock begun)
{
    comm->counts->seconds += seconds_now() - begun.start;
    comm->counts->waited += comm->waited - begun.waited;
}

static void call_ends(Comm *comm, const Device *on, Clock begun)
{
    clock_stop(comm, begun);
    flight_end(comm->flight, begun.noted);
    if (on == NULL) return; /* host calls between steps are not part of a step's communication */
    exposed_end(exposed_of(comm, on));
    count_seconds(comm, begun);
    comm->carried = true;
}

static void check_rank(const Comm *comm, int rank)
{
    CHECK(rank >= 0 && rank < comm->size, "rank %d of a group of %d", rank, comm->size);
}

/* Checks that `part` is either this rank's own part of `whole` or separate memory. If it overlapped
 * another part, peers would read what this rank writes. */
static void check_part(const Comm *comm, Tensor part, Tensor whole)
{
    CHECK(tensor_is_dense(part) && part.dtype == whole.dtype &&
              tensor_count(part) * comm->size == tensor_count(whole),
          "a part of %lld elements of %lld over %d ranks", (long long)tensor_count(part),
          (long long)tensor_count(whole), comm->size);
    /* Subtract addresses as numbers, because the two may be in different allocations. */
    int64_t at = (intptr_t)part.data - (intptr_t)whole.data, bytes = (int64_t)tensor_bytes(part);
    CHECK(at <= -bytes || at >= comm->size * bytes || at == comm->rank * bytes,
          "the part of rank %d of %d lies %lld bytes behind the whole", comm->rank, comm->size,
          (long long)at);
}

void comm_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    count(comm, COMM_ALL_REDUCE, x);
    Clock begun = collective_begins(comm, on, COMM_ALL_REDUCE, x, -1);
    Comm *by = carrier(comm, on);
    by->ops->all_reduce(by, on, x, op);
    call_ends(comm, on, begun);
}

void comm_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    count(comm, COMM_REDUCE_SCATTER, whole); /* what the rank contributes, not what it receives */
    check_part(comm, part, whole);
    Clock begun = collective_begins(comm, on, COMM_REDUCE_SCATTER, whole, -1);
    Comm *by = carrier(comm, on);
    by->ops->reduce_scatter(by, on, part, whole);
    call_ends(comm, on, begun);
}

void comm_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    count(comm, COMM_ALL_GATHER, whole);
    check_part(comm, part, whole);
    Clock begun = collective_begins(comm, on, COMM_ALL_GATHER, whole, -1);
    Comm *by = carrier(comm, on);
    by->ops->all_gather(by, on, whole, part);
    call_ends(comm, on, begun);
}

void comm_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    count(comm, COMM_BROADCAST, x);
    check_rank(comm, root);
    Clock begun = collective_begins(comm, on, COMM_BROADCAST, x, root);
    Comm *by = carrier(comm, on);
    by->ops->broadcast(by, on, x, root);
    call_ends(comm, on, begun);
}

void comm_send(Comm *comm, Device *on, Tensor x, int to)
{
    count(comm, COMM_SEND, x);
    check_rank(comm, to);
    Clock begun = message_begins(comm, on, true, to, x);
    Comm *by = carrier(comm, on);
    by->ops->send(by, on, x, to);
    call_ends(comm, on, begun);
}

void comm_receive(Comm *comm, Device *on, Tensor x, int from)
{
    count(comm, COMM_RECEIVE, x);
    check_rank(comm, from);
    Clock begun = message_begins(comm, on, false, from, x);
    Comm *by = carrier(comm, on);
    by->ops->receive(by, on, x, from);
    call_ends(comm, on, begun);
}

void comm_group_begin(Comm *comm)
{
    /* It is not known yet whether device or host calls follow, so both transports begin a group. */
    comm->ops->group_begin(comm);
    if (comm->host) comm->host->ops->group_begin(comm->host);
    recorder_group_begin(&comm->recorded);
    comm->first_message = 0;
    comm->carried = false;
}

void comm_group_end(Comm *comm)
{
    /* The messages are carried out here, so only group_end is timed. */
    recorder_group_end(&comm->recorded);
    Clock begun = clock_start(comm, comm->recorded.recorder);
    comm->ops->group_end(comm);
    if (comm->host) comm->host->ops->group_end(comm->host);
    clock_stop(comm, begun);
    flight_end_from(comm->flight, comm->first_message, FLIGHT_EXCHANGE);
    if (comm->carried) count_seconds(comm, begun);
}

void comm_barrier(Comm *comm)
{
    Comm *by = carrier(comm, NULL);
    int64_t noted = note_collective(comm, NULL, COMM_BARRIER, NO_TENSOR, -1);
    by->ops->barrier(by);
    flight_end(comm->flight, noted);
}

/* Adds the group to the flight recorder. If !line, comm_split has made the group. Its ranks need
 * not be evenly spaced, so they are not stored. */
static void join_flight(Comm *comm, Flight *flight, bool line)
{
    GraphGroup group = recorded_group(comm);
    if (!line) group.first = -1, group.stride = 0;
    comm->flight = flight;
    comm->flight_group = comm->size > 1 ? flight_group(flight, &group) : -1;
}

void comm_flight(Comm *comm, Flight *flight)
{
    join_flight(comm, flight, true);
}

Comm comm_split(Comm *comm, const char *name, int color, int key)
{
    Comm *by = carrier(comm, NULL);
    int64_t noted = note_collective(comm, NULL, COMM_SPLIT, NO_TENSOR, -1);
    Comm group = by->ops->split(by, name, color, key);
    flight_end(comm->flight, noted);
    join_flight(&group, comm->flight, false);
    return group;
}

Comm comm_line(Comm *comm, const char *name, CommLine line)
{
    Comm *by = carrier(comm, NULL);
    CommLine all = line_of(comm);
    int from = comm->rank - line.first, at = line.stride > 0 ? from / line.stride : -1;
    int64_t last = line.first + (line.size - 1) * (int64_t)line.stride;
    CHECK(line.first >= 0 && at >= 0 && at < line.size && from == at * line.stride &&
              last < comm->size,
          "rank %d of %d in group %s of %d ranks %d + i %d", comm->rank, comm->size, name,
          line.size, line.first, line.stride);
    int64_t noted = note_collective(comm, NULL, COMM_SPLIT, NO_TENSOR, -1);
    /* Disjoint lines begin at different ranks, so `first` serves as the color. */
    Comm group =
        by->ops->line ? by->ops->line(by, name, line) : by->ops->split(by, name, line.first, at);
    CHECK(group.rank == at && group.size == line.size, "group %s: rank %d of %d, not %d of %d",
          name, group.rank, group.size, at, line.size);
    flight_end(comm->flight, noted);
    group.line =
        (CommLine){all.first + line.first * all.stride, line.stride * all.stride, line.size};
    join_flight(&group, comm->flight, true);
    return group;
}

void comm_wait_without_limit(Comm *comm)
{
    Comm *by = carrier(comm, NULL);
    by->ops->wait_without_limit(by);
}

void comm_carry(Comm *comm, const CommOps *ops, void *impl)
{
    CHECK(comm->host == NULL, "group %s is carried by %s already", comm->name, comm->ops->name);
    Comm *host = must_alloc(sizeof *host);
    *host = *comm; /* both communicators share the counts, which are freed once */
    comm->host = host;
    comm->ops = ops;
    comm->impl = impl;
}

const CommCounts *comm_counts(const Comm *comm)
{
    return comm->counts;
}

void comm_close(Comm *comm)
{
    /* Close the transport of host calls last: closing the other transport may need a call in which
     * the hosts wait for each other. */
    comm->ops->close(comm);
    if (comm->host) comm->host->ops->close(comm->host);
    free(comm->host);
    free(comm->counts);
    comm->host = NULL;
    comm->counts = NULL;
}
