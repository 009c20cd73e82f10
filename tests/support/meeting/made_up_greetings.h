/* made_up_greetings.h -- ranks that greet rank 0's desk, for tests of parallel/meeting without
 * processes. Eight ranks are on each machine: "node0", "node1", ... */
#ifndef TESTS_SUPPORT_MEETING_MADE_UP_GREETINGS_H
#define TESTS_SUPPORT_MEETING_MADE_UP_GREETINGS_H

#include "parallel/meeting/desk.h"

enum { RANKS_PER_MACHINE = 8 };

/* Options of rank 0: a timeout of 60 s, CPU level 9, the facts "version" and "config". */
MeetingOptions made_up_options(int size);
/* The greeting of a rank that agrees with these options; its CPU level is 4. */
void made_up_greeting(Greeting *g, int rank, int size);
/* Lets the rank arrive. */
void made_up_arrival(Desk *d, int rank, double now);

#endif
