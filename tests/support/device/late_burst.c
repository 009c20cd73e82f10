/* late_burst.c -- a burst of the late device's work done again and again, in other orders and with
 * waits left out, from the same memory. See late_device.h. */
#include "tests/support/device/late_inside.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = 64 };

typedef struct {
    LateStream *stream[MOST_STREAMS]; /* that have work */
    int n;
    /* clock[s] + i * n + t: of stream t, how many works of the burst are done for certain when
     * stream s has done i of its own. reals[t][c]: how many of the first c are no waits. */
    int64_t *clock[MOST_STREAMS], *kept[MOST_STREAMS], *reals[MOST_STREAMS];
    char text[256];
} Burst;

/* ---- the program ----------------------------------------------------------------------------- */

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

/* The point that a wait is for, as a number of works of the burst; 0 or less: done before it. */
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

/* "rank 0 comm between copy and sum, for rank 1 compute after fill" */
static const char *describe(Burst *b, const LateStream *s, int64_t i)
{
    const LateWork *wait = work_of(s, i);
    const LateStream *other = wait->wait.stream;
    snprintf(b->text, sizeof b->text, "rank %d %s between %s and %s, for rank %d %s after %s",
             s->device->index, s->name, neighbour(s, i, -1), neighbour(s, i, 1),
             other->device->index, other->name, neighbour(other, point_of(wait) - 1, -1));
    return b->text;
}

/* ---- doing it -------------------------------------------------------------------------------- */

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

/* The first memory that is not as it should end, or NULL. */
static const LateMemory *memory_differs(void)
{
    for (int i = 0; i < late_all.memories; i++) {
        const LateMemory *m = &late_all.memory[i];
        if (m->before && memcmp(m->data, m->after, m->bytes) != 0) return m;
    }
    return NULL;
}

/* Does the stream's next work if it may; false if it has none or must wait. */
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

/* All of it from the memory that it began with; `last`, if any, does a piece of work only where no
 * other stream can. False when no stream can go on. */
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

/* ---- what is ordered ------------------------------------------------------------------------- */

/* Fills in the clocks of stream s after its work i - 1, if those that it needs are there. */
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

/* Of which streams some work need no longer be done before some other work once the wait is left
 * out; false: of none. */
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

/* ---- beginning and end ----------------------------------------------------------------------- */

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
    /* Nothing has run: device memory is as at the beginning, and the host has written what it
     * gives to the device. */
    for (int i = 0; i < late_all.memories; i++) {
        LateMemory *m = &late_all.memory[i];
        if (m->host && !m->copied) continue; /* nothing but copies reaches it */
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

/* Counts work of the compute streams that may run while their device's stream `which` still has
 * what it was given earlier. */
static int count_overlaps(Burst *b, int which, LateVerdict *v)
{
    int found = 0;
    for (int s = 0; s < b->n; s++) {
        LateStream *compute = b->stream[s], *streams = compute->device->stream;
        const LateStream *given = &streams[which];
        int other = number_of(b, given);
        if (compute != &streams[LATE_COMPUTE] || other == b->n) continue;
        for (int64_t i = 0; i < count_of(compute); i++) {
            const LateWork *work = work_of(compute, i);
            int64_t sent = work->sent[which] - given->first;
            if (work->run == NULL || b->kept[s][i * b->n + other] >= sent) continue;
            if (found++ == 0 && which == LATE_COMM)
                snprintf(v->overlap, sizeof v->overlap, "rank %d: %s before all of comm after %s",
                         compute->device->index, work->name, neighbour(given, sent - 1, -1));
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

/* With every wait in place all orders end in the same memory, that of the first. */
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
    v.overlapping = count_overlaps(b, LATE_COMM, &v);
    v.beside_tp = count_overlaps(b, LATE_TP, &v);
    v.beside_p2p = count_overlaps(b, LATE_P2P, &v);
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
