/* exposed.c -- see exposed.h. Pairs are a ring: the oldest one is read when its place is needed. */
#include "parallel/comm/exposed.h"

#include "model/core/check.h"

#include <stdlib.h>

enum { PAIRS = 512 };

const char *const exposed_axis_name[EXPOSED_AXES] = {
    [EXPOSED_DP] = "dp", [EXPOSED_TP] = "tp", [EXPOSED_PP] = "pp"};

typedef struct {
    Event before, after;
} Pair;

struct Exposed {
    Device *dev;
    Pair pair[PAIRS];
    int64_t begun, read; /* pairs; number i is in place i % PAIRS */
    double seconds;      /* of those read, since they were last taken */
    bool on, inside;
};

Exposed *exposed_create(Device *dev)
{
    Exposed *e = must_calloc(1, sizeof *e);
    e->dev = dev;
    /* The first record makes an event, and a step must not make any. */
    for (int i = 0; i < PAIRS; i++) {
        device_event_record(dev, &e->pair[i].before);
        device_event_record(dev, &e->pair[i].after);
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
    /* Its place is needed. The device is through with it unless it is PAIRS waits late. */
    if (e->begun - e->read == PAIRS) read_oldest(e);
    device_event_record(e->dev, &e->pair[e->begun % PAIRS].before);
    e->inside = true;
}

void exposed_end(Exposed *e)
{
    if (e == NULL || !e->on) return;
    CHECK(e->inside, "wait %lld ends that has not begun", (long long)e->begun);
    device_event_record(e->dev, &e->pair[e->begun++ % PAIRS].after);
    e->inside = false;
}

double exposed_take(Exposed *e)
{
    /* Waits for the device: a report is rare, and must not leave out the last step's waits. */
    while (e->read < e->begun)
        read_oldest(e);
    double seconds = e->seconds;
    e->seconds = 0;
    return seconds;
}
