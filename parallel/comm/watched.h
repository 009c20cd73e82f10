/* watched.h -- groups of ranks whose calls may never end, and whose transport (NCCL's) has no
 * deadlines. The transport publishes how far each group of this process has got. The thread that
 * enforces parallel.timeout compares what all ranks have published. It belongs to this process if
 * all ranks are threads of this process. Otherwise it belongs to rank 0's process, to which another
 * transport reports the numbers (watched_report). */
#ifndef PARALLEL_COMM_WATCHED_H
#define PARALLEL_COMM_WATCHED_H

#include "parallel/comm/blame.h"
#include "parallel/comm/rank_runs.h"

#include <stdatomic.h>

typedef struct WatchedGroup WatchedGroup;

/* The members of a group, world ranks in the group's order. A group of a grid is one run of evenly
 * spaced ranks; other groups have at most WATCHED_RUNS runs. */
enum { WATCHED_RUNS = 16 };
typedef struct {
    int32_t size, runs;
    RankRun run[WATCHED_RUNS];
} WatchedMembers;
/* Returns these members as runs. Ends the program if they need more than WATCHED_RUNS. */
WatchedMembers watched_members(const int *rank, int n);

/* The state of a group on one rank, called the rank's end of the group. The transport fills in the
 * first part before it adds the group. */
struct WatchedGroup {
    uint64_t id; /* the same on all members, and different from all other groups */
    int rank;    /* this rank's number in the world */
    WatchedMembers members;
    double timeout; /* limit of each call, in seconds; 0: no limit */
    /* Writes a description of the call with this number, like BlameTransport.describe. Must not
     * block. Returns false if that is not possible at the moment. */
    bool (*describe)(WatchedGroup *group, int64_t number, char *text, size_t n);

    /* Published by the transport: how many calls the host has begun, the device has reached, and
     * the device has completed, in order of issue; and how often the transport has looked at the
     * device. It increments `looks` after the other counters. */
    _Atomic int64_t begun, reached, finished;
    _Atomic uint64_t looks;
    /* How often watched.c has not counted the time since its last check against the deadline
     * (watched_is_excused). */
    _Atomic int64_t excused;

    /* Used by watched.c, guarded by its mutex. `oldest` is the number of the oldest call that was
     * incomplete at the last check (-1: none), and `call` its description. `waited`: for how many
     * seconds it had been the oldest at the transport's last look at the device; `unseen`: the
     * seconds since then. `seen`: the value of `looks` at the last check. */
    WatchedGroup *next;
    int64_t oldest;
    char call[BLAME_CALL_BYTES];
    double waited, unseen;
    uint64_t seen;
};

/* What a rank has published about a group, in the form that is sent to other processes. */
typedef struct {
    uint64_t id;
    int32_t rank;
    WatchedMembers members;
    int64_t begun, reached, finished;
    double timeout, waited, unseen; /* as in WatchedGroup */
    double excused;                 /* seconds that do not count against the deadline; set by the
                                     * process that enforces it */
    char call[BLAME_CALL_BYTES];    /* the oldest incomplete call; "" if there is none */
} WatchedCall;

/* Start and stop watching a group. */
void watched_add(WatchedGroup *group);
void watched_remove(WatchedGroup *group);

/* Tells watched.c whether another transport reports this process's groups to rank 0, whose process
 * then enforces their deadlines. If so, the groups' own transport does not enforce them. */
void watched_report(bool on);
bool watched_is_reported(void);

/* Adds `seconds` to the waiting time of the oldest incomplete call of each group of this process.
 * Returns a group whose call has taken too long, or NULL. Makes no call that may block. */
WatchedGroup *watched_pass(double seconds);
/* Returns after how many seconds watched_pass should be called again: often enough for the shortest
 * timeout, but not more than `longest`. */
double watched_pace(double longest);
/* Copies the published state of this process's groups to call[0..room). Returns the number of
 * groups; if it is more than `room`, the last groups are not copied. */
int watched_calls(WatchedCall *call, int room);

/* Returns whether the rank is in a call, on the host or on its device, whose deadline is enforced.
 */
bool watched_holds(const WatchedCall *call);
/* The published state of the groups of all ranks. A rank that is missing here counts as one that
 * has not arrived. The calls of a rank form a linked list: first[rank] is the index of one of them,
 * next[i] the index of the one after call i; -1: none. */
typedef struct {
    const WatchedCall *call;
    int n;
    const int *first, *next;
} WatchedCalls;
/* Makes the linked lists of n calls, in a world of `ranks` ranks: in first[0..ranks) and
 * next[0..n). */
WatchedCalls watched_link(const WatchedCall *call, int n, int ranks, int *first, int *next);
/* The transport for BlameWaits.devices. Its `world` is a WatchedCalls. */
extern const BlameTransport watched_waits;
/* Returns whether time does not count against the call at the moment, because the call waits for
 * the host of the rank that prints, whose console is blocked (log_blocked). To be called in that
 * rank's process. */
bool watched_is_excused(const BlameWaits *waits, const WatchedCall *call);
/* Returns whether the call has taken too long. It may take WATCHED_STUCK seconds longer if the
 * transport no longer looks at the device because it is stuck in a query. */
bool watched_is_late(const WatchedCall *call);
enum { WATCHED_STUCK = 30 };
/* Ends the program (EXIT_HANG) because of this call, which is one of waits->devices. */
void watched_end(const BlameWaits *waits, const WatchedCall *late) __attribute__((noreturn));
/* Ends the program (EXIT_HANG) because of the oldest incomplete call of this group, in a process in
 * which all ranks are threads. */
void watched_end_own(const WatchedGroup *late) __attribute__((noreturn));

#endif
