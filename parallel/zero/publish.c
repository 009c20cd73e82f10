/* publish.c -- whole weights are gathered from the ranks that own them, in buckets, on the comm
 * stream: after an update while the next forward pass begins, and for gather.c before a use. */
#include "model/core/check.h"
#include "parallel/zero/state.h"

void zero_bucket_finish(ZeroStore *s, Bucket *bucket)
{
    if (bucket->n == 0) return;
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    comm_group_begin(&s->grid->shard);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        comm_all_gather(&s->grid->shard, &s->comm, u->weight, u->weight_part);
    }
    comm_group_end(&s->grid->shard);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        device_event_record(&s->comm, &u->ready);
        u->arriving = true;
        u->queued = false;
        if (!s->options.overlap_comm) zero_await_weights(s, bucket->unit[i]);
    }
    bucket->n = 0;
    bucket->elements = 0;
}

void zero_bucket_gather(ZeroStore *s, Bucket *bucket, int unit, int64_t most)
{
    int64_t size = s->unit[unit].size;
    if (s->unit[unit].queued) return; /* it goes with its bucket, whose turn is later than now */
    if (bucket->elements + size > most) zero_bucket_finish(s, bucket);
    bucket->unit[bucket->n++] = unit;
    bucket->elements += size;
    s->unit[unit].queued = true;
    if (bucket->elements >= most) zero_bucket_finish(s, bucket);
}

static void publish_now(ZeroStore *s, int unit)
{
    if (!s->unit[unit].put_off) return;
    s->unit[unit].put_off = false;
    zero_bucket_gather(s, &s->publishing, unit, s->options.allgather_bucket_size);
}

void zero_publish(ParamStore *base, int unit)
{
    ZeroStore *s = (ZeroStore *)base;
    UnitState *u = &s->unit[unit];
    CHECK(!u->acquired, "unit %d published while acquired", unit);
    if (u->sharded)
        u->weight = NO_TENSOR;                /* what was gathered is old */
    else if (u->here && s->options.stage > 0) /* else every rank has made the same update */
        u->put_off = true;
    if (!u->used_late) publish_now(s, unit);
    if (unit < base->table->n_units - 1) return;
    for (int i = 0; i <= unit; i++)
        publish_now(s, i);
    /* Behind the table's last unit nobody knows of a next one to wait for. */
    zero_bucket_finish(s, &s->publishing);
}

void zero_await_weights(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    publish_now(s, unit);
    if (u->queued) zero_bucket_finish(s, &s->publishing);
    if (!u->arriving) return;
    comm_await(&s->grid->shard, s->dev, &u->ready);
    u->arriving = false;
}
