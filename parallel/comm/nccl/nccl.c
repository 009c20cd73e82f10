/* nccl.c -- implements the communicator's operations over NCCL, on the stream of the device that
 * carries them, and opens and closes NCCL communicators. The calls are watched in watchdog.c. */
#include "parallel/comm/nccl/nccl.h"

#include "model/core/log.h"
#include "model/core/pool.h"
#include "parallel/comm/nccl/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The private state of one Comm. */
typedef struct {
    const char *name; /* name of the Comm's group, for messages */
    NcclGroup *group;
    bool shared;       /* true: another Comm owns the group */
    CommCounts before; /* the Comm's counts when it was prepared; nccl_start restores them */
    bool noting;       /* true between group_begin and group_end */
    Device on;         /* device of the first call in the group; no backend: no call yet */
} Member;

static Member *member(const Comm *comm)
{
    return comm->impl;
}

/* ---- one call -------------------------------------------------------------------------------- */

static NcclType type_of(DType dtype)
{
    static const NcclType of[DTYPE_COUNT] = {
        [F64] = NCCL_FLOAT64, [F32] = NCCL_FLOAT32, [BF16] = NCCL_BFLOAT16, [F16] = NCCL_FLOAT16,
        [I32] = NCCL_INT32,   [I64] = NCCL_INT64,   [U16] = NCCL_FLOAT16,   [U8] = NCCL_UINT8};
    return of[dtype];
}

/* NCCL can move any 16-bit type, but can add only the types that it defines. */
static NcclType summed_type(DType dtype)
{
    CHECK(dtype != U16, "a reduction of %s over NCCL", dtype_name(dtype));
    return type_of(dtype);
}

static void require(NcclGroup *g, NcclResult result)
{
    if (result != NCCL_SUCCESS) nccl_end_failed(g, nccl_calls(g) - 1, result);
}

/* Records an event before a call. */
static void begins(NcclGroup *g, Device *on, NcclCall call)
{
    device_event_record(on, &g->mark[nccl_calls(g) % NCCL_RING].before);
    nccl_call_begins(g, call);
}

/* Records an event after a call has returned. */
static void ends(NcclGroup *g, Device *on)
{
    device_event_record(on, &g->mark[(nccl_calls(g) - 1) % NCCL_RING].after);
    nccl_call_ends(g);
}

/* The member whose group of calls is open in this thread, or NULL: NCCL's groups of calls belong to
 * a thread. */
static _Thread_local const Member *grouping;

/* Called before a device's NCCL call. The first call of a group also begins NCCL's group. */
static void begin(Member *m, Device *on, NcclCall call)
{
    NcclGroup *g = m->group;
    call.group = m->name;
    CHECK(grouping == NULL || grouping == m, "%s of %s inside a group of %s", call.name, call.group,
          grouping->name);
    if (!m->noting) {
        begins(g, on, call);
        return;
    }
    if (m->on.backend) {
        /* NCCL would accept several streams, but a group's two events are on one stream. */
        CHECK(m->on.compute.impl == on->compute.impl, "calls of one group on two streams, %s",
              call.name);
        nccl_call_grows(g);
        return;
    }
    m->on = *on;
    begins(g, on, call);
    grouping = m;
    require(g, nccl_library()->group_start());
}

/* Called after a device's NCCL call. Ends the program if the call has failed. */
static void end(Member *m, Device *on, NcclResult result)
{
    require(m->group, result);
    if (!m->noting) ends(m->group, on);
}

static NcclCall of_verb(CommVerb verb, Tensor x)
{
    return (NcclCall){
        .name = comm_verb_name[verb], .elements = tensor_count(x), .dtype = x.dtype, .peer = -1};
}

static NcclCall with_peer(const Member *m, CommVerb verb, Tensor x, int peer)
{
    NcclCall call = of_verb(verb, x);
    call.peer = m->group->world_rank[peer];
    return call;
}

/* ---- collectives and messages: calls without elements return early; NCCL would ignore them --- */

static void *stream_of(const Device *on)
{
    return on->compute.impl;
}

static void nccl_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    Member *m = member(comm);
    if (tensor_count(x) == 0) return;
    NcclCall call = of_verb(COMM_ALL_REDUCE, x);
    call.op = op;
    begin(m, on, call);
    end(m, on,
        nccl_library()->all_reduce(x.data, x.data, (size_t)tensor_count(x), summed_type(x.dtype),
                                   op == REDUCE_SUM ? NCCL_SUM : NCCL_MAX, m->group->handle,
                                   stream_of(on)));
}

static void nccl_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    Member *m = member(comm);
    if (tensor_count(part) == 0) return;
    begin(m, on, of_verb(COMM_REDUCE_SCATTER, whole));
    end(m, on,
        nccl_library()->reduce_scatter(whole.data, part.data, (size_t)tensor_count(part),
                                       summed_type(part.dtype), NCCL_SUM, m->group->handle,
                                       stream_of(on)));
}

static void nccl_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    Member *m = member(comm);
    if (tensor_count(part) == 0) return;
    begin(m, on, of_verb(COMM_ALL_GATHER, whole));
    end(m, on,
        nccl_library()->all_gather(part.data, whole.data, (size_t)tensor_count(part),
                                   type_of(part.dtype), m->group->handle, stream_of(on)));
}

static void nccl_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    Member *m = member(comm);
    if (tensor_count(x) == 0) return;
    begin(m, on, with_peer(m, COMM_BROADCAST, x, root));
    end(m, on,
        nccl_library()->broadcast(x.data, x.data, (size_t)tensor_count(x), type_of(x.dtype), root,
                                  m->group->handle, stream_of(on)));
}

static void nccl_send(Comm *comm, Device *on, Tensor x, int to)
{
    Member *m = member(comm);
    CHECK(to != comm->rank, "a message of rank %d to itself", to);
    if (tensor_count(x) == 0) return;
    begin(m, on, with_peer(m, COMM_SEND, x, to));
    end(m, on,
        nccl_library()->send(x.data, (size_t)tensor_count(x), type_of(x.dtype), to,
                             m->group->handle, stream_of(on)));
}

static void nccl_receive(Comm *comm, Device *on, Tensor x, int from)
{
    Member *m = member(comm);
    CHECK(from != comm->rank, "a message of rank %d to itself", from);
    if (tensor_count(x) == 0) return;
    begin(m, on, with_peer(m, COMM_RECEIVE, x, from));
    end(m, on,
        nccl_library()->receive(x.data, (size_t)tensor_count(x), type_of(x.dtype), from,
                                m->group->handle, stream_of(on)));
}

static void nccl_group_begin(Comm *comm)
{
    Member *m = member(comm);
    CHECK(!m->noting, "group_begin inside a group of %s", comm->name);
    m->noting = true;
    m->on = (Device){0};
}

static void nccl_group_end(Comm *comm)
{
    Member *m = member(comm);
    CHECK(m->noting, "group_end without group_begin, of %s", comm->name);
    m->noting = false;
    /* If no device call was made in the group, all its calls were host calls, and NCCL's group was
     * never started. */
    if (m->on.backend) {
        grouping = NULL;
        require(m->group, nccl_library()->group_end());
        ends(m->group, &m->on);
    }
}

/* ---- opening and closing a communicator ------------------------------------------------------ */

/* Registers a call that blocks the host until the peers arrive, and that no stream carries. */
static void host_call(NcclGroup *g, const char *name)
{
    nccl_call_begins(g, (NcclCall){.name = name, .group = g->name, .elements = -1, .peer = -1});
}

static void set_handle(NcclGroup *g, NcclHandle *handle)
{
    pthread_mutex_lock(&g->mutex);
    g->handle = handle;
    pthread_mutex_unlock(&g->mutex);
}

/* In groups of up to GATHERED members, each tells all others its world rank. In larger groups this
 * is avoided if possible (rank_runs_gather). */
enum { GATHERED = 64 };

/* Allocates the group's events and memory, so that nothing is allocated after the first
 * communicator has been created. */
static NcclGroup *group_create(Comm *comm, Device *dev, NcclUse use, double timeout)
{
    NcclGroup *g = must_calloc(1, sizeof *g);
    CHECK(comm->size <= COMM_MAX_RANKS, "%d ranks", comm->size);
    *g = (NcclGroup){.rank = comm->rank,
                     .size = comm->size,
                     .timeout = timeout,
                     .use = use,
                     .log = log_file(),
                     .device = dev,
                     .view = device_on(dev, dev->compute)};
    memcpy(g->name, comm->name, sizeof g->name);
    snprintf(g->place, sizeof g->place, "%s", log_place());
    pthread_mutex_init(&g->mutex, NULL);
    g->world_rank = must_calloc((size_t)g->size, sizeof *g->world_rank);
    rank_runs_gather(comm, log_rank(), GATHERED, g->world_rank);
    /* An event is created by its first record. Record all now, so that no training step creates
     * one. */
    for (int i = 0; i < NCCL_RING; i++) {
        device_event_record(dev, &g->mark[i].before);
        device_event_record(dev, &g->mark[i].after);
    }
    memcpy(g->asked, g->mark, sizeof g->asked);
    g->memory_bytes = (size_t)(g->size + 2) * sizeof *g->memory;
    g->memory = device_alloc(dev, g->memory_bytes, "the first uses of NCCL");
    return g;
}

/* Connects the group. Rank 0 creates NCCL's id, and the host's communicator broadcasts it. */
static void group_open(NcclGroup *g, Comm *host)
{
    const NcclLibrary *nccl = nccl_library();
    NcclHandle *handle = NULL;
    NcclConfig config = NCCL_CONFIG_NONE;
    config.blocking = 1; /* in non-blocking mode the event after a call would be recorded too
                          * early */
    config.comm_name = g->name;
    if (g->use.max_ctas > 0) config.max_ctas = g->use.max_ctas;
    host_call(g, "connect");
    if (g->rank == 0) require(g, nccl->get_unique_id(&g->id));
    host->ops->broadcast(host, NULL, tensor_1d(&g->id, U8, sizeof g->id), 0);
    nccl_watch(g); /* start watching now, because connecting may also block forever */
    device_enter(g->device);
    require(g, nccl->comm_init(&handle, g->size, g->id, g->rank, &config));
    set_handle(g, handle);
    nccl_call_ends(g);
}

/* Disconnects and frees the group. NCCL requires that no call is in progress: the caller has
 * synchronized the device, or has freed device memory, which also synchronizes. */
static void group_close(NcclGroup *g)
{
    NcclHandle *handle = g->handle;
    if (handle) {
        host_call(g, "disconnect");
        set_handle(g,
                   NULL); /* the watchdog must not query a communicator that is being destroyed */
        require(g, nccl_library()->comm_destroy(handle));
        nccl_call_ends(g);
        nccl_unwatch(g);
    }
    device_release(g->device, g->memory, g->memory_bytes);
    for (int i = 0; i < NCCL_RING; i++) {
        device_event_destroy(g->device, &g->mark[i].before);
        device_event_destroy(g->device, &g->mark[i].after);
    }
    pthread_mutex_destroy(&g->mutex);
    free(g->world_rank);
    free(g);
}

void nccl_close(Comm *comm)
{
    Member *m = member(comm);
    CHECK(!m->noting, "the end of %s inside a group", comm->name);
    if (!m->shared) group_close(m->group);
    free(m);
    comm->impl = NULL;
}

/* From now on the Comm's device calls go through the group. It is not connected yet, so they move
 * no data until nccl_start. */
static void take_over(Comm *comm, NcclGroup *group, bool shared)
{
    Member *m = must_calloc(1, sizeof *m);
    *m = (Member){.group = group, .shared = shared, .before = *comm->counts};
    comm_carry(comm, &nccl_rest, m);
    m->name = comm->host->name; /* this copy of the name keeps its address when the caller moves the
                                 * Comm */
}

/* Returns whether nccl_prepare or nccl_share has left the Comm unchanged, because its group has one
 * rank and needs no NCCL. */
static bool is_unchanged(const Comm *comm)
{
    return comm->size == 1 && comm->host == NULL;
}

void nccl_use_first(Comm *comm)
{
    if (is_unchanged(comm) || member(comm)->shared) return;
    sigset_t usual;
    NcclGroup *g = member(comm)->group;
    Device *dev = g->device;
    NcclMessages messages = g->use.messages;
    int n = comm->size, next = (comm->rank + 1) % n, before = (comm->rank + n - 1) % n;
    bool ring = messages == NCCL_IN_RING, has_next = ring || comm->rank < n - 1,
         has_before = ring || comm->rank > 0;
    Tensor whole = tensor_1d(g->memory, F32, n), part = tensor_slice_rows(whole, comm->rank, 1),
           out = tensor_1d(g->memory + n, F32, 1), in = tensor_1d(g->memory + n + 1, F32, 1);
    signals_hold(&usual); /* NCCL starts threads */
    nccl_all_reduce(comm, dev, whole, REDUCE_SUM);
    nccl_all_reduce(comm, dev, whole, REDUCE_MAX);
    nccl_reduce_scatter(comm, dev, part, whole);
    nccl_all_gather(comm, dev, whole, part);
    nccl_broadcast(comm, dev, whole, 0);
    /* Send both ways between neighbours: a pipeline's gradients go back from the last stage. */
    for (int way = 0; way < 2 && messages != NCCL_NO_MESSAGES; way++) {
        nccl_group_begin(comm);
        if (way ? has_before : has_next) nccl_send(comm, dev, out, way ? before : next);
        if (way ? has_next : has_before) nccl_receive(comm, dev, in, way ? next : before);
        nccl_group_end(comm);
    }
    device_synchronize(dev);
    signals_release(&usual);
}

void nccl_prepare(Comm *comm, Device *dev, NcclUse use, double timeout)
{
    if (comm->size > 1 || use.messages == NCCL_ALONE)
        take_over(comm, group_create(comm, dev, use, timeout), false);
}

void nccl_start(Comm *comm)
{
    static const CommOps nccl = {.name = "nccl",
                                 .all_reduce = nccl_all_reduce,
                                 .reduce_scatter = nccl_reduce_scatter,
                                 .all_gather = nccl_all_gather,
                                 .broadcast = nccl_broadcast,
                                 .send = nccl_send,
                                 .receive = nccl_receive,
                                 .group_begin = nccl_group_begin,
                                 .group_end = nccl_group_end,
                                 .close = nccl_close};
    sigset_t usual;
    if (is_unchanged(comm)) return;
    Member *m = member(comm);
    comm->ops = &nccl;
    *comm->counts = m->before;
    if (m->shared) return;
    signals_hold(&usual); /* NCCL starts threads, also while rank 0 creates the id */
    group_open(m->group, comm->host);
    signals_release(&usual);
}

void nccl_connect(Comm *comm, Device *dev, NcclUse use, double timeout)
{
    nccl_prepare(comm, dev, use, timeout);
    comm_barrier(comm);
    nccl_start(comm);
    comm_barrier(comm);
    nccl_use_first(comm);
}

void nccl_share(Comm *comm, const Comm *connected)
{
    if (is_unchanged(connected)) return;
    CHECK(comm->size == connected->size && comm->rank == connected->rank,
          "%s, rank %d of %d, shares the communicator of %s, rank %d of %d", comm->name, comm->rank,
          comm->size, connected->name, connected->rank, connected->size);
    take_over(comm, member(connected)->group, true);
}
