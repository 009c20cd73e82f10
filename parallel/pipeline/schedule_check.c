/* schedule_check.c -- checks the schedules of all stages by simulating them together. */
#include "model/core/check.h"
#include "parallel/pipeline/schedule.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TRANSFERS = 3, RING = MOST_TRANSFERS + 1, EMPTY = -1 };

/* The messages from one stage to another. A sender is at most one group ahead of the receiver, so a
 * ring buffer of RING tags is enough. */
typedef struct {
    int64_t sends, receives; /* how many sends and receives have begun */
    int tag[RING];
} Channel;

/* The progress of a stage, and the contents of its memory: the micro-batch in each slot and batch,
 * the tag in each buffer, or EMPTY. */
typedef struct {
    const Schedule *s;
    int64_t at;
    bool posted;                    /* the group at `at` has begun */
    int64_t number[MOST_TRANSFERS]; /* the number of each message of the group in its channel */
    int64_t *forwards, *backwards;  /* per chunk */
    int64_t **slot, *batch;
    int64_t *buffer;
} Player;

typedef struct {
    const ScheduleSpec *spec;
    Player *player;
    Channel *channel; /* [from * stages + to] */
    char *err;
    size_t err_size;
} Game;

/* Sets the error message about the current action of a stage and returns false. */
__attribute__((format(printf, 3, 4))) static bool wrong(Game *g, int stage, const char *fmt, ...)
{
    Player *p = &g->player[stage];
    int used = snprintf(g->err, g->err_size,
                        "schedule of %d stages, %lld micro-batches: stage %d, "
                        "action %lld: ",
                        g->spec->stages, (long long)g->spec->micros, stage, (long long)p->at);
    va_list args;
    va_start(args, fmt);
    if (used >= 0 && (size_t)used < g->err_size)
        vsnprintf(g->err + used, g->err_size - (size_t)used, fmt, args);
    va_end(args);
    return false;
}

static int last_run(const Game *g)
{
    return g->spec->stages * g->spec->chunks - 1;
}

/* Returns the tag of the tensor that a layer range computes for a micro-batch. */
static int64_t tag_of(const Game *g, ActionKind kind, int run, int64_t micro)
{
    return ((micro * (last_run(g) + 1) + run) * 2 + (kind == ACT_BACKWARD)) & INT_MAX;
}

static bool use_buffers(Game *g, int stage, const Action *a, int run)
{
    Player *p = &g->player[stage];
    /* The first range reads tokens and the last one computes losses, neither of which is in a
     * buffer. In backward the last range is the first to run, and the gradient of the first range's
     * input is not used. */
    int back = a->kind == ACT_BACKWARD, from = back ? run + 1 : run - 1;
    bool reads = run != (back ? last_run(g) : 0), writes = run != (back ? 0 : last_run(g));
    if (a->in >= p->s->buffers || a->out >= p->s->buffers || reads != (a->in >= 0) ||
        writes != (a->out >= 0))
        return wrong(g, stage, "reads buffer %d and writes %d of %d", a->in, a->out, p->s->buffers);
    if (reads && p->buffer[a->in] != tag_of(g, a->kind, from, a->micro))
        return wrong(g, stage, "reads %lld in buffer %d, not %lld", (long long)p->buffer[a->in],
                     a->in, (long long)tag_of(g, a->kind, from, a->micro));
    if (writes && p->buffer[a->out] != EMPTY)
        return wrong(g, stage, "writes buffer %d, which holds %lld", a->out,
                     (long long)p->buffer[a->out]);
    /* The buffer is empty from now on, so a second read, or a send, is detected. */
    if (reads) p->buffer[a->in] = EMPTY;
    if (writes) p->buffer[a->out] = tag_of(g, a->kind, run, a->micro);
    return true;
}

/* Occupies or frees the slot and the batch of an action: a slot is occupied from the forward to the
 * backward pass of its chunk, a batch from the first to the last action of its micro-batch on the
 * stage. Returns false and sets the error message if one of them does not exist or does not hold
 * what it must. */
static bool use_places(Game *g, int stage, const Action *a)
{
    Player *p = &g->player[stage];
    bool back = a->kind == ACT_BACKWARD, evaluates = a->kind == ACT_EVALUATE;
    if (a->slot < 0 || a->slot >= p->s->slots[a->chunk] || a->batch < 0 ||
        a->batch >= p->s->batches)
        return wrong(g, stage, "slot %d of %d, batch %d of %d", a->slot, p->s->slots[a->chunk],
                     a->batch, p->s->batches);
    /* An evaluation stores nothing in its slot. It uses a batch like training does, from the first
     * chunk to the last. */
    int64_t *slot = &p->slot[a->chunk][a->slot], *batch = &p->batch[a->batch];
    if (!evaluates && *slot != (back ? a->micro : EMPTY))
        return wrong(g, stage, "slot %d is that of micro-batch %lld", a->slot, (long long)*slot);
    if (!evaluates) *slot = back ? EMPTY : a->micro;
    bool fills = a->chunk == 0 && !back;
    if (*batch != (fills ? EMPTY : a->micro))
        return wrong(g, stage, "batch %d is that of micro-batch %lld", a->batch, (long long)*batch);
    bool last = evaluates ? a->chunk == g->spec->chunks - 1 : back && a->chunk == 0;
    *batch = last ? EMPTY : a->micro;
    return true;
}

static bool compute(Game *g, int stage, const Action *a)
{
    Player *p = &g->player[stage];
    bool back = a->kind == ACT_BACKWARD;
    if (a->chunk < 0 || a->chunk >= g->spec->chunks ||
        (a->kind == ACT_EVALUATE) != g->spec->evaluate)
        return wrong(g, stage, "kind %d, chunk %d", (int)a->kind, a->chunk);
    /* Backward passes must also run in ascending order, so that gradients are added in the same
     * order and have the same bits with every schedule. */
    int64_t *next = back ? &p->backwards[a->chunk] : &p->forwards[a->chunk];
    if (a->micro != *next)
        return wrong(g, stage, "micro-batch %lld in place of %lld", (long long)a->micro,
                     (long long)*next);
    ++*next;
    return use_places(g, stage, a) && use_buffers(g, stage, a, a->chunk * g->spec->stages + stage);
}

static Channel *channel(Game *g, int stage, const Transfer *t)
{
    int p = g->spec->stages;
    return &g->channel[t->send ? stage * p + t->peer : t->peer * p + stage];
}

static bool post(Game *g, int stage, const Action *a)
{
    Player *p = &g->player[stage];
    if (a->n_transfers < 1 || a->n_transfers > MOST_TRANSFERS || a->transfer < 0 ||
        a->transfer + a->n_transfers > p->s->n_transfers)
        return wrong(g, stage, "%d transfers from %d", a->n_transfers, a->transfer);
    for (int i = 0; i < a->n_transfers; i++) {
        const Transfer *t = &p->s->transfer[a->transfer + i];
        if (t->peer < 0 || t->peer >= g->spec->stages || t->peer == stage || t->buffer < 0 ||
            t->buffer >= p->s->buffers || p->buffer[t->buffer] != (t->send ? t->tag : EMPTY))
            return wrong(g, stage, "transfer %d: peer %d, buffer %d, tag %d", i, t->peer, t->buffer,
                         t->tag);
        /* Messages are paired by their number in the channel, because a communicator matches the
         * messages of two ranks only by their order. */
        Channel *c = channel(g, stage, t);
        p->number[i] = t->send ? c->sends : c->receives;
        if (t->send) c->tag[c->sends % RING] = t->tag;
        ++*(t->send ? &c->sends : &c->receives);
    }
    p->posted = true;
    return true;
}

/* Returns whether the groups of all partners have begun. */
static bool met(Game *g, int stage, const Action *a)
{
    Player *p = &g->player[stage];
    for (int i = 0; i < a->n_transfers; i++) {
        const Transfer *t = &p->s->transfer[a->transfer + i];
        const Channel *c = channel(g, stage, t);
        if ((t->send ? c->receives : c->sends) <= p->number[i]) return false;
    }
    return true;
}

static bool finish(Game *g, int stage, const Action *a)
{
    Player *p = &g->player[stage];
    for (int i = 0; i < a->n_transfers; i++) {
        const Transfer *t = &p->s->transfer[a->transfer + i];
        const Channel *c = channel(g, stage, t);
        /* This happens only after the group has completed: until then a buffer that is sent must
         * not be written, and one that is received must not be read. */
        p->buffer[t->buffer] = t->send ? EMPTY : t->tag;
        if (t->send) continue;
        int at = (int)(p->number[i] % RING);
        if (c->tag[at] != t->tag)
            return wrong(g, stage, "receives %d where stage %d sends %d", t->tag, t->peer,
                         c->tag[at]);
    }
    p->posted = false;
    return true;
}

/* Runs a stage until it must wait; sets *moved if it did anything. */
static bool play(Game *g, int stage, bool *moved)
{
    Player *p = &g->player[stage];
    for (; p->at < p->s->n; p->at++) {
        const Action *a = &p->s->action[p->at];
        if (a->kind != ACT_EXCHANGE) {
            if (!compute(g, stage, a)) return false;
        } else {
            /* A group begins first and completes later, perhaps in another round: it waits until
             * its partners' groups have begun, not until they have completed. */
            if (!p->posted) {
                if (!post(g, stage, a)) return false;
                *moved = true;
            }
            if (!met(g, stage, a)) return true;
            if (!finish(g, stage, a)) return false;
        }
        *moved = true;
    }
    return true;
}

static int64_t *empty_places(int n)
{
    int64_t *place = must_alloc((size_t)(n + 1) * sizeof *place);
    for (int i = 0; i < n; i++)
        place[i] = EMPTY;
    return place;
}

static void open_player(Player *p, const Schedule *s, int chunks)
{
    *p = (Player){.s = s};
    p->forwards = must_calloc((size_t)chunks, sizeof *p->forwards);
    p->backwards = must_calloc((size_t)chunks, sizeof *p->backwards);
    p->slot = must_calloc((size_t)chunks, sizeof *p->slot);
    for (int i = 0; i < chunks; i++)
        p->slot[i] = empty_places(s->slots[i]);
    p->batch = empty_places(s->batches);
    p->buffer = empty_places(s->buffers);
}

static void close_player(Player *p, int chunks)
{
    for (int i = 0; i < chunks; i++)
        free(p->slot[i]);
    free(p->forwards);
    free(p->backwards);
    free(p->slot);
    free(p->batch);
    free(p->buffer);
}

static bool check_done(Game *g, int stage)
{
    Player *p = &g->player[stage];
    const ScheduleSpec *spec = g->spec;
    /* No stage progressed in the last round, so a stage that still waits would wait forever. */
    if (p->at < p->s->n) return wrong(g, stage, "waits for ever");
    for (int i = 0; i < spec->chunks; i++)
        if (p->forwards[i] != spec->micros ||
            p->backwards[i] != (spec->evaluate ? 0 : spec->micros))
            return wrong(g, stage, "chunk %d has gone %lld times forward, %lld backward", i,
                         (long long)p->forwards[i], (long long)p->backwards[i]);
    /* A buffer that is not empty was written or received, but never used. */
    for (int i = 0; i < p->s->buffers; i++)
        if (p->buffer[i] != EMPTY)
            return wrong(g, stage, "buffer %d still holds %lld", i, (long long)p->buffer[i]);
    return true;
}

bool schedule_check_all(const ScheduleSpec *spec, const Schedule *all, char *err, size_t n)
{
    int p = spec->stages;
    Game g = {.spec = spec, .err = err, .err_size = n};
    g.player = must_calloc((size_t)p, sizeof *g.player);
    g.channel = must_calloc((size_t)(p * p), sizeof *g.channel);
    for (int i = 0; i < p; i++)
        open_player(&g.player[i], &all[i], spec->chunks);
    bool good = true;
    for (bool moved = true; good && moved;) {
        moved = false;
        for (int i = 0; i < p && good; i++)
            good = play(&g, i, &moved);
    }
    for (int i = 0; i < p; i++) {
        good = good && check_done(&g, i);
        close_player(&g.player[i], spec->chunks);
    }
    free(g.player);
    free(g.channel);
    return good;
}

static Schedule *create_all(const ScheduleSpec *spec)
{
    Schedule *all = must_calloc((size_t)spec->stages, sizeof *all);
    schedule_create_all(spec, all);
    return all;
}

static void free_all(Schedule *all, int stages)
{
    for (int i = 0; i < stages; i++)
        schedule_free(&all[i]);
    free(all);
}

bool schedule_check(const ScheduleSpec *spec, char *err, size_t n)
{
    Schedule *all = create_all(spec);
    bool good = schedule_check_all(spec, all, err, n);
    free_all(all, spec->stages);
    return good;
}
