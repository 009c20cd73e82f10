/* reduce.c -- gradients are summed over the data-parallel ranks, in buckets, on the comm stream:
 * those that are kept whole once a step, behind the last release; the others at every release, into
 * this rank's shard. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/zero/state.h"

/* What travels of the i-th unit of the bucket: its gradient, or its place in the wire buffer,
 * behind those of the bucket before it. */
static Tensor travelling(const ZeroStore *s, int i)
{
    const Bucket *bucket = &s->reducing;
    int64_t before = 0;
    if (!tensor_present(s->wire)) return s->unit[bucket->unit[i]].grad;
    for (int k = 0; k < i; k++)
        before += s->unit[bucket->unit[k]].size;
    return tensor_slice_rows(s->wire, before, s->unit[bucket->unit[i]].size);
}

/* Whether the sum can be written where it is kept, and nowhere else before. */
static bool straight(const ZeroStore *s, const UnitState *u)
{
    return u->transient && !u->summed && !tensor_present(s->wire) && !s->options.all_reduce;
}

/* The sum over the ranks, of the whole or of this rank's part of it, in place. */
static void sum_over_ranks(ZeroStore *s, const UnitState *u, Tensor whole)
{
    Comm *comm = &s->grid->shard;
    if (s->options.stage == 0 || s->options.all_reduce)
        comm_all_reduce(comm, &s->comm, whole, REDUCE_SUM);
    else
        comm_reduce_scatter(comm, &s->comm, straight(s, u) ? u->grad_part : zero_part(s, whole),
                            whole);
}

/* Brings the sum from where it was made to where it is kept. */
static void keep_sum(ZeroStore *s, const UnitState *u, Tensor whole)
{
    Tensor sum = zero_part(s, whole);
    if (!u->transient) {
        if (whole.data == u->grad.data) return;
        if (s->options.stage == 0)
            op_copy(&s->comm, u->grad, whole);
        else
            op_copy(&s->comm, u->grad_part, sum);
    } else if (u->summed) { /* the micro-batches before are there: added in the kept type */
        Tensor staged = zero_part(s, u->grad);
        if (sum.data != staged.data) op_copy(&s->comm, staged, sum);
        op_add(&s->comm, u->grad_part, u->grad_part, staged);
    } else if (!straight(s, u)) {
        op_copy(&s->comm, u->grad_part, sum);
    }
}

/* The bucket has been summed: its buffers will be free. */
static void let_go(ZeroStore *s, UnitState *u)
{
    if (!u->transient) return;
    u->summed = true;
    u->grad = NO_TENSOR;
    s->slot[u->slot].held = false;
    device_event_record(&s->comm, &s->slot[u->slot].free);
}

static void reduce_bucket(ZeroStore *s)
{
    Bucket *bucket = &s->reducing;
    bool cast = tensor_present(s->wire);
    if (bucket->n == 0) return;
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    for (int i = 0; i < bucket->n && cast; i++)
        op_copy(&s->comm, travelling(s, i), s->unit[bucket->unit[i]].grad);
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < bucket->n; i++)
        sum_over_ranks(s, &s->unit[bucket->unit[i]], travelling(s, i));
    comm_group_end(&s->grid->shard);
    for (int i = 0; i < bucket->n; i++)
        keep_sum(s, &s->unit[bucket->unit[i]], travelling(s, i));
    for (int i = 0; i < bucket->n; i++)
        let_go(s, &s->unit[bucket->unit[i]]);
    if (!s->options.overlap_comm) zero_await_sums(s, &s->grid->shard);
    bucket->n = 0;
    bucket->elements = 0;
}

void zero_reduce(ZeroStore *s, int unit)
{
    Bucket *bucket = &s->reducing;
    int64_t size = s->unit[unit].size;
    if (s->grid->shard.size == 1) return;
    if (bucket->elements + size > s->options.reduce_bucket_size) reduce_bucket(s);
    bucket->unit[bucket->n++] = unit;
    bucket->elements += size;
    if (bucket->elements >= s->options.reduce_bucket_size) reduce_bucket(s);
}

void zero_reduce_layer(ZeroStore *s)
{
    if (s->options.stage >= 2) reduce_bucket(s);
}

void zero_await_sums(ZeroStore *s, Comm *comm)
{
    device_event_record(&s->comm, &s->reduced);
    comm_await(comm, s->dev, &s->reduced);
}

void zero_reduce_finish(ZeroStore *s)
{
    bool shared = s->grid->shard.size > 1, partial = zero_needs_finish(s);
    if (shared) {
        reduce_bucket(s);
        /* The waits for the other sums are for these, too, but count on other axes. */
        if (!partial || s->grid->shard.exposed) zero_await_sums(s, &s->grid->shard);
    } else if (partial) {
        device_event_record(s->dev, &s->computed);
        device_event_wait(&s->comm, &s->computed);
    }
    if (partial) zero_finish(s);
}

void zero_take_slot(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    Slot *slot = &s->slot[s->next_slot];
    CHECK(!slot->held, "more than %d units make gradients at once", ZERO_SLOTS);
    comm_await(&s->grid->shard, s->dev, &slot->free);
    slot->held = true;
    u->slot = s->next_slot;
    u->grad = tensor_slice_rows(slot->memory, 0, u->size);
    s->next_slot = (s->next_slot + 1) % ZERO_SLOTS;
}
