/* exposed.c -- records pairs of events in a ring. The oldest pair is read when its slot is
 * needed. */
#include "parallel/comm/exposed.h"

#include "model/core/check.h"

#include <stdlib.h>

enum { PAIRS = 512 };

const char *const exposed_axis_name[EXPOSED_AXES] = {
    [EXPOSED_DP] = "dp", [EXPOSED_TP] = "tp", [EXPOSED_PP] = "pp", [EXPOSED_HOST] = "host"};

typedef struct {
    Event before, after;
} Pair;

struct Exposed {
    Device *dev;
    Pair pair[PAIRS];
    int64_t begun, read; /* pairs started and pairs read; pair number i uses slot i % PAIRS */
    double seconds;      /* sum over the pairs read since the last exposed_take */
    bool on, inside;
};

Exposed *exposed_create(Device *dev)
{
    Exposed *e = must_calloc(1, sizeof *e);
    e->dev = dev;
    /* An event is created by its first record. Record all now, so that no training step creates
     * one. */
    for (int i = 0; i < PAIRS; i++) {
        device_event_record_timed(dev, &e->pair[i].before);
        device_event_record_timed(dev, &e->pair[i].after);
    }
    return e;
}

void exposed_destroy(Exposed *e)
{
    if (e == NULL) return;
    for (int i = 0; i < PAIRS; i++) {
        device_event_destroy(e->dev, &e->pair[i].before);
        device_event_destroy(e->dev, &e->pair[i].after);
    }
    free(e);
}

void exposed_measure(Exposed *e, bool on)
{
    CHECK(!e->inside, "a wait is under way, of %lld", (long long)e->begun);
    e->on = on;
}

static void read_oldest(Exposed *e)
{
    Pair *pair = &e->pair[e->read++ % PAIRS];
    e->seconds += device_event_seconds(e->dev, &pair->before, &pair->after);
}

void exposed_begin(Exposed *e)
{
    if (e == NULL || !e->on) return;
    /* Nested waits would be counted twice. */
    CHECK(!e->inside, "wait %lld begins inside another", (long long)e->begun);
    /* The slot of the oldest pair is needed again. That pair is complete unless the device is PAIRS
     * waits behind, so reading it rarely blocks. */
    if (e->begun - e->read == PAIRS) read_oldest(e);
    device_event_record_timed(e->dev, &e->pair[e->begun % PAIRS].before);
    e->inside = true;
}

void exposed_end(Exposed *e)
{
    if (e == NULL || !e->on) return;
    CHECK(e->inside, "wait %lld ends that has not begun", (long long)e->begun);
    device_event_record_timed(e->dev, &e->pair[e->begun++ % PAIRS].after);
    e->inside = false;
}

double exposed_take(Exposed *e)
{
    /* This waits for the device. That is acceptable, because it is called rarely, and the report
     * must include the last step's waits. */
    while (e->read < e->begun)
        read_oldest(e);
    double seconds = e->seconds;
    e->seconds = 0;
    return seconds;
}
