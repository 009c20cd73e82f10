/* front.h -- finds in a rank's file the entries that its host and the streams of its device are
 * in. */
#ifndef PARALLEL_FLIGHT_FRONT_H
#define PARALLEL_FLIGHT_FRONT_H

#include "parallel/flight/ring.h"

/* The entries that a rank is in. None: its host is between two entries. */
enum { FRONT_MOST = FLIGHT_STREAMS * RING_FIRST };
typedef struct {
    const RingEntry *entry[FRONT_MOST]; /* in ascending order of their streams */
    int n;
} Front;

/* Finds the entries that the rank's host (or, if `device`, its device) is in. If the host waits for
 * its device, these are the device's entries. If a stream waits for another stream, these are the
 * other stream's. */
void front_find(const RingFile *ring, bool device, Front *front);
/* Returns whether the host or the stream that carries the unfinished entry is in it, and not still
 * in an earlier one. */
bool front_is_at(const RingFile *ring, const RingEntry *entry);
/* Returns whether the rank's host continues while its device works. */
bool front_is_asynchronous(const RingFile *ring);
/* Returns whether the entry is a collective or a message. */
static inline bool front_is_call(const RingEntry *entry)
{
    return entry->kind == FLIGHT_COLLECTIVE || entry->kind == FLIGHT_EXCHANGE;
}

#endif
