/* faulty_comm.c -- implements the communicator with injected faults of faulty_comm.h. */
#include "tests/support/grid/faulty_comm.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/kernels/ops.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    Comm *world;      /* the communicator that the outermost wrapper wraps */
    Comm *inner, own; /* own: the result of a split; then inner points to it */
    const CommFault *fault;
    int n, rank; /* n: number of rows of `fault`; rank: in the outermost group */
    int64_t calls[COMM_VERBS];
} Faulty;

/* Blocks the rank forever. */
static void stay(void)
{
    for (;;)
        pause();
}

/* Counts the call, and applies the rows of the table that affect it: delays it, ends the rank or
 * blocks it. Returns the first row that replaces the call, or NULL if the call is to run. */
static const CommFault *fault_of(Comm *comm, CommVerb verb)
{
    Faulty *f = comm->impl;
    int64_t call = ++f->calls[verb];
    for (int i = 0; i < f->n; i++) {
        const CommFault *row = &f->fault[i];
        if (row->verb != verb || (row->group && strcmp(row->group, comm->name) != 0) ||
            (row->rank >= 0 && row->rank != f->rank) || (row->call && row->call != call))
            continue;
        if (row->hits) ++*row->hits;
        if (row->kind == COMM_FAIL)
            fail(EXIT_UNAVAILABLE, "planted: %s %lld of group %s", comm_verb_name[verb],
                 (long long)call, comm->name);
        if (row->kind == COMM_LEAVE) comm_close(f->world);
        if (row->kind == COMM_LEAVE || row->kind == COMM_HANG) stay();
        if (row->kind != COMM_LATE) return row;
        /* On a busy core each yield may last milliseconds, so the time is limited, too. */
        double end = seconds_now() + 0.01;
        for (int yields = 0; yields < 1000 && seconds_now() < end; yields++)
            sched_yield();
    }
    return NULL;
}

static Comm *inner_of(Comm *comm)
{
    return ((Faulty *)comm->impl)->inner;
}

/* Computes to = the sum of all ranks' x, and rounds to x's dtype after each addition. `to` and x
 * have the same number of elements. */
static void sum_in_storage(Comm *inner, Device *on, Tensor to, Tensor x)
{
    size_t bytes = tensor_bytes(x);
    Tensor term = tensor_flat(x), sum = tensor_flat(to);
    term.data = device_alloc(on, bytes, "a planted sum");
    for (int r = 0; r < inner->size; r++) {
        if (r == inner->rank) device_copy(on, term, tensor_flat(x));
        comm_broadcast(inner, on, term, r);
        if (r == 0)
            device_copy(on, sum, term);
        else
            op_add(on, sum, sum, term);
    }
    device_synchronize(on);
    device_release(on, term.data, bytes);
}

static Tensor copy_of(Device *on, Tensor x)
{
    Tensor copy = tensor_flat(x);
    copy.data = device_alloc(on, tensor_bytes(x), "a planted sum");
    return copy;
}

static void faulty_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    const CommFault *fault = fault_of(comm, COMM_ALL_REDUCE);
    if (fault == NULL) {
        comm_all_reduce(inner_of(comm), on, x, op);
    } else if (fault->kind == COMM_SUM_IN_STORAGE) {
        Tensor sum = copy_of(on, x);
        sum_in_storage(inner_of(comm), on, sum, x);
        device_copy(on, tensor_flat(x), sum);
        device_synchronize(on);
        device_release(on, sum.data, tensor_bytes(sum));
    }
}

static void faulty_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    const CommFault *fault = fault_of(comm, COMM_REDUCE_SCATTER);
    if (fault == NULL) {
        comm_reduce_scatter(inner_of(comm), on, part, whole);
    } else if (fault->kind == COMM_SUM_IN_STORAGE) {
        Tensor sum = copy_of(on, whole);
        int64_t n = tensor_count(part);
        sum_in_storage(inner_of(comm), on, sum, whole);
        device_copy(on, tensor_flat(part), tensor_slice_rows(sum, comm->rank * n, n));
        device_synchronize(on);
        device_release(on, sum.data, tensor_bytes(sum));
    }
}

static void faulty_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    if (fault_of(comm, COMM_ALL_GATHER) == NULL) comm_all_gather(inner_of(comm), on, whole, part);
}

static void faulty_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    if (fault_of(comm, COMM_BROADCAST) == NULL) comm_broadcast(inner_of(comm), on, x, root);
}

static void faulty_send(Comm *comm, Device *on, Tensor x, int to)
{
    if (fault_of(comm, COMM_SEND) == NULL) comm_send(inner_of(comm), on, x, to);
}

static void faulty_receive(Comm *comm, Device *on, Tensor x, int from)
{
    if (fault_of(comm, COMM_RECEIVE) == NULL) comm_receive(inner_of(comm), on, x, from);
}

static void faulty_group_begin(Comm *comm)
{
    comm_group_begin(inner_of(comm));
}

static void faulty_group_end(Comm *comm)
{
    comm_group_end(inner_of(comm));
}

static void faulty_barrier(Comm *comm)
{
    comm_barrier(inner_of(comm));
}

static Comm wrap(Faulty *f);

static Comm faulty_split(Comm *comm, const char *name, int color, int key)
{
    const Faulty *outer = comm->impl;
    Faulty *f = must_calloc(1, sizeof *f);
    *f = (Faulty){.world = outer->world, .fault = outer->fault, .n = outer->n, .rank = outer->rank};
    f->own = comm_split(outer->inner, name, color, key);
    f->inner = &f->own;
    return wrap(f);
}

static void faulty_close(Comm *comm)
{
    Faulty *f = comm->impl;
    if (f->inner == &f->own) comm_close(&f->own);
    free(f);
}

static Comm wrap(Faulty *f)
{
    static const CommOps faulty = {.name = "faulty",
                                   .all_reduce = faulty_all_reduce,
                                   .reduce_scatter = faulty_reduce_scatter,
                                   .all_gather = faulty_all_gather,
                                   .broadcast = faulty_broadcast,
                                   .send = faulty_send,
                                   .receive = faulty_receive,
                                   .group_begin = faulty_group_begin,
                                   .group_end = faulty_group_end,
                                   .barrier = faulty_barrier,
                                   .split = faulty_split,
                                   .close = faulty_close};
    Comm comm = {.rank = f->inner->rank,
                 .size = f->inner->size,
                 .ops = &faulty,
                 .impl = f,
                 .counts = must_calloc(1, sizeof *comm.counts)};
    memcpy(comm.name, f->inner->name, sizeof comm.name);
    return comm;
}

Comm faulty_comm(Comm *inner, const CommFault *faults, int n)
{
    Faulty *f = must_calloc(1, sizeof *f);
    *f = (Faulty){.world = inner, .inner = inner, .fault = faults, .n = n, .rank = inner->rank};
    return wrap(f);
}
