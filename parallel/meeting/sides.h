/* sides.h -- inside parallel/meeting: the two sides of a meeting. */
#ifndef PARALLEL_MEETING_SIDES_H
#define PARALLEL_MEETING_SIDES_H

#include "parallel/meeting/rendezvous.h"

enum {
    /* Connections that have not yet shown who they are; the oldest makes room for a new one. */
    MEETING_MOST_PENDING = 256
};
/* Such a connection has so many seconds to show it. */
#define MEETING_PENDING_SECONDS 5.0

/* Rank 0: listens, until all have met. Returns false and fills in the verdict. */
bool host_hold(Meeting *m, const MeetingOptions *o, Verdict *v);
/* The other ranks: find rank 0 and do what it says. */
bool guest_hold(Meeting *m, const MeetingOptions *o, Verdict *v);

/* Finds rank 0 and returns a connection on which both sides have proven the secret, or -1 and fills
 * in the verdict. */
int guest_find(const MeetingOptions *o, double limit, Verdict *v);

/* In rank 0: looks whether another rank 0 of this meeting waits at these addresses. If so, tells it
 * that it is not alone, returns true and fills in the verdict that both end with. `own`: one of
 * this rank 0's addresses. */
bool guest_finds_twin(const MeetingOptions *o, const Rendezvous *at, const Address *own,
                      Verdict *v);

/* The greeting of this process, whose listening socket has this address. */
void greeting_own(Greeting *g, const MeetingOptions *o, const Address *address);
/* A number of the meeting's name, for handshake_name. */
uint64_t meeting_tag(const MeetingOptions *o);
/* Sets the members and the number of machines. */
void meeting_fill(Meeting *m, const Table *t);
bool verdict_set(Verdict *v, ExitCode code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* returns false */

#endif
