/* publish.c -- updated weights are gathered from the ranks that own them, in groups, on the comm
 * stream, while the next forward pass begins. */
#include "model/core/check.h"
#include "parallel/zero/state.h"

static void gather_group(ZeroStore *s)
{
    Group *group = &s->publishing;
    if (group->n == 0) return;
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < group->n; i++) {
        Tensor whole = s->unit[group->unit[i]].weight;
        comm_all_gather(&s->grid->shard, &s->comm, whole, zero_part(s, whole));
    }
    comm_group_end(&s->grid->shard);
    for (int i = 0; i < group->n; i++) {
        UnitState *u = &s->unit[group->unit[i]];
        device_event_record(&s->comm, &u->ready);
        u->publishing = true;
        u->queued = false;
        if (!s->options.overlap_comm) zero_await_weights(s, group->unit[i]);
    }
    group->n = 0;
    group->elements = 0;
}

void zero_publish(ParamStore *base, int unit)
{
    ZeroStore *s = (ZeroStore *)base;
    Group *group = &s->publishing;
    CHECK(!s->unit[unit].acquired, "unit %d published while acquired", unit);
    if (s->options.stage == 0) return; /* every rank has made the same update */
    if (s->unit[unit].queued) return;  /* it goes with its group, whose turn is later than now */
    int64_t size = s->unit[unit].size;
    if (group->elements + size > s->options.allgather_bucket_size) gather_group(s);
    group->unit[group->n++] = unit;
    s->unit[unit].queued = true;
    group->elements += size;
    /* Behind the table's last unit nobody knows of a next one to wait for. */
    if (group->elements >= s->options.allgather_bucket_size || unit == base->table->n_units - 1)
        gather_group(s);
}

void zero_publish_finish(ZeroStore *s)
{
    gather_group(s);
}

void zero_await_weights(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (u->queued) gather_group(s);
    if (!u->publishing) return;
    device_event_wait(s->dev, &u->ready);
    u->publishing = false;
}
