/* late_burst.c -- repeats a burst of the late device's work from the same memory, in different
 * orders and with waits left out, to find waits that are missing or unnecessary. See
 * late_device.h. */
#include "tests/support/device/late_inside.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = 64 };

typedef struct {
    LateStream *stream[MOST_STREAMS]; /* streams with work */
    int n;
    /* clock[s] + i * n + t: how many works of stream t are certainly done when stream s has done i
     * works of the burst. reals[t][c]: how many of the first c works of stream t are not waits. */
    int64_t *clock[MOST_STREAMS], *kept[MOST_STREAMS], *reals[MOST_STREAMS];
    char text[256];
} Burst;

/* ---- the work -------------------------------------------------------------------------------- */

static int64_t count_of(const LateStream *s)
{
    return s->issued - s->first;
}

static LateWork *work_of(const LateStream *s, int64_t i)
{
    return s->work[s->first + i];
}

static int number_of(const Burst *b, const LateStream *s)
{
    int i = 0;
    while (i < b->n && b->stream[i] != s)
        i++;
    return i;
}

/* Returns what the wait waits for, as a number of works of the burst; 0 or less: work before it. */
static int64_t point_of(const LateWork *work)
{
    return work->wait.point - work->wait.stream->first;
}

static const char *neighbour(const LateStream *s, int64_t i, int64_t step)
{
    for (; i >= 0 && i < count_of(s); i += step)
        if (work_of(s, i)->run) return work_of(s, i)->name;
    return step < 0 ? "its beginning" : "its end";
}

/* Writes, for example, "rank 0 comm between copy and sum, for rank 1 compute after fill". */
static const char *describe(Burst *b, const LateStream *s, int64_t i)
{
    const LateWork *wait = work_of(s, i);
    const LateStream *other = wait->wait.stream;
    snprintf(b->text, sizeof b->text, "rank %d %s between %s and %s, for rank %d %s after %s",
             s->device->index, s->name, neighbour(s, i, -1), neighbour(s, i, 1),
             other->device->index, other->name, neighbour(other, point_of(wait) - 1, -1));
    return b->text;
}

/* ---- repeating the work ---------------------------------------------------------------------- */

static void memory_restore(void)
{
    for (int i = 0; i < late_all.memories; i++) {
        LateMemory *m = &late_all.memory[i];
        if (m->before) memcpy(m->data, m->before, m->bytes);
    }
}

static void memory_keep(void)
{
    for (int i = 0; i < late_all.memories; i++) {
        const LateMemory *m = &late_all.memory[i];
        if (m->before) memcpy(m->after, m->data, m->bytes);
    }
}

/* Returns the first memory whose contents differ from the expected ones, or NULL. */
static const LateMemory *memory_differs(void)
{
    for (int i = 0; i < late_all.memories; i++) {
        const LateMemory *m = &late_all.memory[i];
        if (m->before && memcmp(m->data, m->after, m->bytes) != 0) return m;
    }
    return NULL;
}

/* Does the stream's next work. Returns false if there is none or it must wait. */
static bool step(LateStream *s, const LateWork *left_out)
{
    if (s->done == s->issued) return false;
    LateWork *work = s->work[s->done];
    if (work->run == NULL && work != left_out && work->wait.stream->done < work->wait.point)
        return false;
    late_do(s, work);
    s->done++;
    return true;
}

/* Does all work from the initial memory. `last`, if not NULL, works only when no other stream can.
 * Returns false if some streams wait for each other and cannot finish. */
static bool replay(Burst *b, const LateWork *left_out, LateStream *last)
{
    bool all = true, moved = true;
    memory_restore();
    for (int s = 0; s < b->n; s++)
        b->stream[s]->done = b->stream[s]->first;
    while (moved) {
        moved = false;
        for (int s = 0; s < b->n; s++)
            while (b->stream[s] != last && step(b->stream[s], left_out))
                moved = true;
        if (!moved && last) moved = step(last, left_out);
    }
    for (int s = 0; s < b->n; s++)
        all = all && b->stream[s]->done == b->stream[s]->issued;
    return all;
}

/* ---- the order of the work ------------------------------------------------------------------- */

/* Computes the clocks of stream s after its work i - 1. Returns false if the clocks that it needs
 * are not computed yet. */
static bool tick(Burst *b, int s, int64_t i, const LateWork *left_out, const int64_t *have)
{
    const LateWork *work = work_of(b->stream[s], i - 1);
    int64_t *now = b->clock[s] + i * b->n;
    int other = b->n;
    if (work->run == NULL && work != left_out && point_of(work) > 0) {
        other = number_of(b, work->wait.stream);
        if (other < b->n && have[other] < point_of(work)) return false;
    }
    memcpy(now, now - b->n, (size_t)b->n * sizeof *now);
    now[s] = i;
    for (int t = 0; t < b->n && other < b->n; t++) {
        int64_t seen = b->clock[other][point_of(work) * b->n + t];
        if (seen > now[t]) now[t] = seen;
    }
    return true;
}

static void clocks(Burst *b, const LateWork *left_out)
{
    int64_t have[MOST_STREAMS] = {0};
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < b->n; s++)
            while (have[s] < count_of(b->stream[s]) && tick(b, s, have[s] + 1, left_out, have)) {
                have[s]++;
                moved = true;
            }
    }
}

/* Finds the streams that have work which, without the wait, need no longer be done before some
 * other work. Returns false if there are none. */
static bool order_is_lost(Burst *b, const LateWork *left_out, bool of[MOST_STREAMS])
{
    bool any = false;
    memset(of, 0, MOST_STREAMS * sizeof *of);
    clocks(b, left_out);
    for (int s = 0; s < b->n; s++)
        for (int64_t i = 0; i < count_of(b->stream[s]); i++) {
            if (work_of(b->stream[s], i)->run == NULL) continue;
            for (int t = 0; t < b->n; t++) {
                int64_t now = b->clock[s][i * b->n + t], was = b->kept[s][i * b->n + t];
                of[t] |= b->reals[t][now] != b->reals[t][was];
                any |= of[t];
            }
        }
    return any;
}

/* ---- begin and end --------------------------------------------------------------------------- */

void late_burst_begin(void)
{
    pthread_mutex_lock(&late_all.mutex);
    CHECK(!late_all.burst, "a burst inside one of %d devices' memories", late_all.memories);
    for (LateDevice *d = late_all.devices; d != NULL; d = d->next) {
        d->marks = 0;
        for (int i = 0; i < LATE_STREAMS; i++) {
            LateStream *s = &d->stream[i];
            CHECK(s->done == s->issued, "a burst begins while rank %d %s has work", d->index,
                  s->name);
            s->first = s->issued;
        }
    }
    late_all.burst = true;
    pthread_mutex_unlock(&late_all.mutex);
}

void late_mark(Device *device)
{
    LateDevice *late = device->impl;
    pthread_mutex_lock(&late_all.mutex);
    CHECK(late->marks < LATE_MARKS, "mark %d of a burst", late->marks);
    for (int i = 0; i < LATE_STREAMS; i++)
        late->stream[i].mark[late->marks] = late->stream[i].issued;
    late->marks++;
    pthread_mutex_unlock(&late_all.mutex);
}

static Burst *burst_open(LateVerdict *v)
{
    Burst *b = must_calloc(1, sizeof *b);
    /* Nothing has run yet, so device memory has its initial contents. The host has already written
     * the memory that it gives to the device. */
    for (int i = 0; i < late_all.memories; i++) {
        LateMemory *m = &late_all.memory[i];
        if (m->host && !m->used) continue; /* no work uses it, so it cannot change */
        m->before = memcpy(must_alloc(m->bytes), m->data, m->bytes);
        m->after = must_alloc(m->bytes);
    }
    for (LateDevice *d = late_all.devices; d != NULL; d = d->next)
        for (int i = 0; i < LATE_STREAMS; i++)
            if (count_of(&d->stream[i]) > 0) {
                CHECK(b->n < MOST_STREAMS, "more than %d streams", MOST_STREAMS);
                b->stream[b->n++] = &d->stream[i];
            }
    for (int s = 0; s < b->n; s++) {
        int64_t n = count_of(b->stream[s]);
        size_t entries = (size_t)((n + 1) * b->n);
        b->clock[s] = must_calloc(entries, sizeof **b->clock);
        b->kept[s] = must_calloc(entries, sizeof **b->kept);
        b->reals[s] = must_calloc((size_t)n + 1, sizeof **b->reals);
        for (int64_t i = 0; i < n; i++)
            b->reals[s][i + 1] = b->reals[s][i] + (work_of(b->stream[s], i)->run != NULL);
        v->works += (int)b->reals[s][n];
    }
    v->streams = b->n;
    clocks(b, NULL);
    for (int s = 0; s < b->n; s++)
        memcpy(b->kept[s], b->clock[s],
               (size_t)((count_of(b->stream[s]) + 1) * b->n) * sizeof **b->kept);
    return b;
}

/* Counts work of the devices' streams `own` that may run while earlier work of the same device's
 * stream `which` is pending. */
static int count_overlaps(Burst *b, int own, int which, LateVerdict *v)
{
    int found = 0;
    for (int s = 0; s < b->n; s++) {
        LateStream *from = b->stream[s], *streams = from->device->stream;
        const LateStream *given = &streams[which];
        int other = number_of(b, given);
        if (from != &streams[own] || other == b->n) continue;
        for (int64_t i = 0; i < count_of(from); i++) {
            const LateWork *work = work_of(from, i);
            int64_t sent = work->sent[which] - given->first;
            if (work->run == NULL || b->kept[s][i * b->n + other] >= sent) continue;
            if (found++ == 0 && which == LATE_COMM)
                snprintf(v->overlap, sizeof v->overlap, "rank %d: %s before all of comm after %s",
                         from->device->index, work->name, neighbour(given, sent - 1, -1));
        }
    }
    return found;
}

static void burst_close(Burst *b)
{
    for (int s = 0; s < b->n; s++) {
        LateStream *stream = b->stream[s];
        for (int64_t i = 0; i < count_of(stream); i++) {
            late_free(work_of(stream, i));
            stream->work[stream->first + i] = NULL;
        }
        free(b->clock[s]);
        free(b->kept[s]);
        free(b->reals[s]);
    }
    free(b);
    for (int i = 0; i < late_all.memories; i++) {
        free(late_all.memory[i].before);
        free(late_all.memory[i].after);
        late_all.memory[i].before = late_all.memory[i].after = NULL;
    }
    late_all.burst = false;
}

/* Checks that, with all waits in place, every order gives the same memory as the first one. */
static bool orders_agree(Burst *b, LateVerdict *v)
{
    for (int s = -1; s < b->n; s++) {
        bool ends = replay(b, NULL, s < 0 ? NULL : b->stream[s]);
        if (s < 0) memory_keep();
        const LateMemory *m = memory_differs();
        if (ends && m == NULL) continue;
        size_t at = 0;
        while (m && m->data[at] == m->after[at])
            at++;
        snprintf(v->wrong, sizeof v->wrong,
                 "with rank %d's %s stream last: %s (%zu of %zu bytes%s)",
                 s < 0 ? 0 : b->stream[s]->device->index, s < 0 ? "no" : b->stream[s]->name,
                 ends ? "other results" : "no end", at, m ? m->bytes : 0,
                 m && m->host ? " of the host" : "");
        return false;
    }
    return true;
}

static void leave_out(Burst *b, LateStream *s, int64_t i, LateVerdict *v, const LateJury *jury)
{
    const LateWork *wait = work_of(s, i);
    const LateStream *other = wait->wait.stream;
    bool lost[MOST_STREAMS], red = false;
    const char *verdict = "covered";
    int *count = &v->covered;
    LateWait left = {.where = describe(b, s, i),
                     .stream = s->name,
                     .other = other->name,
                     .peer = other->device != s->device,
                     .site = wait->site};
    if (jury->choose && !jury->choose(jury->context, &left)) return;
    if (order_is_lost(b, wait, lost)) {
        for (int t = 0; t < b->n && !red; t++)
            red = lost[t] && (!replay(b, wait, b->stream[t]) || memory_differs() != NULL);
        verdict = red ? "red" : "harmless";
        count = red ? &v->red : &v->harmless;
    }
    ++*count;
    v->waits++;
    left.verdict = verdict;
    if (jury->tell) jury->tell(jury->context, &left);
}

LateVerdict late_burst_end(const LateJury *jury)
{
    LateVerdict v = {0};
    pthread_mutex_lock(&late_all.mutex);
    CHECK(late_all.burst, "the end of a burst that has not begun, of %d memories",
          late_all.memories);
    Burst *b = burst_open(&v);
    v.overlapping = count_overlaps(b, LATE_COMPUTE, LATE_COMM, &v);
    v.beside_tp = count_overlaps(b, LATE_COMPUTE, LATE_TP, &v);
    v.beside_p2p = count_overlaps(b, LATE_COMPUTE, LATE_P2P, &v);
    v.copies = count_overlaps(b, LATE_COPY, LATE_COMPUTE, &v);
    bool agree = orders_agree(b, &v);
    for (int n = 0; n < b->n && agree; n++) {
        LateStream *s = b->stream[n];
        int64_t from = s->device->marks > 0 ? s->mark[0] - s->first : 0;
        int64_t to = s->device->marks > 1 ? s->mark[1] - s->first : count_of(s);
        for (int64_t i = from; i < to; i++)
            if (work_of(s, i)->run == NULL && point_of(work_of(s, i)) > 0 &&
                work_of(s, i)->wait.stream != s)
                leave_out(b, s, i, &v, jury);
    }
    if (!replay(b, NULL, NULL) && v.wrong[0] == '\0')
        snprintf(v.wrong, sizeof v.wrong, "streams wait for each other for ever");
    burst_close(b);
    pthread_mutex_unlock(&late_all.mutex);
    return v;
}
