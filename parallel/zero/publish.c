/* publish.c -- gathers whole weights from the ranks that own the shards, in buckets, on the comm
 * stream: updated weights while the next forward pass begins, and sharded weights before a use
 * (gather.c). */
#include "model/core/check.h"
#include "parallel/zero/state.h"

void zero_measure_updates(ZeroStore *s, Exposed *exposed)
{
    s->updates = exposed;
}

/* Makes the unit's gather, which is issued next, wait for the unit's update. Does nothing if a
 * gather issued earlier, which gathered only this rank's part of the unit, has waited for it. */
static void gather_after_update(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (u->updated == NULL) return;
    device_event_wait(&s->comm, u->updated);
    if (u->turn > s->latest_turn) {
        s->latest = u->updated;
        s->latest_turn = u->turn;
    }
    u->updated = NULL;
}

/* Makes the compute stream wait for an update of shards; NULL: there is none. */
static void await_update(ZeroStore *s, Event *updated)
{
    if (updated == NULL) return;
    exposed_begin(s->updates);
    device_event_wait(s->dev, updated);
    exposed_end(s->updates);
}

/* Called before the compute stream waits for a unit's gather. Makes the compute stream first wait
 * only for the updates for which the gather has waited. So the waits for updates are measured apart
 * from the waits for other ranks. The whole wait does not become longer. */
static void measure_update(ZeroStore *s, UnitState *u)
{
    if (s->updates) await_update(s, u->gathered_after);
    if (s->latest == u->gathered_after) s->latest = NULL; /* no update is left to wait for */
    u->gathered_after = NULL;
}

/* Makes the comm stream wait until the bucket's gathers may read the shards and overwrite the whole
 * weights. */
static void begin_gathers(ZeroStore *s, const Bucket *bucket)
{
    /* The shards must have been written, and earlier reads of the whole weights' memory must have
     * ended. */
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    for (int i = 0; i < bucket->n; i++)
        gather_after_update(s, bucket->unit[i]);
}

/* Gathers, for units of the bucket whose part is not up to date, the shares that other ranks with
 * the same part have updated. */
static void gather_parts(ZeroStore *s, const Bucket *bucket)
{
    Comm *comm = &s->grid->replicate;
    int old = 0;
    for (int i = 0; i < bucket->n; i++)
        old += s->unit[bucket->unit[i]].part_old;
    if (old == 0) return;
    int used = flight_unit(s->dev->flight, -1);
    comm_group_begin(comm);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        if (!u->part_old) continue;
        flight_unit(s->dev->flight, bucket->unit[i]);
        comm_all_gather(comm, &s->comm, u->weight_part, zero_own(s, u->weight_part));
        u->part_old = false;
    }
    comm_group_end(comm);
    flight_unit(s->dev->flight, used);
}

/* Gathers the whole weights of the bucket's units from their parts. */
static void gather_units(ZeroStore *s, const Bucket *bucket)
{
    Comm *comm = &s->grid->shard;
    /* In a group of one rank the part is the whole unit, so nothing is gathered. */
    if (comm->size == 1) return;
    int used = flight_unit(s->dev->flight, -1);
    comm_group_begin(comm);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        flight_unit(s->dev->flight, bucket->unit[i]);
        comm_all_gather(comm, &s->comm, u->weight, u->weight_part);
    }
    comm_group_end(comm);
    flight_unit(s->dev->flight, used);
}

void zero_issue_gathers(ZeroStore *s, Bucket *bucket)
{
    if (bucket->n == 0) return;
    begin_gathers(s, bucket);
    gather_parts(s, bucket);
    gather_units(s, bucket);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        device_event_record(&s->comm, &u->ready);
        u->gathered_after = s->latest;
        u->weight_state = WEIGHTS_ARRIVING;
        if (!s->options.overlap_comm) zero_await_weights(s, bucket->unit[i]);
    }
    bucket_clear(bucket);
}

void zero_queue_gather(ZeroStore *s, Bucket *bucket, int unit)
{
    UnitState *u = &s->unit[unit];
    CHECK(u->weight_state == WEIGHTS_AWAY, "weights of unit %d asked for twice", unit);
    if (!bucket_has_room(bucket, u->size)) zero_issue_gathers(s, bucket);
    bucket_add(bucket, unit, u->size);
    u->weight_state = WEIGHTS_QUEUED;
    if (bucket_is_full(bucket)) zero_issue_gathers(s, bucket);
}

void zero_gather_part(ZeroStore *s, int unit)
{
    Bucket alone = {.unit = &unit, .n = 1};
    if (!s->unit[unit].part_old) return;
    begin_gathers(s, &alone);
    gather_parts(s, &alone);
}

void zero_gather_parts(ZeroStore *s)
{
    for (int i = 0; i < s->base.table->n_units; i++)
        zero_gather_part(s, i);
}

/* Requests the gather of the updated weights of a unit that is stored whole, if not yet requested.
 */
static void ask_for_update(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (!u->at_home || u->sharded || u->weight_state != WEIGHTS_AWAY) return;
    zero_queue_gather(s, &s->publishing, unit);
    s->asked++;
}

void zero_publish(ParamStore *base, int unit, Event *updated)
{
    ZeroStore *s = (ZeroStore *)base;
    UnitState *u = &s->unit[unit];
    CHECK(u->weight_state != WEIGHTS_HELD, "unit %d published while acquired", unit);
    if (s->published == 0) { /* the next round of updates begins */
        s->latest = NULL;
        s->latest_turn = -1;
        s->asked = 0;
    }
    u->updated = updated;
    u->turn = s->published++;
    u->part_old |= u->at_home && s->grid->replicate.size > 1;
    if (u->sharded)
        zero_drop_weights(u); /* the gathered weights are out of date */
    else if (u->at_home && s->options.stage > 0 && u->weight_state != WEIGHTS_QUEUED)
        /* At stage 0 every rank has made the same update itself, so nothing is gathered. If a
         * gather is already queued, it is issued after this update and includes it. */
        u->weight_state = WEIGHTS_AWAY;
    /* Gathers are executed in the order in which they are issued. A unit that is used late would
     * delay those that the next forward pass needs first. */
    bool first = s->asked == 0;
    if (!u->used_late) ask_for_update(s, unit);
    /* Updates on their own stream take long, so the gather that the next forward pass needs first
     * must not wait for updates of other units. */
    if (first && s->options.updates_apart) zero_issue_gathers(s, &s->publishing);
    if (s->published < base->table->n_units) return;
    s->published = 0;
    for (int i = 0; i < base->table->n_units; i++)
        ask_for_update(s, i);
    /* No unit follows that could be added to the bucket. */
    zero_issue_gathers(s, &s->publishing);
}

void zero_await_weights(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    ask_for_update(s, unit);
    if (u->weight_state == WEIGHTS_QUEUED) zero_issue_gathers(s, &s->publishing);
    /* If the unit was gathered, its gather has already waited for the update. Without a gather, the
     * compute stream waits here: at stage 0, and for a sharded unit that was not gathered for a
     * use. */
    await_update(s, u->updated);
    u->updated = NULL;
    if (u->weight_state != WEIGHTS_ARRIVING) return;
    measure_update(s, u);
    comm_await(&s->grid->shard, s->dev, &u->ready);
    u->weight_state = WEIGHTS_HERE;
}
