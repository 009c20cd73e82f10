/* publish.c -- gathers whole weights from the ranks that own the shards, in buckets, on the comm
 * stream: updated weights while the next forward pass begins, and sharded weights before a use
 * (gather.c). */
#include "model/core/check.h"
#include "parallel/zero/state.h"

void zero_measure_updates(ZeroStore *s, Exposed *exposed)
{
    s->updates = exposed;
}

/* Makes the unit's gather, which is issued next, wait for its update, unless an earlier gather of
 * its part has. Updates are made in the order of the units. */
static void gather_after_update(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (u->updated == NULL) return;
    device_event_wait(&s->comm, u->updated);
    if (unit > s->latest_unit) {
        s->latest = u->updated;
        s->latest_unit = unit;
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

/* Before the compute stream waits for a unit's gather: makes it wait for the updates alone for
 * which the comm stream has waited until then, so that only the rest of the wait is for other
 * ranks. It adds nothing to the whole wait. */
static void measure_update(ZeroStore *s, UnitState *u)
{
    if (s->updates) await_update(s, u->gathered_after);
    if (s->latest == u->gathered_after) s->latest = NULL; /* nothing is left to wait for */
    u->gathered_after = NULL;
}

/* Returns whether the whole weights of the bucket's i-th unit are gathered. A sharded unit is among
 * updated weights only for the sake of its part. */
static bool is_gathered(const ZeroStore *s, const Bucket *bucket, int i)
{
    return bucket != &s->publishing || !s->unit[bucket->unit[i]].sharded;
}

/* Gathers, for units of the bucket whose part is not up to date, the shares that other ranks with
 * the same part have updated. */
static void gather_parts(ZeroStore *s, const Bucket *bucket)
{
    Comm *comm = &s->grid->replicate;
    int old = 0;
    for (int i = 0; i < bucket->n; i++)
        old += s->unit[bucket->unit[i]].part_state != PART_WHOLE;
    if (old == 0) return;
    comm_group_begin(comm);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        if (u->part_state == PART_WHOLE) continue;
        flight_unit(s->dev->flight, bucket->unit[i]);
        comm_all_gather(comm, &s->comm, u->weight_part, zero_own(s, u->weight_part));
        u->part_state = PART_WHOLE;
    }
    comm_group_end(comm);
}

/* Gathers the whole weights of the bucket's units from their parts. */
static void gather_units(ZeroStore *s, const Bucket *bucket)
{
    Comm *comm = &s->grid->shard;
    int asked = 0;
    for (int i = 0; i < bucket->n; i++)
        asked += is_gathered(s, bucket, i);
    /* With one rank the part is the whole unit. */
    if (comm->size == 1 || asked == 0) return;
    comm_group_begin(comm);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        if (!is_gathered(s, bucket, i)) continue;
        flight_unit(s->dev->flight, bucket->unit[i]);
        comm_all_gather(comm, &s->comm, u->weight, u->weight_part);
    }
    comm_group_end(comm);
}

void zero_issue_gathers(ZeroStore *s, Bucket *bucket)
{
    if (bucket->n == 0) return;
    /* The shards must have been written, and earlier reads of the whole weights' memory must have
     * ended. */
    device_event_record(s->dev, &s->computed);
    device_event_wait(&s->comm, &s->computed);
    for (int i = 0; i < bucket->n; i++)
        gather_after_update(s, bucket->unit[i]);
    int used = flight_unit(s->dev->flight, -1);
    gather_parts(s, bucket);
    gather_units(s, bucket);
    flight_unit(s->dev->flight, used);
    for (int i = 0; i < bucket->n; i++) {
        UnitState *u = &s->unit[bucket->unit[i]];
        device_event_record(&s->comm, &u->ready);
        u->gathered_after = s->latest;
        if (is_gathered(s, bucket, i)) u->weight_state = WEIGHTS_ARRIVING;
        if (s->options.overlap_comm) continue;
        if (is_gathered(s, bucket, i)) {
            zero_await_weights(s, bucket->unit[i]);
            continue;
        }
        measure_update(s, u);
        comm_await(&s->grid->replicate, s->dev, &u->ready);
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

/* Requests the gather of the updated weights of a unit that is stored whole, or of this rank's part
 * of a sharded unit, if not yet requested. */
static void ask_for_update(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (!u->at_home) return;
    if (!u->sharded && u->weight_state == WEIGHTS_AWAY) zero_queue_gather(s, &s->publishing, unit);
    if (!u->sharded || u->part_state != PART_OLD) return;
    if (!bucket_has_room(&s->publishing, u->part)) zero_issue_gathers(s, &s->publishing);
    bucket_add(&s->publishing, unit, u->part);
    u->part_state = PART_ASKED;
    if (bucket_is_full(&s->publishing)) zero_issue_gathers(s, &s->publishing);
}

void zero_publish(ParamStore *base, int unit, Event *updated)
{
    ZeroStore *s = (ZeroStore *)base;
    UnitState *u = &s->unit[unit];
    CHECK(u->weight_state != WEIGHTS_HELD, "unit %d published while acquired", unit);
    u->updated = updated;
    if (unit <= s->latest_unit) { /* the next update of all units begins */
        s->latest = NULL;
        s->latest_unit = -1;
    }
    if (u->at_home && s->grid->replicate.size > 1 && u->part_state == PART_WHOLE)
        u->part_state = PART_OLD;
    if (u->sharded)
        zero_drop_weights(u); /* the gathered weights are out of date */
    else if (u->at_home && s->options.stage > 0 && u->weight_state != WEIGHTS_QUEUED)
        /* At stage 0 every rank has made the same update. If a gather is already queued, it is
         * issued after this update and includes it. */
        u->weight_state = WEIGHTS_AWAY;
    /* Gathers are executed in the order in which they are issued. A unit that is used late would
     * delay those that the next forward pass needs first. */
    if (!u->used_late) ask_for_update(s, unit);
    if (unit < base->table->n_units - 1) return;
    for (int i = 0; i <= unit; i++)
        ask_for_update(s, i);
    /* After the table's last unit the bucket will not become fuller. */
    zero_issue_gathers(s, &s->publishing);
}

void zero_await_weights(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    ask_for_update(s, unit);
    if (u->weight_state == WEIGHTS_QUEUED) zero_issue_gathers(s, &s->publishing);
    /* A gather has waited for the update already. Without one, the compute stream does: at stage 0,
     * and for a sharded unit that no use has gathered. */
    await_update(s, u->updated);
    u->updated = NULL;
    if (u->weight_state != WEIGHTS_ARRIVING) return;
    measure_update(s, u);
    comm_await(&s->grid->shard, s->dev, &u->ready);
    u->weight_state = WEIGHTS_HERE;
}
