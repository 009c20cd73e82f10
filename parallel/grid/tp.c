/* tp.c -- implements tp.h with Megatron-LM's operators f and g and their transposes
 * (arXiv:1909.08053), which sum over the ranks. A region (region.h) is a part of the model within
 * which each rank works on its own part of the weights. With sequence parallelism, where each rank
 * has only a part of the rows outside regions, the operators are all-gathers and reduce-scatters
 * instead (arXiv:2205.05198). */
#include "parallel/grid/tp.h"

#include "model/core/check.h"

#include <stdlib.h>

typedef struct {
    Comm *comm;
    Device *dev, tp;   /* the device, and a view of it that uses the tp stream */
    Event ready, done; /* on the compute stream: the sum's input is written; on the tp stream: the
                          sum is computed */
    bool on_its_way;
} Group;

/* An operator that sends nothing and leaves the tensor as it is. In a group of one rank every
 * operator is this one. In larger groups, if rows are not divided, so is every operator whose
 * transpose is a sum (whole_rows). */
static void same(void *self, Tensor dst, Tensor src)
{
    (void)self;
    CHECK(dst.data == src.data && tensor_same_shape(dst, src),
          "border tensors differ: %lld and %lld elements", (long long)tensor_count(dst),
          (long long)tensor_count(src));
}

/* Sets dst (all rows) to the concatenated rows of all ranks. If src has all rows, which are the
 * same on all ranks, dst must be src. */
static void whole_rows(void *self, Tensor dst, Tensor src)
{
    Group *g = self;
    if (tensor_count(dst) == tensor_count(src))
        same(self, dst, src);
    else
        comm_all_gather(g->comm, g->dev, dst, src);
}

/* Sets dst to the sum of src (all rows) over the ranks or, if dst has fewer rows, to this rank's
 * rows of that sum. */
static void sum_rows(Group *g, Device *on, Tensor dst, Tensor src)
{
    if (tensor_count(dst) == tensor_count(src)) {
        same(g, dst, src);
        comm_all_reduce(g->comm, on, dst, REDUCE_SUM);
    } else {
        comm_reduce_scatter(g->comm, on, dst, src);
    }
}

static void exit_forward(void *self, Tensor dst, Tensor src)
{
    Group *g = self;
    sum_rows(g, g->dev, dst, src);
}

static void enter_backward(void *self, Tensor dst, Tensor src)
{
    Group *g = self;
    /* Runs on the tp stream, so that the compute stream can compute gradients of weights meanwhile.
     */
    CHECK(!g->on_its_way, "a sum is on its way that nobody has awaited");
    device_event_record(g->dev, &g->ready);
    device_event_wait(&g->tp, &g->ready);
    sum_rows(g, &g->tp, dst, src);
    device_event_record(&g->tp, &g->done);
    g->on_its_way = true;
}

static void await_sum(void *self)
{
    Group *g = self;
    CHECK(g->on_its_way, "no sum is on its way");
    comm_await(g->comm, g->dev, &g->done);
    g->on_its_way = false;
}

static void reduce(void *self, Tensor x, ReduceOp op)
{
    Group *g = self;
    comm_all_reduce(g->comm, g->dev, x, op);
}

static void gather(void *self, Tensor whole, Tensor part)
{
    Group *g = self;
    comm_all_gather(g->comm, g->dev, whole, part);
}

static void await_nothing(void *self)
{
    (void)self;
}

static void reduce_nothing(void *self, Tensor x, ReduceOp op)
{
    (void)self, (void)x, (void)op;
}

Region tp_region_open(Comm *comm, Device *dev, bool sequence_parallel)
{
    if (comm->size == 1)
        return (Region){.enter_forward = same,
                        .exit_forward = same,
                        .enter_backward = same,
                        .exit_backward = same,
                        .await = await_nothing,
                        .reduce = reduce_nothing,
                        .gather = same,
                        .parts = 1};
    Group *g = must_calloc(1, sizeof *g);
    *g = (Group){.comm = comm, .dev = dev, .tp = device_on(dev, dev->tp)};
    /* The first record creates the event, which must not happen within a step. */
    device_event_record(dev, &g->ready);
    device_event_record(&g->tp, &g->done);
    return (Region){.enter_forward = whole_rows,
                    .exit_forward = exit_forward,
                    .enter_backward = enter_backward,
                    .exit_backward = whole_rows,
                    .await = await_sum,
                    .reduce = reduce,
                    .gather = gather,
                    .self = g,
                    .parts = sequence_parallel ? comm->size : 1,
                    .part = sequence_parallel ? comm->rank : 0};
}

void tp_region_close(Region *region)
{
    Group *g = region->self;
    if (g != NULL) {
        device_synchronize(g->dev);
        device_event_destroy(g->dev, &g->ready);
        device_event_destroy(g->dev, &g->done);
        free(g);
    }
    *region = (Region){0};
}
