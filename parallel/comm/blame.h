/* blame.h -- finds the rank for which the other ranks wait. Starting from a rank that has waited
 * too long, it follows each wait to the ranks that are waited for, until it finds a rank that is
 * not waiting.
 *
 * A transport describes the waits of its ranks with a table of functions (BlameTransport): which
 * group's call a rank is waiting in, which ranks have not arrived at that call, and the call as
 * text. The search itself reads no memory of other ranks, so a transport whose ranks are processes
 * can collect the waits by messages. There are two kinds of waits: hosts wait for hosts, and in
 * NCCL's calls devices wait for devices. The search follows both kinds if its caller provides both.
 * The error messages are in deadline.c. */
#ifndef PARALLEL_COMM_BLAME_H
#define PARALLEL_COMM_BLAME_H

#include "parallel/comm/comm.h"
#include "parallel/comm/rank_list.h"

/* Buffer size for a call's description as BlameTransport.describe writes it. */
enum { BLAME_CALL_BYTES = 192 };

/* Why a call does not complete. */
typedef enum {
    BLAME_HOSTS,   /* some hosts have not made the call */
    BLAME_DEVICES, /* all hosts have made it; some devices have not reached it */
    BLAME_NOTHING  /* all hosts and devices have arrived, but the call does not end */
} BlameLack;

/* One rank waiting in a collective or message call. */
typedef struct {
    int rank;     /* the rank that waits, numbered in the world */
    bool devices; /* true: it waits, with its device or with its host, in a call that devices carry
                   * (NCCL's) */
    BlameLack lack;
    /* World ranks that have not arrived, in the group's order; with BLAME_NOTHING, all ranks of the
     * group. There is room for all ranks of the world. */
    int *who, n;
    bool alike;                  /* every rank that waits in this call waits for the same ranks
                                  * (BlameTransport.key) */
    char call[BLAME_CALL_BYTES]; /* description, for example "group tp, call 7, all-reduce of 64
                                  * f32" */
    RankHosts hosts;             /* names of the ranks' machines, for messages */
} BlameWait;

/* The functions that a transport provides. `world` is BlameWaits' pointer. A group is an opaque
 * pointer of the transport, valid until the search returns. */
typedef struct {
    /* Returns the group in whose call this world rank is waiting, or NULL if it is not waiting. */
    const void *(*waits_in)(void *world, int rank);
    /* Fills in wait->lack, wait->who and wait->n for the rank's wait in that group, and sets
     * wait->alike if all ranks that wait in this call wait for the same ranks. Returns false if the
     * wait has ended meanwhile. */
    bool (*lacks)(void *world, const void *group, int rank, BlameWait *wait);
    /* Returns a number that identifies the call in which the rank waits, the same for all ranks
     * that wait in it; 0: the call has no number. If they all wait for the same ranks
     * (wait->alike), a search calls `lacks` for only one of them. Without such numbers it would
     * check all members of a group once for each member. May be NULL. */
    uint64_t (*key)(void *world, const void *group, int rank);
    /* Writes a description of the call in which the rank waits to text[0..n). */
    void (*describe)(void *world, const void *group, int rank, char *text, size_t n);
} BlameTransport;

/* Memory for searches, so that they allocate nothing. One search at a time may use it. */
typedef struct BlameRoom BlameRoom;
/* Creates the memory for searches among `ranks` ranks, at most COMM_MAX_RANKS. */
BlameRoom *blame_room_create(int ranks);
void blame_room_destroy(BlameRoom *room);
/* Returns the room's array of ranks. The caller of a search uses it as `who` of the wait with which
 * the search begins. */
int *blame_room_who(BlameRoom *room);

/* The waits of all ranks. If the waits of hosts or those of devices are not known, their transport
 * is NULL.
 *
 * If devices wait for several ranks, a search follows only the first of them. A search that begins
 * with a wait of devices may find that the rank where it began is the cause, because its device may
 * be busy in another call. */
typedef struct {
    BlameRoom *room;
    RankHosts names; /* of the ranks' machines */
    struct {
        const BlameTransport *transport;
        void *world;
    } hosts,     /* the calls in which hosts wait */
        devices; /* the calls in which devices wait (NCCL's) */
} BlameWaits;

/* The cause of a wait. */
typedef struct {
    enum {
        BLAME_THEMSELVES, /* a rank in the given wait's `who`: the search has found out nothing
                           * more */
        BLAME_RANK,       /* `rank`, which `by` waits for in `call` */
        BLAME_CALL,       /* `by` is inside `call`, at which all ranks have arrived */
        BLAME_CIRCLE      /* the ranks wait for each other */
    } kind;
    int rank, by;
    bool device; /* of BLAME_RANK: the rank's device has not arrived, although its host has */
    char call[BLAME_CALL_BYTES];
} Blame;

/* Follows `wait` to its cause and describes it in *blame. wait->lack must not be BLAME_NOTHING. */
void blame_find(const BlameWaits *waits, const BlameWait *wait, Blame *blame);
/* Finds all ranks that keep this wait from ending: those in wait->who, and the ranks that they wait
 * for in turn, but not the host of wait->rank. Sets *rank to a list of these ranks in waits->room,
 * which the next search overwrites, and returns their number. */
int blame_reach(const BlameWaits *waits, const BlameWait *wait, const int **rank);
/* Returns whether `rank` is the only cause of the wait: every other rank that is waited for,
 * directly or indirectly, waits in turn for `rank`. If wait->devices, it is enough that the host of
 * `rank` has not arrived. wait->lack must not be BLAME_NOTHING. */
bool blame_only(const BlameWaits *waits, const BlameWait *wait, int rank);

#endif
