/* comm_spy.c -- records the collective that each rank is executing (see comm_spy.h). */
#include "tests/support/grid/comm_spy.h"

#include "model/core/check.h"

/* The original function table of the transport, to which every call is forwarded. */
static const CommOps *_Atomic inner;
static _Thread_local CommSpied now;
static _Thread_local int64_t bundle;
static _Thread_local int calls;
static _Thread_local void (*noted)(const CommSpied *call);

static void begin_call(const Comm *comm, const Device *on, CommVerb verb, Tensor x)
{
    now = (CommSpied){comm, on, verb, x, bundle, calls++};
    if (noted != NULL) noted(&now);
}

static void end_call(void)
{
    now = (CommSpied){.bundle = bundle};
}

static void spied_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    begin_call(comm, on, COMM_ALL_REDUCE, x);
    inner->all_reduce(comm, on, x, op);
    end_call();
}

static void spied_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    begin_call(comm, on, COMM_REDUCE_SCATTER, whole);
    inner->reduce_scatter(comm, on, part, whole);
    end_call();
}

static void spied_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    begin_call(comm, on, COMM_ALL_GATHER, whole);
    inner->all_gather(comm, on, whole, part);
    end_call();
}

static void spied_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    begin_call(comm, on, COMM_BROADCAST, x);
    inner->broadcast(comm, on, x, root);
    end_call();
}

static void spied_send(Comm *comm, Device *on, Tensor x, int to)
{
    begin_call(comm, on, COMM_SEND, x);
    inner->send(comm, on, x, to);
    end_call();
}

static void spied_receive(Comm *comm, Device *on, Tensor x, int from)
{
    begin_call(comm, on, COMM_RECEIVE, x);
    inner->receive(comm, on, x, from);
    end_call();
}

static void spied_group_begin(Comm *comm)
{
    bundle++;
    calls = 0;
    inner->group_begin(comm);
}

static void spied_group_end(Comm *comm)
{
    begin_call(comm, NULL, COMM_VERBS, NO_TENSOR);
    inner->group_end(comm);
    end_call();
}

static void spied_barrier(Comm *comm)
{
    inner->barrier(comm);
}

static Comm spied_split(Comm *comm, const char *name, int color, int key)
{
    return inner->split(comm, name, color, key);
}

static void spied_close(Comm *comm)
{
    inner->close(comm);
}

static const CommOps spied = {.name = "spied",
                              .all_reduce = spied_all_reduce,
                              .reduce_scatter = spied_reduce_scatter,
                              .all_gather = spied_all_gather,
                              .broadcast = spied_broadcast,
                              .send = spied_send,
                              .receive = spied_receive,
                              .group_begin = spied_group_begin,
                              .group_end = spied_group_end,
                              .barrier = spied_barrier,
                              .split = spied_split,
                              .close = spied_close};

void comm_spy(Grid *grid)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    for (int i = 0; i < GRID_COMMS; i++) {
        if (comm[i]->size == 1) continue;
        const CommOps *seen = inner;
        CHECK(seen == NULL || seen == comm[i]->ops, "group %s is of another transport",
              comm[i]->name);
        inner = comm[i]->ops;
        ((Comm *)comm[i])->ops = &spied;
    }
}

void comm_spy_note(void (*note)(const CommSpied *call))
{
    noted = note;
}

CommSpied comm_spied(void)
{
    return now;
}
