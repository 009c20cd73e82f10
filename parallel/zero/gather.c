/* gather.c -- gathers sharded weights before they are used. The caller of step_begin says in which
 * order the step uses units. If this order, or a longer one that begins with it, is the one for
 * which the plan was made (prefetch.c), weights are gathered ahead of time, as planned. In any
 * other pass they are gathered when they are acquired and dropped when they are released.
 * prefetch.h explains the words stay and point. */
#include "model/core/check.h"
#include "parallel/grid/control.h"
#include "parallel/zero/state.h"

#include <stdlib.h>
#include <string.h>

static void choose_sharded(ZeroStore *s)
{
    const ParamTable *table = s->base.table;
    int64_t whole = 0;
    for (int i = 0; i < table->n_units; i++) {
        int64_t size = table->unit[i].size;
        if (!s->unit[i].at_home) continue;
        /* The gather of a small unit is mostly latency, and sharding it saves little memory. Small
         * units stay whole, the first ones of the table, as long as together they do not exceed the
         * limit. */
        bool small = size <= s->options.param_persistence_threshold &&
                     whole + size <= s->options.model_persistence_threshold;
        s->unit[i].sharded = s->options.stage == 3 && !small;
        if (small) whole += size;
        CHECK(table->unit[i].dtype == table->unit[0].dtype, "weights of several types");
    }
}

/* Returns the elements of the buffer that a pass with unknown uses needs: any two units may be held
 * at the same time. */
static int64_t largest_pair(const int64_t *size, int n)
{
    int64_t most = 0, second = 0;
    for (int i = 0; i < n; i++) {
        int64_t x = size[i];
        if (x > most) {
            second = most;
            most = x;
        } else if (x > second) {
            second = x;
        }
    }
    return most + second;
}

void zero_plan_gathers(ZeroStore *s)
{
    const ZeroOptions *o = &s->options;
    int units = s->base.table->n_units;
    s->low = s->high = -1;
    choose_sharded(s);
    if (o->stage < 3) return;
    int64_t *size = must_calloc((size_t)units, sizeof *size);
    for (int i = 0; i < units; i++)
        size[i] = s->unit[i].sharded ? s->unit[i].size : 0;
    if (o->n_uses == 0) {
        s->room = largest_pair(size, units);
    } else {
        /* Stages have different units. The error message gives the largest need of all stages, so
         * that this value is enough for each of them. */
        int64_t least = control_max(&s->grid->pp, gathers_least(size, o->uses, o->n_uses));
        if (o->gather.max_live_parameters < least)
            control_fail(
                &s->grid->shard, EXIT_CONFIG,
                "zero_optimization.stage3_max_live_parameters is %lld, and the largest two units "
                "that are used one behind the other have %lld elements; write at least that",
                (long long)o->gather.max_live_parameters, (long long)least);
        s->plan = gathers_plan(size, o->uses, o->n_uses, &o->gather);
        /* Copies the uses, because the caller may free them and every later step is compared with
         * them. */
        s->planned = must_calloc((size_t)o->n_uses, sizeof *s->planned);
        memcpy(s->planned, o->uses, (size_t)o->n_uses * sizeof *s->planned);
        s->n_planned = o->n_uses;
        s->room = s->plan.elements;
    }
    free(size);
}

static bool follows_plan(const ZeroStore *s, const Use *uses, int64_t n)
{
    if (n == 0 || n > s->n_planned) return false;
    for (int64_t i = 0; i < n; i++)
        if (uses[i].unit != s->planned[i].unit || uses[i].weight != s->planned[i].weight)
            return false;
    return true;
}

void zero_drop_weights(UnitState *u)
{
    u->weight = NO_TENSOR;
    u->weight_state = WEIGHTS_AWAY;
}

void zero_begin_plan(ZeroStore *s, const Use *uses, int64_t n)
{
    s->by_plan = follows_plan(s, uses, n);
    s->point = s->next_stay = 0;
    for (int i = 0; i < s->base.table->n_units; i++)
        if (s->unit[i].sharded) zero_drop_weights(&s->unit[i]);
}

/* Requests the gather of the unit's weights to this position in the buffer. */
static void ask_at(ZeroStore *s, int unit, int64_t offset)
{
    UnitState *u = &s->unit[unit];
    CHECK(u->weight_state == WEIGHTS_AWAY && offset + u->size <= s->room,
          "unit %d at element %lld of %lld", unit, (long long)offset, (long long)s->room);
    u->weight = tensor_slice_rows(s->gathered, offset, u->size);
    zero_queue_gather(s, &s->gathering, unit);
}

/* Requests the gathers of the stays that begin at this point of the plan; without `ahead`, only of
 * stays whose unit is used at this point. Their memory was last used before this point, and the
 * comm stream waits for all work issued to the compute stream so far, so nothing is overwritten
 * while it is still read. Weights used now and prefetched weights are gathered in separate groups,
 * so the use waits only for its own. */
static void ask_by_plan(ZeroStore *s, bool ahead)
{
    for (; s->next_stay < s->plan.n && s->plan.gather[s->next_stay].at <= s->point;
         s->next_stay++) {
        const Gather *g = &s->plan.gather[s->next_stay];
        if (g->first > s->point) {
            zero_issue_gathers(s, &s->gathering);
            if (!ahead) return;
        }
        s->unit[g->unit].last = g->last;
        ask_at(s, g->unit, g->offset);
    }
    zero_issue_gathers(s, &s->gathering);
}

static void ask_between_uses(ZeroStore *s, bool ahead)
{
    if (!s->by_plan || !s->options.overlap_comm || s->next_use == s->n_uses) return;
    ask_by_plan(s, ahead);
    /* There is no room for the next unit yet, but this rank's part of it has memory of its own, so
     * the part can already be gathered. */
    if (ahead && s->next_stay < s->plan.n) zero_gather_part(s, s->plan.gather[s->next_stay].unit);
}

void zero_ask_for_next_use(ZeroStore *s)
{
    ask_between_uses(s, false);
}

void zero_ask_ahead(ZeroStore *s)
{
    ask_between_uses(s, true);
}

/* Requests the gather of the unit's weights to one end of the buffer; the other end may contain
 * another unit's weights. */
static void ask_at_an_end(ZeroStore *s, int unit)
{
    int64_t size = s->unit[unit].size;
    CHECK(s->low < 0 || s->high < 0, "units %d, %d and %d at once", s->low, s->high, unit);
    int other = s->low < 0 ? s->high : s->low;
    CHECK(size + (other < 0 ? 0 : s->unit[other].size) <= s->room, "no room for units %d and %d",
          unit, other);
    ask_at(s, unit, s->low < 0 ? 0 : s->room - size);
    *(s->low < 0 ? &s->low : &s->high) = unit;
}

void zero_ask_for_use(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (s->by_plan)
        ask_by_plan(s, true);
    else if (u->sharded)
        ask_at_an_end(s, unit);
    zero_issue_gathers(s, &s->gathering);
    u->used = s->point++;
    CHECK(tensor_present(u->weight), "unit %d used where no stay was planned", unit);
}

void zero_drop_after_use(ZeroStore *s, int unit)
{
    UnitState *u = &s->unit[unit];
    if (!u->sharded) return;
    if (s->low == unit) s->low = -1;
    if (s->high == unit) s->high = -1;
    if (!s->by_plan || u->last == u->used) zero_drop_weights(u);
}
