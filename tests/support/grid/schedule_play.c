/* schedule_play.c -- simulates the schedules of all pipeline stages and checks every action. */
#include "tests/support/grid/schedule_play.h"
#include "tests/support/turns.h"

#include "model/core/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static void wrong(Played *p, int stage, const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (p->wrong[0] == '\0')
        snprintf(p->wrong, sizeof p->wrong,
                 "kind %d, %d stages of %d, %lld micro-batches%s: stage %d, action %lld: %s",
                 (int)p->spec->kind, p->spec->stages, p->spec->chunks, (long long)p->spec->micros,
                 p->spec->evaluate ? " (evaluation)" : "", stage, (long long)p->stage[stage].at,
                 text);
}

bool *played_done(const Played *p, ActionKind kind, int run, int64_t micro)
{
    int64_t runs = p->spec->stages * p->spec->chunks;
    return &p->done[(kind * runs + run) * p->spec->micros + micro];
}

static bool same(Content a, Content b)
{
    return a.run == b.run && a.kind == b.kind && a.micro == b.micro;
}

/* Returns the number of the layer range whose output an action on layer range `run` reads, or -1 if
 * it reads none. */
static int source(const ScheduleSpec *spec, ActionKind kind, int run)
{
    if (kind != ACT_BACKWARD) return run - 1;
    return run + 1 == spec->stages * spec->chunks ? -1 : run + 1;
}

/* Marks a slot or batch as used by a micro-batch, from its first action to its last. Reports an
 * error if another micro-batch still uses it. */
static void hold(Played *p, int stage, int64_t *place, bool first, bool last, int64_t micro,
                 const char *what)
{
    if (*place != (first ? -1 : micro))
        wrong(p, stage, "%s holds micro-batch %lld", what, (long long)*place);
    *place = last ? -1 : micro;
}

static void use_buffers(Played *p, int stage, const Action *a, int run)
{
    int from = source(p->spec, a->kind, run),
        end = a->kind == ACT_BACKWARD ? 0 : p->spec->stages * p->spec->chunks - 1;
    Content *in = from >= 0 ? &p->stage[stage].buffer[a->in] : NULL,
            *out = run == end ? NULL : &p->stage[stage].buffer[a->out];
    if ((a->in >= 0) != (in != NULL) || (a->out >= 0) != (out != NULL))
        wrong(p, stage, "buffers %d and %d", a->in, a->out);
    if (in && !same(*in, (Content){from + 1, a->kind, a->micro}))
        wrong(p, stage, "reads run %d, kind %d, micro-batch %lld", in->run - 1, in->kind,
              (long long)in->micro);
    if (out && out->run != 0) wrong(p, stage, "writes a buffer that is not read yet");
    if (in) *in = (Content){0};
    if (out) *out = (Content){run + 1, a->kind, a->micro};
}

static void act(Played *p, int at, const Action *a)
{
    const ScheduleSpec *spec = p->spec;
    PlayedStage *stage = &p->stage[at];
    int run = a->chunk * spec->stages + at;
    bool back = a->kind == ACT_BACKWARD, evaluates = a->kind == ACT_EVALUATE;
    if (*played_done(p, a->kind, run, a->micro)) wrong(p, at, "done twice");
    if (a->micro > 0 && !*played_done(p, a->kind, run, a->micro - 1))
        wrong(p, at, "before the micro-batch before it");
    if (back && !*played_done(p, ACT_FORWARD, run, a->micro)) wrong(p, at, "before its forward");
    *played_done(p, a->kind, run, a->micro) = true;
    stage->clock += back ? p->backward : p->forward;
    use_buffers(p, at, a, run);
    if (!evaluates) hold(p, at, &stage->slot[a->chunk][a->slot], !back, back, a->micro, "slot");
    hold(p, at, &stage->batch[a->batch], a->chunk == 0 && !back,
         evaluates ? a->chunk == spec->chunks - 1 : back && a->chunk == 0, a->micro, "batch");
}

/* Checks that the transfers of a group use different buffers, because a group sends and receives at
 * the same time. */
static void check_apart(Played *p, int stage, const Action *a)
{
    const Transfer *first = &p->stage[stage].s.transfer[a->transfer];
    for (int i = 0; i < a->n_transfers; i++)
        for (int k = 0; k < i; k++)
            if (first[i].buffer == first[k].buffer)
                wrong(p, stage, "two transfers of a group have buffer %d", first[i].buffer);
}

/* Lets the stage start its group of transfers. Returns false if a partner has not reached its
 * matching group yet, or if a transfer has no partner. */
static bool meet(Played *p, int stage, const Action *a)
{
    check_apart(p, stage, a);
    for (int64_t i = a->transfer; i < a->transfer + a->n_transfers; i++)
        p->stage[stage].sent_at[i] = p->stage[stage].clock;
    for (int64_t i = a->transfer; i < a->transfer + a->n_transfers; i++) {
        const Transfer *t = &p->stage[stage].s.transfer[i];
        const PlayedStage *peer = &p->stage[t->peer];
        int64_t other = p->stage[stage].partner[i];
        if (other < 0) {
            wrong(p, stage, "a message to or from %d has no other side", t->peer);
            return false;
        }
        if (peer->s.transfer[other].tag != t->tag)
            wrong(p, stage, "tag %d meets %d of stage %d", t->tag, peer->s.transfer[other].tag,
                  t->peer);
        if (peer->at < peer->group[other]) return false;
    }
    return true;
}

/* Advances the stage's clock to the time at which the last of its senders reached its group. */
static void await_senders(Played *p, int stage, const Action *a)
{
    PlayedStage *here = &p->stage[stage];
    for (int64_t i = a->transfer; i < a->transfer + a->n_transfers; i++) {
        const Transfer *t = &here->s.transfer[i];
        double at = t->send ? 0 : p->stage[t->peer].sent_at[here->partner[i]];
        if (here->clock < at) here->clock = at;
    }
}

/* Moves a tensor from the sender's buffer to the receiver's, which must be free. Of the two stages,
 * the one that continues first does this. */
static void deliver(Played *p, int from, int64_t sent, int to, int64_t received)
{
    PlayedStage *sender = &p->stage[from], *receiver = &p->stage[to];
    if (sender->delivered[sent]) return;
    sender->delivered[sent] = true;
    Content *a = &sender->buffer[sender->s.transfer[sent].buffer],
            *b = &receiver->buffer[receiver->s.transfer[received].buffer];
    if (a->run == 0) wrong(p, from, "sends an empty buffer");
    if (b->run != 0) wrong(p, to, "receives over what is not read yet");
    *b = *a;
    *a = (Content){0};
}

static void deliver_group(Played *p, int stage, const Action *a)
{
    await_senders(p, stage, a);
    for (int64_t i = a->transfer; i < a->transfer + a->n_transfers; i++) {
        const Transfer *t = &p->stage[stage].s.transfer[i];
        int64_t other = p->stage[stage].partner[i];
        if (t->send)
            deliver(p, stage, i, t->peer, other);
        else
            deliver(p, t->peer, other, stage, i);
    }
}

/* ---- opening and running --------------------------------------------------------------------- */

/* Finds the partner of each transfer of a stage. Between two stages the n-th send matches the n-th
 * receive. */
static void find_partners(Played *p, int at)
{
    PlayedStage *stage = &p->stage[at];
    int64_t *from[2]; /* by peer: where to search on among its receives [0] and sends [1] */
    for (int send = 0; send < 2; send++)
        from[send] = must_calloc((size_t)p->spec->stages, sizeof *from[send]);
    for (int64_t i = 0; i < stage->s.n_transfers; i++) {
        const Transfer *t = &stage->s.transfer[i];
        const Schedule *peer = &p->stage[t->peer].s;
        int64_t *k = &from[!t->send][t->peer];
        while (*k < peer->n_transfers &&
               (peer->transfer[*k].peer != at || peer->transfer[*k].send == t->send))
            ++*k;
        stage->partner[i] = *k < peer->n_transfers ? (*k)++ : -1;
    }
    free(from[0]);
    free(from[1]);
}

static void reset(Played *p)
{
    const ScheduleSpec *spec = p->spec;
    p->wrong[0] = '\0';
    memset(p->done, 0, ACT_EXCHANGE * (size_t)(spec->stages * spec->chunks * spec->micros));
    for (int i = 0; i < spec->stages; i++) {
        PlayedStage *stage = &p->stage[i];
        const Schedule *s = &stage->s;
        stage->at = 0;
        stage->clock = 0;
        memset(stage->buffer, 0, (size_t)s->buffers * sizeof *stage->buffer);
        memset(stage->delivered, 0, (size_t)s->n_transfers);
        memset(stage->sent_at, 0, (size_t)s->n_transfers * sizeof *stage->sent_at);
        memset(stage->batch, 0xFF, (size_t)s->batches * sizeof *stage->batch);
        for (int c = 0; c < spec->chunks; c++)
            memset(stage->slot[c], 0xFF, (size_t)s->slots[c] * sizeof *stage->slot[c]);
        for (int64_t k = 0; k < s->n_transfers; k++)
            stage->group[k] = s->n; /* in no group, so never reached */
        for (int64_t k = 0; k < s->n; k++)
            for (int t = 0; s->action[k].kind == ACT_EXCHANGE && t < s->action[k].n_transfers; t++)
                stage->group[s->action[k].transfer + t] = k;
        find_partners(p, i);
    }
}

void played_play(Played *p)
{
    reset(p);
    for (bool moved = true; moved && p->wrong[0] == '\0';) {
        moved = false;
        for (int i = 0; i < p->spec->stages; i++) {
            PlayedStage *stage = &p->stage[i];
            for (; stage->at < stage->s.n; stage->at++) {
                const Action *a = &stage->s.action[stage->at];
                if (a->kind != ACT_EXCHANGE)
                    act(p, i, a);
                else if (meet(p, i, a))
                    deliver_group(p, i, a);
                else
                    break;
                moved = true;
            }
        }
    }
    for (int i = 0; i < p->spec->stages; i++)
        if (p->stage[i].at < p->stage[i].s.n) wrong(p, i, "waits for ever");
}

void played_open(Played *p, const ScheduleSpec *spec)
{
    Schedule *s = must_alloc((size_t)spec->stages * sizeof *s);
    *p = (Played){.spec = spec};
    p->stage = must_calloc((size_t)spec->stages, sizeof *p->stage);
    p->done = must_alloc(ACT_EXCHANGE * (size_t)(spec->stages * spec->chunks * spec->micros));
    schedule_create_all(spec, s);
    for (int i = 0; i < spec->stages; i++) {
        PlayedStage *stage = &p->stage[i];
        size_t transfers = (size_t)s[i].n_transfers + 1;
        stage->s = s[i];
        stage->buffer = must_calloc((size_t)s[i].buffers + 1, sizeof *stage->buffer);
        stage->batch = must_calloc((size_t)s[i].batches, sizeof *stage->batch);
        stage->partner = must_calloc(transfers, sizeof *stage->partner);
        stage->group = must_calloc(transfers, sizeof *stage->group);
        stage->delivered = must_calloc(transfers, sizeof *stage->delivered);
        stage->sent_at = must_calloc(transfers, sizeof *stage->sent_at);
        CHECK(spec->chunks <= MOST_CHUNKS, "%d chunks", spec->chunks);
        for (int c = 0; c < spec->chunks; c++)
            stage->slot[c] = must_calloc((size_t)s[i].slots[c], sizeof *stage->slot[c]);
    }
    free(s);
}

double played_bubble(const ScheduleSpec *spec, double forward, double backward)
{
    Played p;
    double end = 0;
    played_open(&p, spec);
    p.forward = forward;
    p.backward = backward;
    played_play(&p);
    CHECK(p.wrong[0] == '\0', "%s", p.wrong);
    for (int i = 0; i < spec->stages; i++)
        if (end < p.stage[i].clock) end = p.stage[i].clock;
    played_close(&p);
    double micro = forward + (spec->evaluate ? 0 : backward);
    return end / (micro * (double)(spec->micros * spec->chunks)) - 1;
}

bool played_check(const Played *p, char *err, size_t n)
{
    Schedule *all = must_alloc((size_t)p->spec->stages * sizeof *all);
    for (int i = 0; i < p->spec->stages; i++)
        all[i] = p->stage[i].s;
    bool good = schedule_check_all(p->spec, all, err, n);
    free(all);
    return good;
}

void played_close(Played *p)
{
    for (int i = 0; i < p->spec->stages; i++) {
        PlayedStage *stage = &p->stage[i];
        for (int c = 0; c < p->spec->chunks; c++)
            free(stage->slot[c]);
        schedule_free(&stage->s);
        free(stage->buffer);
        free(stage->batch);
        free(stage->partner);
        free(stage->group);
        free(stage->delivered);
        free(stage->sent_at);
    }
    free(p->stage);
    free(p->done);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

enum { ALL_STAGES = 8, ALL_MICROS = 16, SAMPLED = 5 };

void schedules_of(int stages, int64_t micros, int chunks, ScheduleVisit visit)
{
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_INTERLEAVED; kind++)
        for (int v = 1; v <= (kind == SCHEDULE_INTERLEAVED ? chunks : 1); v++)
            for (int evaluate = 0; evaluate < 2; evaluate++)
                visit(&(ScheduleSpec){(ScheduleKind)kind, stages, v, micros, evaluate == 1});
}

void schedules_each(ScheduleVisit visit)
{
    static const struct {
        int stages, micros, chunks;
    } large[] = {{12, 30, 5}, {16, 9, 3}, {16, 31, 3}, {16, 48, 3}, {16, 53, 2},
                 {24, 49, 2}, {32, 5, 4}, {33, 70, 2}, {64, 1, 2},  {64, 65, 2}};
    const char *most = getenv("GRID_MOST_RANKS");
    int64_t every = turns_every(SAMPLED), number = turns_first(every);
    /* A stage more changes the turn by one: so every number of stages and of micro-batches occurs
     * in each turn. */
    for (int p = 1; p <= ALL_STAGES; p++)
        for (int m = 1; m <= ALL_MICROS; m++)
            if ((p + m + number) % every == 0) schedules_of(p, m, MOST_CHUNKS, visit);
    for (int64_t i = number; i < (int64_t)(sizeof large / sizeof *large); i += every)
        schedules_of(large[i].stages, large[i].micros, large[i].chunks, visit);
    /* 10, 16, 25, 40 and 64 stages. The numbers of micro-batches are near multiples of the number
     * of stages, with a few in between. */
    for (int p = 10; most && p <= atoi(most); p = p * 8 / 5)
        for (int m = 1; m <= 4 * p + 1; m += m % p > 1 && m % p < p - 2 ? p / 2 : 1)
            schedules_of(p, m, MOST_CHUNKS, visit);
}
