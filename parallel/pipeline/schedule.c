/* schedule.c -- computes a stage's list of actions with its exchanges, buffers and slots. The order
 * of the actions (1F1B, GPipe, interleaved) is computed in schedule_order.c.
 *
 * The list is built from the events of all stages: the beginnings and ends of their actions, each
 * at a tick of a common clock (schedule_order.h). An action is added when it begins on this stage.
 * A group of transfers is added at every tick in which a tensor from or for this stage is finished.
 */
#include "parallel/pipeline/schedule.h"

#include "model/core/check.h"
#include "parallel/pipeline/schedule_order.h"

#include <limits.h>
#include <stdlib.h>

/* A schedule that is being built. */
typedef struct {
    const ScheduleSpec *spec;
    int stage;
    Schedule made;
    int64_t room, transfer_room;
    int64_t group, group_tick; /* the first transfer of the current group, and the group's tick */
    /* For each chunk and micro-batch, the buffer that its forward or backward pass reads. */
    int *activation, *gradient;
    int *free_buffer; /* ring of the buffers that may be written, least recently used first */
    int n_free, first_free, free_room;
    int in, out, sent;  /* in, out: buffers of the current action; sent: the buffer sent since this
                           action began; -1: none */
    int64_t *in_flight; /* per chunk: micro-batches between their first and last action there */
    int64_t batches_in_flight;
} Builder;

static int take_buffer(Builder *b)
{
    /* Takes the buffer that has been free for the longest time: the event for which its writer
     * waits has most likely been reached. */
    if (b->n_free == 0) return b->made.buffers++;
    int buffer = b->free_buffer[b->first_free];
    b->first_free = (b->first_free + 1) % b->free_room;
    b->n_free--;
    return buffer;
}

static void give_buffer(Builder *b, int buffer)
{
    if (buffer < 0) return;
    if (b->n_free == b->free_room) {
        int room = b->free_room ? 2 * b->free_room : 8;
        int *ring = must_alloc((size_t)room * sizeof *ring);
        for (int i = 0; i < b->n_free; i++)
            ring[i] = b->free_buffer[(b->first_free + i) % b->free_room];
        free(b->free_buffer);
        b->free_buffer = ring;
        b->free_room = room;
        b->first_free = 0;
    }
    b->free_buffer[(b->first_free + b->n_free++) % b->free_room] = buffer;
}

static void add_action(Builder *b, Action action)
{
    Schedule *s = &b->made;
    if (s->n == b->room) {
        b->room = b->room ? 2 * b->room : 64;
        s->action = must_realloc(s->action, (size_t)b->room * sizeof *s->action);
    }
    s->action[s->n++] = action;
}

static void add_transfer(Builder *b, Transfer transfer)
{
    Schedule *s = &b->made;
    if (s->n_transfers == b->transfer_room) {
        b->transfer_room = b->transfer_room ? 2 * b->transfer_room : 64;
        s->transfer = must_realloc(s->transfer, (size_t)b->transfer_room * sizeof *s->transfer);
    }
    s->transfer[s->n_transfers++] = transfer;
}

/* Forms a group from the transfers collected for one tick. */
static void close_group(Builder *b)
{
    int64_t n = b->made.n_transfers - b->group;
    if (n == 0) return;
    add_action(b, (Action){.kind = ACT_EXCHANGE,
                           .in = -1,
                           .out = -1,
                           .transfer = (int)b->group,
                           .n_transfers = (int)n});
    b->group = b->made.n_transfers;
}

static int *input(const Builder *b, ActionKind kind, int chunk, int64_t micro)
{
    int *all = kind == ACT_BACKWARD ? b->gradient : b->activation;
    return &all[chunk * b->spec->micros + micro];
}

/* Returns the layer range that reads the output of an action of this range; -1: none. */
static int reader(const ScheduleSpec *spec, ActionKind kind, int run)
{
    if (kind == ACT_BACKWARD) return run - 1;
    return run + 1 < spec->stages * spec->chunks ? run + 1 : -1;
}

/* Returns the layer range that computes the input of an action of this range; -1: none. */
static int writer(const ScheduleSpec *spec, ActionKind kind, int run)
{
    if (kind != ACT_BACKWARD) return run - 1;
    return run + 1 < spec->stages * spec->chunks ? run + 1 : -1;
}

/* Counts the micro-batches that wait for their last action, per chunk (in_flight) and on the whole
 * stage (batches_in_flight). The largest values of these counts are the numbers of slots (sets of
 * activations) and of batches (token buffers) that the stage needs. Micro-batches finish in the
 * order in which they began, so slot i % slots is free for the i-th micro-batch. */
static void count_places(Builder *b, ActionKind kind, int chunk)
{
    Schedule *s = &b->made;
    /* Counted up before the maximum is taken and down afterwards, because an action occupies its
     * slot while it runs. */
    bool last_chunk = chunk == b->spec->chunks - 1;
    b->in_flight[chunk] += kind == ACT_FORWARD;
    if (s->slots[chunk] < b->in_flight[chunk]) s->slots[chunk] = (int)b->in_flight[chunk];
    b->in_flight[chunk] -= kind == ACT_BACKWARD;
    b->batches_in_flight += chunk == 0 && kind != ACT_BACKWARD;
    if (s->batches < b->batches_in_flight) s->batches = (int)b->batches_in_flight;
    b->batches_in_flight -= kind == ACT_EVALUATE ? last_chunk : chunk == 0 && kind == ACT_BACKWARD;
}

static void begin(Builder *b, const ScheduleEvent *e)
{
    int run = e->chunk * b->spec->stages + b->stage;
    Action action = {.kind = e->kind, .chunk = e->chunk, .micro = e->micro, .in = -1, .out = -1};
    /* The output's buffer is taken before the input's is released, so an action never overwrites
     * its own input. */
    if (reader(b->spec, e->kind, run) >= 0) action.out = take_buffer(b);
    if (writer(b->spec, e->kind, run) >= 0) action.in = *input(b, e->kind, e->chunk, e->micro);
    /* The output of the previous action may still be in transfer while this action runs. So its
     * buffer is released only now, after this action has got another buffer for its own output. */
    give_buffer(b, b->sent);
    b->sent = -1;
    b->in = action.in;
    b->out = action.out;
    count_places(b, e->kind, e->chunk);
    add_action(b, action);
}

static void end(Builder *b, const ScheduleEvent *e)
{
    const ScheduleSpec *spec = b->spec;
    int run = e->chunk * spec->stages + e->stage, to = reader(spec, e->kind, run);
    bool mine = e->stage == b->stage;
    if (mine) give_buffer(b, b->in);
    if (to < 0) return;
    /* The receiver's buffer is taken when the message arrives and not when it is read, because it
     * is occupied from then on. */
    bool to_me = to % spec->stages == b->stage;
    int buffer = mine ? b->out : take_buffer(b);
    if (to_me) *input(b, e->kind, to / spec->stages, e->micro) = buffer;
    /* Between two chunks of the same stage nothing is sent: the reader uses the writer's buffer. */
    if (mine && to_me) return;
    if (mine) b->sent = buffer;
    /* The tag depends only on the tensor, so both sides compute the same one. */
    int64_t tag = (e->micro * spec->stages * spec->chunks + run) * 2 + (e->kind == ACT_BACKWARD);
    add_transfer(b, (Transfer){.peer = mine ? to % spec->stages : e->stage,
                               .send = mine,
                               .buffer = buffer,
                               .tag = (int)(tag & INT_MAX)});
}

static void build(Builder *b, const ScheduleEvent *event)
{
    /* A group contains the transfers of one tick. If it continued after one of this stage's
     * actions, a partner's group of the earlier tick would wait for that action, and the stages
     * could deadlock. */
    if (!event->ends || event->tick != b->group_tick) close_group(b);
    b->group_tick = event->tick;
    if (event->ends)
        end(b, event);
    else
        begin(b, event);
}

static void open_builder(Builder *b, const ScheduleSpec *spec, int stage)
{
    size_t inputs = (size_t)(spec->chunks * spec->micros);
    *b = (Builder){.spec = spec, .stage = stage, .in = -1, .out = -1, .sent = -1};
    b->activation = must_calloc(inputs, sizeof *b->activation);
    b->gradient = must_calloc(inputs, sizeof *b->gradient);
    b->in_flight = must_calloc((size_t)spec->chunks, sizeof *b->in_flight);
    b->made.slots = must_calloc((size_t)spec->chunks, sizeof *b->made.slots);
    /* An evaluation stores nothing for a backward pass, but its forward passes need one slot. */
    for (int i = 0; i < spec->chunks; i++)
        b->made.slots[i] = 1;
}

static Schedule close_builder(Builder *b)
{
    Schedule *s = &b->made;
    close_group(b);
    /* The number of slots is known only now, at the end of the list; it determines which slot each
     * micro-batch gets. */
    for (int64_t i = 0; i < s->n; i++) {
        Action *a = &s->action[i];
        if (a->kind == ACT_EXCHANGE) continue;
        a->slot = (int)(a->micro % s->slots[a->chunk]);
        a->batch = (int)(a->micro % s->batches);
    }
    free(b->activation);
    free(b->gradient);
    free(b->in_flight);
    free(b->free_buffer);
    return *s;
}

/* The builders of stages [first, first + n). */
typedef struct {
    Builder *builder;
    int first, n;
} Builders;

static void tell(const Builders *all, int stage, const ScheduleEvent *event)
{
    if (stage >= all->first && stage < all->first + all->n)
        build(&all->builder[stage - all->first], event);
}

/* Passes an event to its own stage, and the end of an action also to the stage that reads its
 * output. */
static bool build_all(void *context, const ScheduleEvent *event)
{
    const Builders *all = context;
    const ScheduleSpec *spec = all->builder->spec;
    tell(all, event->stage, event);
    int to = reader(spec, event->kind, event->chunk * spec->stages + event->stage);
    if (event->ends && to >= 0 && to % spec->stages != event->stage)
        tell(all, to % spec->stages, event);
    return true;
}

static void create(const ScheduleSpec *spec, int first, int n, Schedule *out)
{
    Builders all = {must_calloc((size_t)n, sizeof *all.builder), first, n};
    for (int i = 0; i < n; i++)
        open_builder(&all.builder[i], spec, first + i);
    schedule_play(spec, build_all, &all);
    for (int i = 0; i < n; i++)
        out[i] = close_builder(&all.builder[i]);
    free(all.builder);
}

Schedule schedule_create(const ScheduleSpec *spec, int stage)
{
    Schedule s;
    CHECK(stage >= 0 && stage < spec->stages, "stage %d of %d", stage, spec->stages);
    create(spec, stage, 1, &s);
    return s;
}

void schedule_create_all(const ScheduleSpec *spec, Schedule *of_stage)
{
    create(spec, 0, spec->stages, of_stage);
}

void schedule_free(Schedule *s)
{
    free(s->action);
    free(s->transfer);
    free(s->slots);
    *s = (Schedule){0};
}
