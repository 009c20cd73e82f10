/* publish.c -- whole weights are gathered from the ranks that own them, in groups, on the comm
 * stream: after an update while the next forward pass begins, and for gather.c before a use. */
#include "model/core/check.h"
#include "parallel/zero/state.h"

void zero_group_finish(ZeroStore *s, Group *group)
{
    if (group->n == 0) return;
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < group->n; i++) {
        UnitState *u = &s->unit[group->unit[i]];
        comm_all_gather(&s->grid->shard, &s->comm, u->weight, u->weight_part);
    }
    comm_group_end(&s->grid->shard);
    for (int i = 0; i < group->n; i++) {
        UnitState *u = &s->unit[group->unit[i]];
        device_event_record(&s->comm, &u->ready);
        u->arriving = true;
        u->queued = false;
        if (!s->options.overlap_comm) zero_await_weights(s, group->unit[i]);
    }
    group->n = 0;
    group->elements = 0;
}

void zero_group_gather(ZeroStore *s, Group *group, int unit, int64_t bucket)
{
    int64_t size = s->unit[unit].size;
    if (s->unit[unit].queued) return; /* it goes with its group, whose turn is later than now */
    if (group->elements + size > bucket) zero_group_finish(s, group);
    group->unit[group->n++] = unit;
    group->elements += size;
    s->unit[unit].queued = true;
    if (group->elements >= bucket) zero_group_finish(s, group);
}

void zero_publish(ParamStore *base, int unit)
{
    ZeroStore *s = (ZeroStore *)base;
    UnitState *u = &s->unit[unit];
    CHECK(!u->acquired, "unit %d published while acquired", unit);
    if (u->sharded)
        u->weight = NO_TENSOR;     /* what was gathered is old */
    else if (s->options.stage > 0) /* else every rank has made the same update */
        zero_group_gather(s, &s->publishing, unit, s->options.allgather_bucket_size);
    /* Behind the table's last unit nobody knows of a next one to wait for. */
    if (unit == base->table->n_units - 1) zero_group_finish(s, &s->publishing);
}

void zero_await_weights(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (u->queued) zero_group_finish(s, &s->publishing);
    if (!u->arriving) return;
    device_event_wait(s->dev, &u->ready);
    u->arriving = false;
}
