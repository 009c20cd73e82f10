/* schedule_order.c -- see schedule_order.h. Each stage has its actions in a fixed order, told by
 * how many of them it has begun, and begins the next as soon as what it reads is there. */
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
} Timeline;

int timeline_ticks(ActionKind kind)
{
    return kind == ACT_BACKWARD ? 2 : 1;
}

/* Micro-batches go in groups, each through all chunks before the next one: groups of as many as
 * there are stages, or as few more as come out even, so that the first of a group is back from the
 * last stage when its last has left the first one. */
static void find_groups(Timeline *t)
{
    const ScheduleSpec *spec = t->spec;
    int64_t p = spec->stages, m = spec->micros, groups = m < p ? 1 : m / p;
    t->group = m / groups;
    t->longest_group = (m + groups - 1) / groups;
    t->first_longer = (groups - m % groups) * t->group * spec->chunks;
}

/* The chunk of a stage's k-th forward. */
static int chunk_in_turn(const Timeline *t, int64_t k)
{
    if (t->spec->chunks == 1) return 0;
    if (k < t->first_longer) return (int)(k / t->group % t->spec->chunks);
    return (int)((k - t->first_longer) / t->longest_group % t->spec->chunks);
}

/* How many forwards a stage makes before each is followed by a backward. Just enough for no stage
 * to wait once its first backward can be made: another would cost a slot and gain nothing. */
static int64_t head_start(const Timeline *t, int stage)
{
    if (t->spec->kind == SCHEDULE_GPIPE) return t->spec->micros;
    return t->spec->stages - 1 - stage + (t->spec->chunks - 1) * t->longest_group;
}

/* What a stage does next; false: it has done all. */
static bool next_action(const Timeline *t, int at, ActionKind *kind, int *chunk)
{
    const ScheduleSpec *spec = t->spec;
    const StageClock *stage = &t->stage[at];
    int v = spec->chunks;
    int64_t all = spec->micros * v, ahead = stage->forwards - stage->backwards;
    if (spec->evaluate) {
        *kind = ACT_EVALUATE;
        *chunk = chunk_in_turn(t, stage->forwards);
        return stage->forwards < all;
    }
    /* One stage has no one to wait for: backward follows its own forward at once, so that one slot
     * of activations serves all micro-batches, whatever the kind. */
    bool forward = spec->stages == 1 ? (stage->forwards + stage->backwards) % (2 * v) < v
                                     : stage->forwards < all && ahead <= head_start(t, at);
    *kind = forward ? ACT_FORWARD : ACT_BACKWARD;
    *chunk =
        forward ? chunk_in_turn(t, stage->forwards) : v - 1 - chunk_in_turn(t, stage->backwards);
    return stage->backwards < all;
}

/* Whether what the next action of a run reads is there. */
static bool ready(const Timeline *t, ActionKind kind, int run)
{
    if (kind != ACT_BACKWARD) return run == 0 || t->forward[run - 1].ended > t->forward[run].begun;
    int64_t micro = t->backward[run].begun;
    return (run == t->runs - 1 ? t->forward[run].ended : t->backward[run + 1].ended) > micro;
}

static RunClock *run_clock(Timeline *t, ActionKind kind, int run)
{
    return kind == ACT_BACKWARD ? &t->backward[run] : &t->forward[run];
}

static TimelineEvent event_of(const Timeline *t, int at, bool ends)
{
    const StageClock *stage = &t->stage[at];
    return (TimelineEvent){.tick = t->tick,
                           .ends = ends,
                           .stage = at,
                           .kind = stage->kind,
                           .chunk = stage->chunk,
                           .micro = stage->micro};
}

/* Ends what ends in this tick. False: the watch has seen enough. */
static bool end_actions(Timeline *t, TimelineWatch watch, void *context)
{
    for (int i = 0; i < t->spec->stages; i++) {
        StageClock *stage = &t->stage[i];
        if (!stage->busy || stage->end != t->tick) continue;
        stage->busy = false;
        run_clock(t, stage->kind, stage->chunk * t->spec->stages + i)->ended++;
        TimelineEvent event = event_of(t, i, true);
        if (!watch(context, &event)) return false;
    }
    return true;
}

/* Begins what can begin in this tick; *busy: stages at work. */
static bool begin_actions(Timeline *t, TimelineWatch watch, void *context, int *busy)
{
    *busy = 0;
    for (int i = 0; i < t->spec->stages; i++) {
        StageClock *stage = &t->stage[i];
        if (!stage->busy && next_action(t, i, &stage->kind, &stage->chunk) &&
            ready(t, stage->kind, stage->chunk * t->spec->stages + i)) {
            stage->micro = run_clock(t, stage->kind, stage->chunk * t->spec->stages + i)->begun++;
            stage->busy = true;
            stage->end = t->tick + timeline_ticks(stage->kind);
            if (stage->kind == ACT_BACKWARD)
                stage->backwards++;
            else
                stage->forwards++;
            TimelineEvent event = event_of(t, i, false);
            if (!watch(context, &event)) return false;
        }
        *busy += stage->busy;
    }
    return true;
}

void timeline_play(const ScheduleSpec *spec, TimelineWatch watch, void *context)
{
    int p = spec->stages, runs = p * spec->chunks, busy = 1;
    CHECK(p > 0 && spec->chunks > 0 && spec->micros > 0, "%lld micro-batches, %d stages of %d",
          (long long)spec->micros, p, spec->chunks);
    CHECK(spec->chunks == 1 || spec->kind == SCHEDULE_INTERLEAVED, "schedule %d with %d chunks",
          (int)spec->kind, spec->chunks);
    Timeline t = {.spec = spec,
                  .runs = runs,
                  .stage = must_calloc((size_t)p, sizeof *t.stage),
                  .forward = must_calloc((size_t)runs, sizeof *t.forward),
                  .backward = must_calloc((size_t)runs, sizeof *t.backward)};
    find_groups(&t);
    bool more = true;
    for (; busy > 0 && more; t.tick++)
        more = end_actions(&t, watch, context) && begin_actions(&t, watch, context, &busy);
    int64_t left = spec->micros - (spec->evaluate ? t.forward[runs - 1] : t.backward[0]).ended;
    CHECK(!more || left == 0, "%lld micro-batches wait for ever", (long long)left);
    free(t.stage);
    free(t.forward);
    free(t.backward);
}

static bool note_tick(void *context, const TimelineEvent *event)
{
    *(int64_t *)context = event->tick;
    return true;
}

int64_t timeline_length(const ScheduleSpec *spec)
{
    int64_t last = 0;
    timeline_play(spec, note_tick, &last);
    return last;
}

double timeline_bubble(const ScheduleSpec *spec)
{
    int micro = spec->evaluate ? timeline_ticks(ACT_EVALUATE)
                               : timeline_ticks(ACT_FORWARD) + timeline_ticks(ACT_BACKWARD);
    return 1 - (double)(micro * spec->micros * spec->chunks) / (double)timeline_length(spec);
}
