/* front.c -- see front.h. */
#include "parallel/flight/front.h"

#include <string.h>

/* Returns the first unfinished entry of the stream, or NULL. */
static const RingEntry *first_of(const RingFile *ring, int stream)
{
    for (int i = 0; i < ring->opens; i++)
        if (ring->open[i].stream == stream) return &ring->open[i];
    return NULL;
}

bool front_is_at(const RingFile *ring, const RingEntry *entry)
{
    /* The host is in all of its unfinished entries, because each encloses the next. */
    const RingEntry *first = first_of(ring, entry->stream);
    if (entry->stream == FLIGHT_HOST || first == entry) return true;
    if (first->kind != FLIGHT_EXCHANGE || entry->kind != FLIGHT_EXCHANGE) return false;
    /* Messages that were issued as one group of calls have consecutive numbers, and the stream
     * executes all of them at the same time. */
    for (const RingEntry *e = first + 1; e <= entry; e++)
        if (e->n != e[-1].n + 1 || e->stream != entry->stream) return false;
    return true;
}

bool front_is_asynchronous(const RingFile *ring)
{
    int busy = 0;
    for (int i = 0; i < ring->opens; i++) {
        const RingEntry *e = &ring->open[i];
        if (e->kind == FLIGHT_WAIT) return true;
        busy += e->stream != FLIGHT_HOST && e->kind != FLIGHT_EXCHANGE;
    }
    /* A synchronous device, whose calls are complete when they return, has one unfinished entry at
     * a time, or several messages that are carried out together. If more entries are unfinished,
     * the host has continued while the device works. */
    return busy > 1;
}

/* Returns the stream that the entry waits for; FLIGHT_HOST: all streams of the device. */
static int awaited(const RingEntry *wait)
{
    for (int s = 0; s < GRAPH_STREAMS; s++)
        if (strcmp(wait->name, flight_wait_name[s]) == 0) return s;
    return FLIGHT_HOST;
}

static void add(Front *front, const RingEntry *entry)
{
    for (int i = 0; i < front->n; i++)
        if (front->entry[i] == entry) return;
    if (front->n < FRONT_MOST) front->entry[front->n++] = entry;
}

/* Adds the entry that the stream is executing. If that is a wait for another stream, adds the other
 * stream's entry instead. */
static void add_stream(const RingFile *ring, int stream, Front *front)
{
    const RingEntry *at = first_of(ring, stream);
    bool passed[FLIGHT_STREAMS] = {false};
    while (at && at->kind == FLIGHT_WAIT && !passed[at->stream]) {
        passed[at->stream] = true;
        int next = awaited(at);
        const RingEntry *there = next == FLIGHT_HOST ? NULL : first_of(ring, next);
        if (there == NULL) break;
        at = there;
    }
    if (at == NULL) return;
    add(front, at);
    const RingEntry *end = ring->open + ring->opens;
    for (const RingEntry *e = at + 1; e < end && e->stream == at->stream && front_is_at(ring, e);
         e++)
        add(front, e);
}

/* Adds the entries that the device's streams are executing. `wait`: an entry that waits for one
 * stream; only the entries of that stream are added. If it is NULL, or waits for the whole device,
 * those of all streams are. */
static void add_device(const RingFile *ring, const RingEntry *wait, Front *front)
{
    int only = wait ? awaited(wait) : FLIGHT_HOST;
    for (int s = 0; s < GRAPH_STREAMS; s++)
        if (only == FLIGHT_HOST || only == s) add_stream(ring, s, front);
}

void front_find(const RingFile *ring, bool device, Front *front)
{
    const RingEntry *host = NULL;
    bool after = false; /* an unfinished entry of the device was issued after `host` */
    front->n = 0;
    for (int i = 0; i < ring->opens; i++) {
        const RingEntry *e = &ring->open[i];
        if (e->stream == FLIGHT_HOST) host = e;
        after = e->stream != FLIGHT_HOST && host != NULL;
    }
    if (device) add_device(ring, NULL, front);
    if (front->n > 0) return;
    if (host == NULL || host->kind == FLIGHT_WAIT || (host->kind == FLIGHT_WORK && after))
        add_device(ring, host && host->kind == FLIGHT_WAIT ? host : NULL, front);
    if (front->n > 0 || host == NULL) return;
    add(front, host);
    /* Adds the host's other messages that were issued as one group of calls with this one. */
    for (const RingEntry *e = host; host->kind == FLIGHT_EXCHANGE && e-- > ring->open;) {
        if (e->kind != FLIGHT_EXCHANGE || e->stream != FLIGHT_HOST) break;
        add(front, e);
    }
}
