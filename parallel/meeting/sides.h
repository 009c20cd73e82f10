/* sides.h -- inside parallel/meeting: the two sides of a meeting: rank 0, and the other ranks. */
#ifndef PARALLEL_MEETING_SIDES_H
#define PARALLEL_MEETING_SIDES_H

#include "parallel/meeting/rendezvous.h"

enum {
    /* The most connections whose other side has not yet proven that it knows the secret; a new one
     * replaces the oldest. */
    MEETING_MOST_PENDING = 256
};
/* Seconds within which the other side of a connection must prove that it knows the secret. */
#define MEETING_PENDING_SECONDS 5.0

/* Holds the meeting on rank 0: listens until all ranks have met. On failure returns false and fills
 * in the verdict. */
bool host_hold(Meeting *m, const MeetingOptions *o, Verdict *v);
/* Holds the meeting on another rank: finds rank 0 and follows its messages. On failure returns
 * false and fills in the verdict. */
bool guest_hold(Meeting *m, const MeetingOptions *o, Verdict *v);

/* Finds rank 0 and returns a connection on which both sides have proven the secret, or -1 and fills
 * in the verdict. */
int guest_find(const MeetingOptions *o, double limit, Verdict *v);

/* On rank 0: checks whether another rank 0 of this meeting is waiting at these addresses. If so,
 * tells the other one, returns true and fills in the verdict with which both end. `own`: one of
 * this rank 0's addresses. */
bool guest_finds_twin(const MeetingOptions *o, const Rendezvous *at, const Address *own,
                      Verdict *v);

/* Fills in the greeting of this process. `address`: of its listening socket. */
void greeting_own(Greeting *g, const MeetingOptions *o, const Address *address);
/* Returns a hash of the meeting's name, for handshake_name. */
uint64_t meeting_tag(const MeetingOptions *o);
/* Sets m->member and m->machines from the table. */
void meeting_fill(Meeting *m, const Table *t);
bool verdict_set(Verdict *v, ExitCode code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* sets *v; always returns false */

#endif
