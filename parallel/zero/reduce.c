/* reduce.c -- gradients are summed over the data-parallel ranks, in groups, on the comm stream. */
#include "model/kernels/ops.h"
#include "parallel/zero/state.h"

/* The unit's place in the wire buffer: behind those of the group before it. */
static Tensor wire_of(const ZeroStore *s, int64_t offset, int unit)
{
    return tensor_slice_rows(s->wire, offset, s->unit[unit].size);
}

static void sum_over_ranks(ZeroStore *s, Tensor whole)
{
    if (s->options.stage == 0 || s->options.all_reduce)
        comm_all_reduce(&s->grid->shard, &s->comm, whole, REDUCE_SUM);
    else
        comm_reduce_scatter(&s->grid->shard, &s->comm, zero_part(s, whole), whole);
}

/* What of the summed gradients is used: all of it where every rank updates everything. */
static Tensor kept(const ZeroStore *s, Tensor whole)
{
    return s->options.stage == 0 ? whole : zero_part(s, whole);
}

static void reduce_group(ZeroStore *s)
{
    Group *group = &s->reducing;
    bool cast = tensor_present(s->wire);
    int64_t at = 0;
    if (group->n == 0) return;
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    for (int i = 0; cast && i < group->n; at += s->unit[group->unit[i++]].size)
        op_copy(&s->comm, wire_of(s, at, group->unit[i]), s->unit[group->unit[i]].grad);
    at = 0;
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < group->n; at += s->unit[group->unit[i++]].size)
        sum_over_ranks(s, cast ? wire_of(s, at, group->unit[i]) : s->unit[group->unit[i]].grad);
    comm_group_end(&s->grid->shard);
    at = 0;
    for (int i = 0; cast && i < group->n; at += s->unit[group->unit[i++]].size)
        op_copy(&s->comm, kept(s, s->unit[group->unit[i]].grad),
                kept(s, wire_of(s, at, group->unit[i])));
    device_event_record(&s->comm, &s->reduced);
    if (!s->options.overlap_comm) device_event_wait(s->dev, &s->reduced);
    group->n = 0;
    group->elements = 0;
}

void zero_reduce(ZeroStore *s, int unit)
{
    Group *group = &s->reducing;
    int64_t size = s->unit[unit].size;
    if (s->grid->shard.size == 1) return;
    if (group->elements + size > s->options.reduce_bucket_size) reduce_group(s);
    group->unit[group->n++] = unit;
    group->elements += size;
    if (group->elements >= s->options.reduce_bucket_size) reduce_group(s);
}

void zero_reduce_finish(ZeroStore *s)
{
    if (s->grid->shard.size == 1) return;
    reduce_group(s);
    device_event_wait(s->dev, &s->reduced);
}
