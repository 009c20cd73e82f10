/* front.h -- what a rank is in, by its ring: the entries at which its host and the streams of its
 * device stand. */
#ifndef PARALLEL_FLIGHT_FRONT_H
#define PARALLEL_FLIGHT_FRONT_H

#include "parallel/flight/ring.h"

/* The entries at which a rank stands. None: its host is between two entries. */
enum { FRONT_MOST = FLIGHT_STREAMS * RING_FIRST };
typedef struct {
    const RingEntry *entry[FRONT_MOST]; /* in ascending order of their streams */
    int n;
} Front;

/* Finds what keeps the rank's host (or, if `device`, its device) from going on. A host that waits
 * for its device stands where the device does. A stream that waits for another one stands where
 * that one does. */
void front_find(const RingFile *ring, bool device, Front *front);
/* Returns whether the host, or the stream, that carries the unfinished entry stands at it. */
bool front_is_at(const RingFile *ring, const RingEntry *entry);
/* Returns whether the rank's host goes on while its device works. */
bool front_is_asynchronous(const RingFile *ring);
/* Returns whether it is a collective or a message. */
static inline bool front_is_call(const RingEntry *entry)
{
    return entry->kind == FLIGHT_COLLECTIVE || entry->kind == FLIGHT_EXCHANGE;
}

#endif
