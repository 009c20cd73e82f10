/* schedule_order.c -- 1F1B, GPipe, interleaved: computes the next action of a stage (next_action),
 * and simulates all stages on one clock (schedule_play).
 *
 * The order of a stage's actions is fixed. It depends only on how many forward and backward passes
 * the stage has begun. In the warm-up it runs only forward passes, in the steady state one forward
 * and one backward pass in turn, in the cool-down the remaining backward passes. A stage begins its
 * next action as soon as the input is available, and never another action instead: an order that
 * depended on arrival times would add gradients differently in each run. */
#include "parallel/pipeline/schedule_order.h"

#include "model/core/check.h"

#include <stdlib.h>

typedef struct {
    int64_t forwards, backwards; /* number begun, over all chunks */
    int64_t end;                 /* tick at which the current action ends */
    bool busy;
    ActionKind kind;
    int chunk;
    int64_t micro;
} StageClock;

/* How many micro-batches of one layer range have begun and ended. They run in ascending order, so
 * these counts are also the numbers of the next ones. */
typedef struct {
    int64_t begun, ended;
} RunClock;

typedef struct {
    const ScheduleSpec *spec;
    int runs;
    /* The groups of find_groups: `group` micro-batches in the first groups, `longest_group` in the
     * last ones. `first_longer` is the number of a stage's forward passes before the first longer
     * group. */
    int64_t group, longest_group, first_longer;
    int64_t tick;
    StageClock *stage;
    RunClock *forward, *backward;
} Simulation;

int schedule_ticks(ActionKind kind)
{
    return kind == ACT_BACKWARD ? 2 : 1;
}

/* Divides the micro-batches into groups. Each group passes through all chunks before the next group
 * begins. A group has as many micro-batches as there are stages, or slightly more if the total is
 * not a multiple of the stages. So the first micro-batch of a group returns from the last stage
 * when the group's last one has left the first stage. Megatron-LM accepts only multiples of the
 * number of stages; with groups of two lengths any number is possible. */
static void find_groups(Simulation *t)
{
    const ScheduleSpec *spec = t->spec;
    int64_t p = spec->stages, m = spec->micros, groups = m < p ? 1 : m / p;
    t->group = m / groups;
    t->longest_group = (m + groups - 1) / groups;
    t->first_longer = (groups - m % groups) * t->group * spec->chunks;
}

/* Returns the chunk of a stage's k-th forward pass. */
static int chunk_in_turn(const Simulation *t, int64_t k)
{
    if (t->spec->chunks == 1) return 0;
    if (k < t->first_longer) return (int)(k / t->group % t->spec->chunks);
    return (int)((k - t->first_longer) / t->longest_group % t->spec->chunks);
}

/* Returns the number of forward passes in the warm-up. GPipe: all. 1F1B: as many as are possible
 * until the first gradient arrives, so that no stage waits after its first backward pass. One more
 * would need another slot of activations without saving time. With several chunks, the first
 * gradient arrives only after the first group's forward passes of all chunks. */
static int64_t warm_up_forwards(const Simulation *t, int stage)
{
    const ScheduleSpec *spec = t->spec;
    if (spec->kind == SCHEDULE_GPIPE) return spec->micros;
    int64_t all = spec->micros * spec->chunks,
            n = spec->stages - 1 - stage + (spec->chunks - 1) * t->longest_group;
    return n < all ? n : all;
}

/* Returns whether the next action of a stage is a forward pass; `all` is its total number of
 * forward passes. */
static bool goes_forward(const Simulation *t, int at, int64_t all)
{
    const StageClock *stage = &t->stage[at];
    int64_t warm_up = warm_up_forwards(t, at), ahead = stage->forwards - stage->backwards;
    /* A single stage waits for no other. Each backward pass directly follows its forward pass, so
     * one slot of activations is enough for all micro-batches, with every kind of schedule. */
    if (t->spec->stages == 1)
        return (stage->forwards + stage->backwards) % (2 * t->spec->chunks) < t->spec->chunks;
    if (stage->forwards < warm_up) return true;         /* warm-up */
    if (stage->forwards < all) return ahead == warm_up; /* steady state: F, B, F, B */
    return false;                                       /* cool-down */
}

/* Sets the kind and chunk of the next action of a stage; returns false if there is none left. */
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
    /* In backward the chunks have the opposite order, because the last layer range is the first to
     * have a gradient. */
    *chunk = forward ? chunk_in_turn(t, stage->forwards)
                     : spec->chunks - 1 - chunk_in_turn(t, stage->backwards);
    return stage->backwards < all;
}

/* Returns whether the input of the next action of a layer range is available. */
static bool ready(const Simulation *t, ActionKind kind, int run)
{
    /* Counts are sufficient, because each range processes its micro-batches in ascending order: the
     * next input is available if the neighbouring range has ended more micro-batches than this
     * range has begun. */
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

/* Ends the actions that end in this tick; returns false if the watch has returned false. It is
 * called before begin_actions, so that another stage can read the output in the same tick,
 * whichever stage has the lower number. */
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

/* Begins the actions that can begin in this tick; sets *busy to the number of working stages. */
static bool begin_actions(Simulation *t, ScheduleWatch watch, void *context, int *busy)
{
    *busy = 0;
    for (int i = 0; i < t->spec->stages; i++) {
        StageClock *stage = &t->stage[i];
        if (!stage->busy && next_action(t, i, &stage->kind, &stage->chunk) &&
            ready(t, stage->kind, stage->chunk * t->spec->stages + i)) {
            stage->micro = run_clock(t, stage->kind, stage->chunk * t->spec->stages + i)->begun++;
            stage->busy = true;
            /* forwards and backwards count actions that have begun, because the order of a stage
             * must not depend on when its actions end. */
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
    /* If no stage is working after all possible actions have begun, nothing can change any more:
     * the schedule is finished or deadlocked. */
    for (; busy > 0 && more; t.tick++)
        more = end_actions(&t, watch, context) && begin_actions(&t, watch, context, &busy);
    /* Range 0 ends the last backward pass; in an evaluation the last range ends last. Without this
     * check a schedule that stops early would train on only a part of the batch. */
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
    /* All stages have the same amount of work, so the work of one is compared with the length. */
    int micro = spec->evaluate ? schedule_ticks(ACT_EVALUATE)
                               : schedule_ticks(ACT_FORWARD) + schedule_ticks(ACT_BACKWARD);
    return 1 - (double)(micro * spec->micros * spec->chunks) / (double)schedule_length(spec);
}

int64_t schedule_micros_for_half_bubble(const ScheduleSpec *spec)
{
    static const double rounding = 1e-9;
    double half = schedule_bubble_share(spec) / 2;
    ScheduleSpec more = *spec;
    while (schedule_bubble_share(&more) > half + rounding)
        more.micros++;
    return more.micros;
}
