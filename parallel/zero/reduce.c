/* reduce.c -- sums gradients over the data-parallel ranks, in buckets, on the comm stream.
 * Gradients that are stored whole are summed over the shard group once per step, after the last
 * release. Transient gradients are summed at every release, into this rank's part. After the last
 * release the sums of all shard groups are added: each of the ranks that have the same part gets
 * the total of its share. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/zero/state.h"

/* Returns the tensor that is sent for the i-th unit of the bucket: its gradient, or its part of the
 * wire buffer, after the parts of the earlier units. */
static Tensor travelling(const ZeroStore *s, int i)
{
    const Bucket *bucket = &s->summing;
    int64_t before = 0;
    if (!tensor_present(s->wire)) return s->unit[bucket->unit[i]].grad;
    for (int k = 0; k < i; k++)
        before += s->unit[bucket->unit[k]].size;
    return tensor_slice_rows(s->wire, before, s->unit[bucket->unit[i]].size);
}

/* Returns whether a transient gradient, which is released and summed once per micro-batch, has
 * already been summed in this step. If so, the next sum is added to the stored one. */
static bool has_sum(const UnitState *u)
{
    return u->released > 1;
}

/* Returns whether the reduce-scatter can write the sum directly to the shard: it has the stored
 * dtype, and there is no earlier sum to which it must be added. */
static bool sums_in_place(const ZeroStore *s, const UnitState *u)
{
    return u->transient && !has_sum(u) && !tensor_present(s->wire) && !s->options.all_reduce;
}

/* Sums the gradient, or only this rank's part of it, over the ranks of the shard group. The sum
 * overwrites the gradient that was sent or, if sums_in_place, is written to the stored shard. */
static void sum_over_ranks(ZeroStore *s, const UnitState *u, Tensor whole)
{
    Comm *comm = &s->grid->shard;
    if (s->options.stage == 0 || s->options.all_reduce)
        comm_all_reduce(comm, &s->comm, whole, REDUCE_SUM);
    else
        comm_reduce_scatter(comm, &s->comm,
                            sums_in_place(s, u) ? u->grad_part : zero_part(s, whole), whole);
}

/* Copies the sum to the memory in which it is stored, or adds it there. */
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
        /* Micro-batches are accumulated in the stored dtype, whatever dtype was sent. */
        Tensor staged = zero_part(s, u->grad);
        if (sum.data != staged.data) op_copy(&s->comm, staged, sum);
        op_add(&s->comm, u->grad_part, u->grad_part, staged);
    } else if (!sums_in_place(s, u)) {
        op_copy(&s->comm, u->grad_part, sum);
    }
}

/* Marks the unit's sum as issued to the comm stream; its slot becomes free after the sum. */
static void end_sum(ZeroStore *s, UnitState *u)
{
    u->grad_state = GRAD_SUMMED;
    if (!u->transient) return;
    u->grad = NO_TENSOR;
    s->slot[u->slot].taken = false;
    device_event_record(&s->comm, &s->slot[u->slot].free);
}

/* Sums the gradients of the bucket over the ranks of this shard group. */
static void sum_in_group(ZeroStore *s)
{
    Bucket *bucket = &s->summing;
    bool cast = tensor_present(s->wire);
    if (s->grid->shard.size == 1) return;
    for (int i = 0; i < bucket->n && cast; i++)
        op_copy(&s->comm, travelling(s, i), s->unit[bucket->unit[i]].grad);
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < bucket->n; i++) {
        flight_unit(s->dev->flight, bucket->unit[i]);
        sum_over_ranks(s, &s->unit[bucket->unit[i]], travelling(s, i));
    }
    comm_group_end(&s->grid->shard);
    /* Sums are complete only after the end of their group of calls. */
    for (int i = 0; i < bucket->n; i++)
        keep_sum(s, &s->unit[bucket->unit[i]], travelling(s, i));
}

/* Returns whether the unit's gradient was released for the last time in this step. Then the sums of
 * all shard groups are to be added. */
static bool is_last(const UnitState *u)
{
    return u->released == u->releases;
}

/* Returns the tensor of the i-th unit of the bucket that is sent to other shard groups. */
static Tensor travelling_part(const ZeroStore *s, int i)
{
    const UnitState *u = &s->unit[s->summing.unit[i]];
    return tensor_present(s->wire) ? tensor_slice_rows(travelling(s, i), 0, u->part) : u->grad_part;
}

/* Adds the sums of all shard groups, for those units of the bucket whose gradients are complete:
 * sums this rank's part over the ranks that have the same part. This rank gets its share of the
 * sums in place. */
static void sum_between_groups(ZeroStore *s)
{
    Bucket *bucket = &s->summing;
    Comm *comm = &s->grid->replicate;
    bool cast = tensor_present(s->wire);
    int last = 0;
    for (int i = 0; i < bucket->n; i++)
        last += is_last(&s->unit[bucket->unit[i]]);
    if (comm->size == 1 || last == 0) return;
    for (int i = 0; i < bucket->n && cast; i++)
        if (is_last(&s->unit[bucket->unit[i]]))
            op_copy(&s->comm, travelling_part(s, i), s->unit[bucket->unit[i]].grad_part);
    comm_group_begin(comm);
    for (int i = 0; i < bucket->n; i++) {
        if (!is_last(&s->unit[bucket->unit[i]])) continue;
        Tensor part = travelling_part(s, i);
        flight_unit(s->dev->flight, bucket->unit[i]);
        if (s->options.all_reduce)
            comm_all_reduce(comm, &s->comm, part, REDUCE_SUM);
        else
            comm_reduce_scatter(comm, &s->comm, zero_own(s, part), part);
    }
    comm_group_end(comm);
    for (int i = 0; i < bucket->n && cast; i++) {
        const UnitState *u = &s->unit[bucket->unit[i]];
        if (is_last(u))
            op_copy(&s->comm, zero_own(s, u->grad_part), zero_own(s, travelling_part(s, i)));
    }
}

/* Issues the sums of the bucket to the comm stream and empties the bucket. All ranks do so for the
 * same buckets, so they call the collectives of both communicators in the same order. */
static void issue_sums(ZeroStore *s)
{
    Bucket *bucket = &s->summing;
    if (bucket->n == 0) return;
    /* The comm stream must wait until the gradients are complete. */
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    int used = flight_unit(s->dev->flight, -1);
    sum_in_group(s);
    sum_between_groups(s);
    flight_unit(s->dev->flight, used);
    /* The slots are released only now, because `travelling` and `keep_sum` read their gradients. */
    for (int i = 0; i < bucket->n; i++)
        end_sum(s, &s->unit[bucket->unit[i]]);
    if (!s->options.overlap_comm) zero_await_sums(s, &s->grid->shard);
    bucket_clear(bucket);
}

void zero_queue_sum(ZeroStore *s, int unit)
{
    Bucket *bucket = &s->summing;
    int64_t size = s->unit[unit].size;
    if (s->grid->dp.size == 1) return;
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
    bool shared = s->grid->dp.size > 1, partial = zero_has_partial_sums(s);
    if (shared) {
        issue_sums(s);
        /* The wait for partial sums (zero_sum_partials) would include the wait for these sums, but
         * that time is counted for other axes of the grid. So if waiting times are measured, these
         * sums get a separate wait. */
        if (!partial || s->grid->shard.exposed) zero_await_sums(s, &s->grid->shard);
    } else if (partial) {
        /* Partial sums normally follow other sums on the comm stream. If there are none, the comm
         * stream must wait for the gradients here. */
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
