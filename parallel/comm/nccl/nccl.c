/* nccl.c -- the verbs over NCCL, put on the stream of the device that carries them, and the life of
 * a communicator. How calls are watched is in watchdog.c. */
#include "parallel/comm/nccl/nccl.h"

#include "model/core/log.h"
#include "parallel/comm/nccl/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A Comm's own. */
typedef struct {
    const char *name; /* of the Comm, for messages */
    NcclGroup *group;
    bool shared; /* the group is another Comm's */
    bool noting; /* between group_begin and group_end */
    Device on;   /* of the first call noted; no backend: none yet */
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

/* NCCL can move any 16 bits, but adds only what it has a type for. */
static NcclType summed_type(DType dtype)
{
    CHECK(dtype != U16, "a reduction of %s over NCCL", dtype_name(dtype));
    return type_of(dtype);
}

static void require(NcclGroup *g, NcclResult result)
{
    if (result != NCCL_SUCCESS) nccl_end_failed(g, g->calls - 1, result);
}

/* One mark is recorded before the call, another once it has come back. */
static void begins(NcclGroup *g, Device *on, NcclCall call)
{
    device_event_record(on, &g->mark[g->calls % NCCL_RING].before);
    nccl_call_begins(g, call);
}

static void ends(NcclGroup *g, Device *on)
{
    device_event_record(on, &g->mark[(g->calls - 1) % NCCL_RING].after);
    nccl_call_ends(g);
}

/* NCCL's groups belong to a thread: the member whose group has begun and not ended. */
static _Thread_local const Member *grouping;

/* Before each of NCCL's calls for a device. */
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
        /* NCCL would take several streams; the marks of a group are on one. */
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

/* After it. */
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

/* ---- verbs -----------------------------------------------------------------------------------
 * Calls that move nothing go no further: NCCL would drop them, too. */

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
    /* A group without a device's call was the host's alone: NCCL has not heard of it. */
    if (m->on.backend) {
        grouping = NULL;
        require(m->group, nccl_library()->group_end());
        ends(m->group, &m->on);
    }
}

/* ---- the life of a communicator -------------------------------------------------------------- */

/* A call that no stream carries: the host waits in it for the peers. */
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

static NcclGroup *group_create(Comm *comm, Device *dev, double timeout)
{
    NcclGroup *g = must_calloc(1, sizeof *g);
    CHECK(comm->size <= COMM_MAX_RANKS, "%d ranks", comm->size);
    *g = (NcclGroup){.rank = comm->rank,
                     .size = comm->size,
                     .timeout = timeout,
                     .log = log_file(),
                     .device = dev,
                     .view = device_on(dev, dev->compute)};
    memcpy(g->name, comm->name, sizeof g->name);
    snprintf(g->place, sizeof g->place, "%s", log_place());
    pthread_mutex_init(&g->mutex, NULL);
    /* Not through the front door: these are not the caller's calls, and are not counted. */
    g->world_rank = must_calloc((size_t)g->size, sizeof *g->world_rank);
    int32_t rank = log_rank();
    comm->ops->all_gather(comm, NULL, tensor_1d(g->world_rank, I32, g->size),
                          tensor_1d(&rank, I32, 1));
    /* The first record makes an event, and a step must not make any. */
    for (int i = 0; i < NCCL_RING; i++) {
        device_event_record(dev, &g->mark[i].before);
        device_event_record(dev, &g->mark[i].after);
    }
    memcpy(g->asked, g->mark, sizeof g->asked);
    return g;
}

/* The id is the first rank's, and goes to the others through the host's communicator. */
static void group_open(NcclGroup *g, Comm *host)
{
    const NcclLibrary *nccl = nccl_library();
    NcclHandle *handle = NULL;
    NcclConfig config = NCCL_CONFIG_NONE;
    config.blocking = 1; /* a mark after a call that only hands it on would come too early */
    config.comm_name = g->name;
    host_call(g, "connect");
    if (g->rank == 0) require(g, nccl->get_unique_id(&g->id));
    host->ops->broadcast(host, NULL, tensor_1d(&g->id, U8, sizeof g->id), 0);
    nccl_watch(g); /* now: connecting, too, may wait for ever */
    device_enter(g->device);
    require(g, nccl->comm_init(&handle, g->size, g->id, g->rank, &config));
    set_handle(g, handle);
    nccl_call_ends(g);
}

/* NCCL asks that nothing is under way: whoever closes has waited, or given back memory. */
static void group_close(NcclGroup *g)
{
    NcclHandle *handle = g->handle;
    host_call(g, "disconnect");
    set_handle(g, NULL); /* the watchdog must not ask a communicator that is being destroyed */
    require(g, nccl_library()->comm_destroy(handle));
    nccl_call_ends(g);
    nccl_unwatch(g);
    for (int i = 0; i < NCCL_RING; i++) {
        device_event_destroy(g->device, &g->mark[i].before);
        device_event_destroy(g->device, &g->mark[i].after);
    }
    pthread_mutex_destroy(&g->mutex);
    free(g->world_rank);
    free(g);
}

static void nccl_close(Comm *comm)
{
    Member *m = member(comm);
    CHECK(!m->noting, "the end of %s inside a group", comm->name);
    if (!m->shared) group_close(m->group);
    free(m);
    comm->impl = NULL;
}

/* From here on the Comm's calls go through the group. */
static void take_over(Comm *comm, NcclGroup *group, bool shared)
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
    Member *m = must_calloc(1, sizeof *m);
    *m = (Member){.group = group, .shared = shared};
    comm_carry(comm, &nccl, m);
    m->name = comm->host->name; /* which stays where it is when the Comm moves */
}

/* Each verb once, so that no step waits for NCCL to open what it needs. */
static void use_first(Comm *comm, Device *dev, bool messages)
{
    int n = comm->size, next = (comm->rank + 1) % n, before = (comm->rank + n - 1) % n;
    size_t bytes = (size_t)(n + 2) * sizeof(float);
    float *memory = device_alloc(dev, bytes, "the first uses of NCCL");
    Tensor whole = tensor_1d(memory, F32, n), part = tensor_slice_rows(whole, comm->rank, 1),
           out = tensor_1d(memory + n, F32, 1), in = tensor_1d(memory + n + 1, F32, 1);
    nccl_all_reduce(comm, dev, whole, REDUCE_SUM);
    nccl_all_reduce(comm, dev, whole, REDUCE_MAX);
    nccl_reduce_scatter(comm, dev, part, whole);
    nccl_all_gather(comm, dev, whole, part);
    nccl_broadcast(comm, dev, whole, 0);
    /* Both directions of each pair: the last stage's gradients go back. */
    for (int way = 0; way < 2 && messages; way++) {
        nccl_group_begin(comm);
        nccl_send(comm, dev, out, way ? before : next);
        nccl_receive(comm, dev, in, way ? next : before);
        nccl_group_end(comm);
    }
    device_release(dev, memory, bytes); /* which waits for the device */
}

void nccl_connect(Comm *comm, Device *dev, bool messages, double timeout)
{
    if (comm->size == 1) return;
    NcclGroup *group = group_create(comm, dev, timeout);
    group_open(group, comm);
    take_over(comm, group, false);
    use_first(comm, dev, messages);
}

void nccl_share(Comm *comm, const Comm *connected)
{
    if (comm->size == 1) return;
    CHECK(comm->size == connected->size && comm->rank == connected->rank,
          "%s, rank %d of %d, shares the communicator of %s, rank %d of %d", comm->name, comm->rank,
          comm->size, connected->name, connected->rank, connected->size);
    take_over(comm, member(connected)->group, true);
}
