/* blame.h -- who keeps whom waiting: from a rank that has waited too long, the way from each wait
 * to the ranks that it is due to, until one is found that waits for nobody else.
 *
 * A transport says what it knows of its ranks in a table of three functions: in which call a rank
 * waits, who has not come to that call, and what the call is. Nothing here reads a peer's memory:
 * a transport whose ranks are processes may ask them by messages. The sentences about what is found
 * are in deadline.h. */
#ifndef PARALLEL_COMM_BLAME_H
#define PARALLEL_COMM_BLAME_H

#include "parallel/comm/comm.h"

/* Room for a call as BlameTransport.describe writes it. */
enum { BLAME_CALL_BYTES = 192 };

/* What a call lacks. */
typedef enum {
    BLAME_HOSTS,   /* hosts have not made the call */
    BLAME_DEVICES, /* all hosts have; devices have not come to it */
    BLAME_NOTHING  /* all have come, and the call does not end */
} BlameLack;

/* A rank's wait in a call. */
typedef struct {
    int rank; /* of the world: who waits */
    BlameLack lack;
    /* Ranks of the world, in the group's order: those that have not come; with BLAME_NOTHING all of
     * the group. */
    int who[COMM_MAX_RANKS], n;
    char call[BLAME_CALL_BYTES]; /* "group tp, call 7, all-reduce of 64 f32" */
} BlameWait;

/* What a transport fills in. `world` is its own, as given to blame_find; a group is a handle of its
 * own, good until blame_find returns. */
typedef struct {
    /* The group in a call of which that rank of the world waits. NULL: it waits in none. */
    const void *(*waits_in)(void *world, int rank);
    /* Fills in wait->lack, who and n for the rank's wait in that group. False: the wait has just
     * come to its end. */
    bool (*lacks)(void *world, const void *group, int rank, BlameWait *wait);
    /* Writes that call to text[0..n). */
    void (*describe)(void *world, const void *group, int rank, char *text, size_t n);
    /* Devices wait, not hosts. To ask for a device's wait may take long, so only the first rank of
     * each wait is followed; and the device of the rank that asks may itself stand in another call,
     * so that this rank may be the cause. */
    bool devices;
} BlameTransport;

/* What a wait is due to. */
typedef struct {
    enum {
        BLAME_THEMSELVES, /* a rank that the wait itself names: nothing more is known */
        BLAME_RANK,       /* `rank`, for which `by` waits in `call` */
        BLAME_CALL,       /* `by` stands in `call`, to which all have come */
        BLAME_CIRCLE      /* they wait for each other */
    } kind;
    int rank, by;
    bool device; /* BLAME_RANK: the rank's device has not come; its host has */
    char call[BLAME_CALL_BYTES];
} Blame;

/* Follows `wait`, which somebody lacks in, to its cause. */
void blame_find(const BlameTransport *transport, void *world, const BlameWait *wait, Blame *blame);
/* All ranks that keep this wait from its end: those in wait->who and whom they wait for in turn,
 * without wait->rank itself. Writes them to rank[] and returns how many there are. */
int blame_reach(const BlameTransport *transport, void *world, const BlameWait *wait,
                int rank[COMM_MAX_RANKS]);

#endif
