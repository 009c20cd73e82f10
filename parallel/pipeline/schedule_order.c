/* schedule_order.c -- 1F1B, GPipe, interleaved: which action a stage does next (next_action), and
 * the clock of all stages (schedule_play).
 *
 * A stage's order is fixed, and follows from how many forwards and backwards it has begun: warm-up,
 * forwards alone; steady state, one forward and one backward in turns; cool-down, the backwards
 * that are left. A stage begins its next action as soon as what it reads is there, and never
 * another one in its place: an order that depended on arrival times would add up gradients
 * differently from run to run. */
#include "parallel/pipeline/schedule_order.h"

#include "model/core/check.h"

#include <stdlib.h>

typedef struct {
    int64_t forwards, backwards; /* begun, in all chunks */
    int64_t end;                 /* tick; of the action under way */
    bool busy;
    ActionKind kind;
    int chunk;
    int64_t micro;
} StageClock;

/* Micro-batches of one run of layers. They go in ascending order, so that these numbers are also
 * the next ones. */
typedef struct {
    int64_t begun, ended;
} RunClock;

typedef struct {
    const ScheduleSpec *spec;
    int runs;
    /* Micro-batches of a group, of the longest, and a stage's forwards before the longer ones,
     * which come last. */
    int64_t group, longest_group, first_longer;
    int64_t tick;
    StageClock *stage;
    RunClock *forward, *backward;
} Simulation;

int schedule_ticks(ActionKind kind)
{
    return kind == ACT_BACKWARD ? 2 : 1;
}

/* Micro-batches go in groups, each through all chunks before the next group begins: groups of as
 * many as there are stages, or as few more as come out even, so that the first of a group is back
 * from the last stage when its last has left the first one. Megatron-LM refuses numbers of
 * micro-batches that are no multiple of the stages; with groups of two lengths any number goes. */
static void find_groups(Simulation *t)
{
    const ScheduleSpec *spec = t->spec;
    int64_t p = spec->stages, m = spec->micros, groups = m < p ? 1 : m / p;
    t->group = m / groups;
    t->longest_group = (m + groups - 1) / groups;
    t->first_longer = (groups - m % groups) * t->group * spec->chunks;
}

/* The chunk of a stage's k-th forward. */
static int chunk_in_turn(const Simulation *t, int64_t k)
{
    if (t->spec->chunks == 1) return 0;
    if (k < t->first_longer) return (int)(k / t->group % t->spec->chunks);
    return (int)((k - t->first_longer) / t->longest_group % t->spec->chunks);
}

/* Forwards of the warm-up. GPipe: all. 1F1B: as many as it takes until the first gradient is back,
 * so that no stage waits once it has begun to go backward; one more would cost a slot of
 * activations and gain nothing. With chunks the first gradient has all other chunks of a group to
 * go through first. */
static int64_t warm_up_forwards(const Simulation *t, int stage)
{
    const ScheduleSpec *spec = t->spec;
    if (spec->kind == SCHEDULE_GPIPE) return spec->micros;
    int64_t all = spec->micros * spec->chunks,
            n = spec->stages - 1 - stage + (spec->chunks - 1) * t->longest_group;
    return n < all ? n : all;
}

/* Whether the next action of a stage is a forward, when `all` is its number of forwards. */
static bool goes_forward(const Simulation *t, int at, int64_t all)
{
    const StageClock *stage = &t->stage[at];
    int64_t warm_up = warm_up_forwards(t, at), ahead = stage->forwards - stage->backwards;
    /* One stage has no one to wait for: backward follows its own forward at once, so that one slot
     * of activations serves all micro-batches, whatever the kind. */
    if (t->spec->stages == 1)
        return (stage->forwards + stage->backwards) % (2 * t->spec->chunks) < t->spec->chunks;
    if (stage->forwards < warm_up) return true;         /* warm-up */
    if (stage->forwards < all) return ahead == warm_up; /* steady state: F, B, F, B */
    return false;                                       /* cool-down */
}

/* What a stage does next; false: it has done all. */
static bool next_action(const Simulation *t, int at, ActionKind *kind, int *chunk)
{
    const ScheduleSpec *spec = t->spec;
    const StageClock *stage = &t->stage[at];
    int64_t all = spec->micros * spec->chunks;
    if (spec->evaluate) {
        *kind = ACT_EVALUATE;
        *chunk = chunk_in_turn(t, stage->forwards);
        return stage->forwards < all;
    }
    bool forward = goes_forward(t, at, all);
    *kind = forward ? ACT_FORWARD : ACT_BACKWARD;
    /* Backward the chunks come in the opposite order: the last run of layers is the first to have a
     * gradient. */
    *chunk = forward ? chunk_in_turn(t, stage->forwards)
                     : spec->chunks - 1 - chunk_in_turn(t, stage->backwards);
    return stage->backwards < all;
}

/* Whether what the next action of a run reads is there. */
static bool ready(const Simulation *t, ActionKind kind, int run)
{
    /* Counts are enough, because each run takes its micro-batches in ascending order: the next one
     * is there when its neighbour has ended more than this run has begun. */
    if (kind != ACT_BACKWARD) return run == 0 || t->forward[run - 1].ended > t->forward[run].begun;
    int64_t micro = t->backward[run].begun;
    return (run == t->runs - 1 ? t->forward[run].ended : t->backward[run + 1].ended) > micro;
}

static RunClock *run_clock(Simulation *t, ActionKind kind, int run)
{
    return kind == ACT_BACKWARD ? &t->backward[run] : &t->forward[run];
}

static ScheduleEvent event_of(const Simulation *t, int at, bool ends)
{
    const StageClock *stage = &t->stage[at];
    return (ScheduleEvent){.tick = t->tick,
                           .ends = ends,
                           .stage = at,
                           .kind = stage->kind,
                           .chunk = stage->chunk,
                           .micro = stage->micro};
}

/* Ends what ends in this tick. False: the watch has seen enough. Comes before begin_actions, so
 * that what one stage has made is read by another in the same tick, whichever has the lower number.
 */
static bool end_actions(Simulation *t, ScheduleWatch watch, void *context)
{
    for (int i = 0; i < t->spec->stages; i++) {
        StageClock *stage = &t->stage[i];
        if (!stage->busy || stage->end != t->tick) continue;
        stage->busy = false;
        run_clock(t, stage->kind, stage->chunk * t->spec->stages + i)->ended++;
        ScheduleEvent event = event_of(t, i, true);
        if (!watch(context, &event)) return false;
    }
    return true;
}

/* Begins what can begin in this tick; *busy: stages at work. */
static bool begin_actions(Simulation *t, ScheduleWatch watch, void *context, int *busy)
{
    *busy = 0;
    for (int i = 0; i < t->spec->stages; i++) {
        StageClock *stage = &t->stage[i];
        if (!stage->busy && next_action(t, i, &stage->kind, &stage->chunk) &&
            ready(t, stage->kind, stage->chunk * t->spec->stages + i)) {
            stage->micro = run_clock(t, stage->kind, stage->chunk * t->spec->stages + i)->begun++;
            stage->busy = true;
            /* forwards and backwards count beginnings: the order of a stage must not depend on when
             * its actions end. */
            stage->end = t->tick + schedule_ticks(stage->kind);
            if (stage->kind == ACT_BACKWARD)
                stage->backwards++;
            else
                stage->forwards++;
            ScheduleEvent event = event_of(t, i, false);
            if (!watch(context, &event)) return false;
        }
        *busy += stage->busy;
    }
    return true;
}

void schedule_play(const ScheduleSpec *spec, ScheduleWatch watch, void *context)
{
    int p = spec->stages, runs = p * spec->chunks, busy = 1;
    CHECK(p > 0 && spec->chunks > 0 && spec->micros > 0, "%lld micro-batches, %d stages of %d",
          (long long)spec->micros, p, spec->chunks);
    CHECK(spec->chunks == 1 || spec->kind == SCHEDULE_INTERLEAVED, "schedule %d with %d chunks",
          (int)spec->kind, spec->chunks);
    Simulation t = {.spec = spec,
                    .runs = runs,
                    .stage = must_calloc((size_t)p, sizeof *t.stage),
                    .forward = must_calloc((size_t)runs, sizeof *t.forward),
                    .backward = must_calloc((size_t)runs, sizeof *t.backward)};
    find_groups(&t);
    bool more = true;
    /* When nobody is at work after all that could begin has begun, nothing will ever change again:
     * the schedule is done, or locked. */
    for (; busy > 0 && more; t.tick++)
        more = end_actions(&t, watch, context) && begin_actions(&t, watch, context, &busy);
    /* Run 0 is the last to go backward, the last run the last to evaluate; a schedule that stops
     * early would otherwise be a step that trains on a part of its batch. */
    int64_t left = spec->micros - (spec->evaluate ? t.forward[runs - 1] : t.backward[0]).ended;
    CHECK(!more || left == 0, "%lld micro-batches wait for ever", (long long)left);
    free(t.stage);
    free(t.forward);
    free(t.backward);
}

static bool note_tick(void *context, const ScheduleEvent *event)
{
    *(int64_t *)context = event->tick;
    return true;
}

int64_t schedule_length(const ScheduleSpec *spec)
{
    int64_t last = 0;
    schedule_play(spec, note_tick, &last);
    return last;
}

double schedule_bubble_share(const ScheduleSpec *spec)
{
    /* All stages have the same work, so one stage's work is compared with the length. */
    int micro = spec->evaluate ? schedule_ticks(ACT_EVALUATE)
                               : schedule_ticks(ACT_FORWARD) + schedule_ticks(ACT_BACKWARD);
    return 1 - (double)(micro * spec->micros * spec->chunks) / (double)schedule_length(spec);
}
