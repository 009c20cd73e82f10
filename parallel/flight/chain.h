/* chain.h -- what a dump of the flight recorders shows: where a hang begins, its most probable
 * cause, and who waits for whom. Below, an entry is something that a recorder has recorded: an op,
 * copy, wait, communication call, or other work (flight.h). */
#ifndef PARALLEL_FLIGHT_CHAIN_H
#define PARALLEL_FLIGHT_CHAIN_H

#include "parallel/flight/search.h"

typedef enum {
    CAUSE_NONE,       /* healthy: nobody waits longer than usual */
    CAUSE_UNKNOWN,    /* not found, but files of some ranks could not be read, or were left out */
    CAUSE_STOPPED,    /* a rank has written no file, or stays in a call that the others have
                       * finished */
    CAUSE_COLLECTIVE, /* ranks of a group are in different calls */
    CAUSE_DATA,       /* a rank waits for its training data */
    CAUSE_DISK,       /* a rank writes, synchronizes or reads a file */
    CAUSE_CONSOLE,    /* a rank writes to a console that nobody reads */
    CAUSE_DEVICE,     /* a device does not finish its work or a transfer */
    CAUSE_COMPUTING,  /* a rank computes, and the others wait for it */
    CAUSES
} FlightCause;
extern const char *const flight_cause_name[CAUSES];

/* Ranks that wait in the same call for the same ranks. */
typedef struct {
    const RingEntry *call; /* the call, as the first of these ranks has recorded it */
    const char *group;     /* name of the call's group; "" if it has none */
    int *rank, ranks;      /* the ranks that wait, ascending */
    /* `late` is the number of ranks that have not arrived; 0: all have arrived, or the ranks are
     * not known. whom[0..whoms) are these ranks in ascending order; if there are more than
     * CHAIN_NAMED, only those that have made the least progress. */
    int *whom, whoms, late;
    bool devices; /* true: the hosts of the awaited ranks have made the call, but their devices have
                     not arrived at it */
    int depth;    /* 1: the ranks wait for ranks where the hang begins; 2: for ranks of depth 1; ...
                     -1: they do not wait for such ranks, directly or indirectly */
    double seconds; /* the longest of these waits */
} ChainWait;
enum { CHAIN_NAMED = 1024 };

typedef struct {
    FlightCause cause;
    int *late, lates; /* the ranks where the hang begins, ascending */
    int first; /* the rank of `late` that has been in its entry for the longest time; -1: none */
    const RingEntry *in; /* the entry that `first` is in; NULL: it has no file, or is between two
                          * entries */
    double seconds;      /* how long `first` has been there; NaN: not known */
    /* Used only with CAUSE_COLLECTIVE. True if the ranks wait for each other in a cycle, in calls
     * of different groups or with different ranks. False if they are in different calls of one
     * group. */
    bool circle;
    int other; /* with CAUSE_COLLECTIVE and `circle` false: a rank that is in a different call than
                  `first`; otherwise -1 */
    const RingCall *late_call, *other_call; /* the calls of `first` and `other` */
    /* Seconds of the longest wait now, and of the longest one that has ended. */
    double waited, usual;
    ChainWait *wait; /* [waits] those nearest to where the hang begins come first */
    int waits;
} Chain;

/* Finds the cause of a hang, and sets the depths of the search, which must outlive the chain. */
void chain_make(Chain *chain, Search *search);
void chain_free(Chain *chain);
/* Returns for how many seconds the rank has been in this entry or, if `entry` is NULL, between two
 * entries. NaN: not known. */
double chain_seconds(const RingFile *ring, const RingEntry *entry);

/* Only for chain*.c. chain_list_waits makes the list of waits. chain_find_difference returns
 * whether ranks of a group have made different calls with the same number; if so, it sets the cause
 * and the late ranks. */
void chain_list_waits(Chain *chain, const Search *search);
bool chain_find_difference(Chain *chain, const Net *net);

#endif
