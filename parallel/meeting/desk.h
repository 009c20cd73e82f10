/* desk.h -- inside parallel/meeting: the desk, rank 0's list of the ranks that have arrived, and
 * what rank 0 decides from it. The desk uses no sockets and no clock, so a test can simulate the
 * arrival of thousands of ranks. The work for one rank does not grow with the number of ranks. */
#ifndef PARALLEL_MEETING_DESK_H
#define PARALLEL_MEETING_DESK_H

#include "parallel/meeting/message.h"

typedef enum {
    DESK_WAITS,  /* waits for ranks to arrive */
    DESK_TABLES, /* all have arrived, and are being sent the table of members */
    DESK_MET,    /* all have the table */
    DESK_FAILED  /* verdict says why */
} DeskState;

typedef struct {
    bool here, ready, told;  /* here: it has arrived; ready: it has the table of members, and has
                                passed it on; told: the verdict was sent to it */
    int machine, local_rank; /* local_rank: from the launcher, or -1 */
    Address address;
} DeskRank;

typedef struct {
    char host[MEETING_NAME_BYTES], boot[MEETING_NAME_BYTES];
    int ranks;  /* number of ranks on it */
    int number; /* its number in the table of members: in the order of the machines' lowest ranks */
    bool told;  /* true: the local ranks that the launcher gave to its ranks are 0, 1, ... in some
                   order, so they are used */
} DeskMachine;

/* The largest number of different values of a fact that are counted separately. */
enum { DESK_VALUES = 4 };
typedef struct {
    char text[MEETING_FACT_BYTES];
    int ranks, first; /* how many ranks have this value, and the lowest of them */
} DeskValue;
typedef struct {
    int values;
    DeskValue value[DESK_VALUES];
} DeskFact;

typedef struct {
    const MeetingOptions *o;
    DeskState state;
    Verdict verdict;
    double began, limit, next_notice,
        odd_since; /* odd_since: when a fact was first found to differ; -1: none */
    int here, ready, machines, slots, cpu_level;
    DeskRank *rank;       /* [size] */
    DeskMachine *machine; /* [machines], in the order of arrival */
    int *slot;            /* [slots], hash table of machines: index + 1, or 0 */
    DeskFact fact[MEETING_MOST_FACTS];
} Desk;

void desk_open(Desk *d, const MeetingOptions *o, double now);
void desk_close(Desk *d);
/* Records the greeting of a rank that has proven that it knows the secret. Rank 0's own greeting
 * comes first. */
void desk_greet(Desk *d, const Greeting *g, double now);
/* Records that a rank has received the table and passed it on. */
void desk_ready(Desk *d, int rank);
/* Lets the meeting fail because the connection of a rank that has arrived was closed. */
void desk_lost(Desk *d, int rank);
/* Lets the meeting fail for the reason that a rank has reported. */
void desk_report(Desk *d, int rank, const Verdict *v);
/* Lets the meeting fail for another reason. Does nothing if it has failed already. */
void desk_fail(Desk *d, ExitCode code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Applies the time limits. Returns the time at which it must be called again. If ranks are missing
 * and it is time to report this, writes the notice to notice[0..n), otherwise "". */
double desk_tick(Desk *d, double now, char *notice, size_t n);
/* Fills in the table of members. The state must be DESK_TABLES, and desk->rank[].address must be
 * set for all ranks. */
void desk_table(Desk *d, Table *t);

/* Writes which ranks have not arrived (or, if `ready`, have no table), as "ranks 3, 5-7 (node2), 9
 * (node3)". */
const char *desk_missing(const Desk *d, bool ready, char *text, size_t n);

#endif
