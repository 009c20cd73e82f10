/* reduce.c -- gradients are summed over the data-parallel ranks, in buckets, on the comm stream.
 * Those that are kept whole are summed once a step, after the last release; transient ones at every
 * release, into this rank's shard. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/zero/state.h"

/* What goes between ranks for the i-th unit of the bucket: its gradient, or its place in the wire
 * buffer, after those of the units before it. */
static Tensor travelling(const ZeroStore *s, int i)
{
    const Bucket *bucket = &s->summing;
    int64_t before = 0;
    if (!tensor_present(s->wire)) return s->unit[bucket->unit[i]].grad;
    for (int k = 0; k < i; k++)
        before += s->unit[bucket->unit[k]].size;
    return tensor_slice_rows(s->wire, before, s->unit[bucket->unit[i]].size);
}

/* Whether a transient gradient, which is released and summed once a micro-batch, has had a sum in
 * this step: then its shard is added to. */
static bool has_sum(const UnitState *u)
{
    return u->released > 1;
}

/* Whether the reduce-scatter can write the sum where it is kept: nothing is there yet that it must
 * be added to, and it has the type that is kept. */
static bool sums_in_place(const ZeroStore *s, const UnitState *u)
{
    return u->transient && !has_sum(u) && !tensor_present(s->wire) && !s->options.all_reduce;
}

/* The sum over the ranks, of the whole or of this rank's part of it; in place but for
 * sums_in_place. */
static void sum_over_ranks(ZeroStore *s, const UnitState *u, Tensor whole)
{
    Comm *comm = &s->grid->shard;
    if (s->options.stage == 0 || s->options.all_reduce)
        comm_all_reduce(comm, &s->comm, whole, REDUCE_SUM);
    else
        comm_reduce_scatter(comm, &s->comm,
                            sums_in_place(s, u) ? u->grad_part : zero_part(s, whole), whole);
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
    } else if (has_sum(u)) {
        /* Micro-batches add up in the type that is kept, whatever type the sum has come in. */
        Tensor staged = zero_part(s, u->grad);
        if (sum.data != staged.data) op_copy(&s->comm, staged, sum);
        op_add(&s->comm, u->grad_part, u->grad_part, staged);
    } else if (!sums_in_place(s, u)) {
        op_copy(&s->comm, u->grad_part, sum);
    }
}

/* The unit's sum is on the comm stream: when that is done its slot is free. */
static void end_sum(ZeroStore *s, UnitState *u)
{
    u->grad_state = GRAD_SUMMED;
    if (!u->transient) return;
    u->grad = NO_TENSOR;
    s->slot[u->slot].taken = false;
    device_event_record(&s->comm, &s->slot[u->slot].free);
}

/* Puts the sums of the bucket on the comm stream, and empties it. */
static void issue_sums(ZeroStore *s)
{
    Bucket *bucket = &s->summing;
    bool cast = tensor_present(s->wire);
    if (bucket->n == 0) return;
    /* The gradients must be complete. */
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    for (int i = 0; i < bucket->n && cast; i++)
        op_copy(&s->comm, travelling(s, i), s->unit[bucket->unit[i]].grad);
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < bucket->n; i++)
        sum_over_ranks(s, &s->unit[bucket->unit[i]], travelling(s, i));
    comm_group_end(&s->grid->shard);
    /* No sum is there before its group has ended. */
    for (int i = 0; i < bucket->n; i++)
        keep_sum(s, &s->unit[bucket->unit[i]], travelling(s, i));
    /* Only now, for `travelling` and `keep_sum` read the gradients of the slots. */
    for (int i = 0; i < bucket->n; i++)
        end_sum(s, &s->unit[bucket->unit[i]]);
    if (!s->options.overlap_comm) zero_await_sums(s, &s->grid->shard);
    bucket_clear(bucket);
}

void zero_queue_sum(ZeroStore *s, int unit)
{
    Bucket *bucket = &s->summing;
    int64_t size = s->unit[unit].size;
    if (s->grid->shard.size == 1) return;
    if (!bucket_has_room(bucket, size)) issue_sums(s);
    bucket_add(bucket, unit, size);
    if (bucket_is_full(bucket)) issue_sums(s);
}

void zero_issue_layer_sums(ZeroStore *s)
{
    if (s->options.stage >= 2) issue_sums(s);
}

void zero_await_sums(ZeroStore *s, Comm *comm)
{
    device_event_record(&s->comm, &s->reduced);
    comm_await(comm, s->dev, &s->reduced);
}

void zero_end_sums(ZeroStore *s)
{
    bool shared = s->grid->shard.size > 1, partial = zero_has_partial_sums(s);
    if (shared) {
        issue_sums(s);
        /* The waits for partial sums are waits for these sums, too, but are counted on other axes:
         * where waiting is measured, this one has a wait of its own. */
        if (!partial || s->grid->shard.exposed) zero_await_sums(s, &s->grid->shard);
    } else if (partial) {
        /* Partial sums follow sums on the comm stream; without any it waits for the gradients
         * here. */
        device_event_record(s->dev, &s->computed);
        device_event_wait(&s->comm, &s->computed);
    }
    if (partial) zero_sum_partials(s);
}

void zero_take_slot(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    Slot *slot = &s->slot[s->next_slot];
    CHECK(!slot->taken, "more than %d units make gradients at once", ZERO_SLOTS);
    comm_await(&s->grid->shard, s->dev, &slot->free);
    slot->taken = true;
    u->slot = s->next_slot;
    u->grad = tensor_slice_rows(slot->memory, 0, u->size);
    s->next_slot = (s->next_slot + 1) % ZERO_SLOTS;
}
