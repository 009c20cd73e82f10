/* front.h -- finds which of the entries in a rank's file its host and the streams of its device are
 * executing. */
#ifndef PARALLEL_FLIGHT_FRONT_H
#define PARALLEL_FLIGHT_FRONT_H

#include "parallel/flight/ring.h"

/* The entries that a rank is executing. n = 0: its host is between two entries. */
enum { FRONT_MOST = FLIGHT_STREAMS * RING_FIRST };
typedef struct {
    const RingEntry *entry[FRONT_MOST]; /* in ascending order of their streams */
    int n;
} Front;

/* Finds the entries that the rank's host (or, if `device`, its device) is executing. If the host
 * waits for its device, finds the device's entries instead. If a stream waits for another stream,
 * finds the other stream's entries instead. */
void front_find(const RingFile *ring, bool device, Front *front);
/* Returns whether an unfinished entry is being executed: its host or stream has reached it, and is
 * not still in an earlier entry. */
bool front_is_at(const RingFile *ring, const RingEntry *entry);
/* Returns whether the rank's host continues while its device works. */
bool front_is_asynchronous(const RingFile *ring);
/* Returns whether the entry is a collective or a message. */
static inline bool front_is_call(const RingEntry *entry)
{
    return entry->kind == FLIGHT_COLLECTIVE || entry->kind == FLIGHT_EXCHANGE;
}

#endif
