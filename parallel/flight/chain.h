/* chain.h -- what a dump shows: where a hang begins, its most probable cause, and who waits for
 * whom. */
#ifndef PARALLEL_FLIGHT_CHAIN_H
#define PARALLEL_FLIGHT_CHAIN_H

#include "parallel/flight/search.h"

typedef enum {
    CAUSE_NONE,       /* healthy: nobody waits longer than usual */
    CAUSE_UNKNOWN,    /* not found, but files of some ranks could not be read, or were left out */
    CAUSE_STOPPED,    /* a rank does not answer, or does not go on although it could */
    CAUSE_COLLECTIVE, /* ranks of a group are in different calls */
    CAUSE_DATA,       /* a rank waits for its training data */
    CAUSE_DISK,       /* a rank writes, synchronizes or reads a file */
    CAUSE_CONSOLE,    /* a rank writes to a console that nobody reads */
    CAUSE_DEVICE,     /* work of a device does not end, or a transfer between devices */
    CAUSE_COMPUTING,  /* a rank computes, and the others wait for it */
    CAUSES
} FlightCause;
extern const char *const flight_cause_name[CAUSES];

/* Ranks that wait in the same call for the same ranks. */
typedef struct {
    const RingEntry *call; /* of the first of them */
    const char *group;     /* name of its group; "" if it has none */
    int *rank, ranks;      /* ascending */
    /* The ranks that have not arrived, ascending: the CHAIN_NAMED that are furthest behind, of
     * `late`. 0: all have arrived, or they are not known. */
    int *whom, whoms, late;
    bool devices;   /* the hosts have arrived, but the devices have not */
    int depth;      /* 1: they wait for where it begins; 2: for those ... -1: for none of these */
    double seconds; /* the longest of these waits */
} ChainWait;
enum { CHAIN_NAMED = 1024 };

typedef struct {
    FlightCause cause;
    int *late, lates;    /* the ranks where it begins, ascending */
    int first;           /* the one of these that has been there for the longest; -1: none */
    const RingEntry *in; /* what this one is in; NULL: it does not answer, or it is between two
                          * entries */
    double seconds;      /* for how long; NaN: not known */
    bool circle;         /* CAUSE_COLLECTIVE: the ranks wait for each other in calls of different
                          * groups or to different ranks; else in the same group */
    int other;           /* CAUSE_COLLECTIVE, unless `circle`: a rank in another call, or -1, */
    const RingCall *late_call, *other_call; /* and the two calls */
    double waited, usual; /* the longest wait now, and the longest one that has ended */
    ChainWait *wait;      /* [waits] those nearest to where it begins first */
    int waits;
} Chain;

/* Analyses the search, which must outlive the chain; it sets its depths. */
void chain_make(Chain *chain, Search *search);
void chain_free(Chain *chain);
/* Returns for how many seconds the rank has been in this entry; NULL: between two. NaN: not known.
 */
double chain_seconds(const RingFile *ring, const RingEntry *entry);

/* Inside chain*.c: makes the list of waits, and finds calls of a group that differ. */
void chain_list_waits(Chain *chain, const Search *search);
bool chain_find_difference(Chain *chain, const Net *net);

#endif
