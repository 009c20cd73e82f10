/* chain.h -- what a dump shows: where a hang begins, its most probable cause, and who waits for
 * whom. */
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
    CAUSE_DEVICE,     /* work of a device does not end, or a transfer between devices */
    CAUSE_COMPUTING,  /* a rank computes, and the others wait for it */
    CAUSES
} FlightCause;
extern const char *const flight_cause_name[CAUSES];

/* Ranks that wait in the same call for the same ranks. */
typedef struct {
    const RingEntry *call; /* the call of the first of them */
    const char *group;     /* name of its group; "" if it has none */
    int *rank, ranks;      /* ascending */
    /* The ranks that have not arrived, ascending: all `late` of them, or the CHAIN_NAMED that are
     * furthest behind. 0: all have arrived, or the ranks are not known. */
    int *whom, whoms, late;
    bool devices;   /* the hosts have arrived, but the devices have not */
    int depth;      /* 1: they wait for ranks where the hang begins; 2: for ranks of depth 1; ...
                     * -1: for none of these */
    double seconds; /* the longest of these waits */
} ChainWait;
enum { CHAIN_NAMED = 1024 };

typedef struct {
    FlightCause cause;
    int *late, lates;    /* the ranks where it begins, ascending */
    int first;           /* the one of these that has been in its entry for the longest time; -1:
                          * none */
    const RingEntry *in; /* the entry that `first` is in; NULL: it has no file, or is between two
                          * entries */
    double seconds;      /* how long it has been there; NaN: not known */
    bool circle;         /* CAUSE_COLLECTIVE: the ranks wait for each other in a cycle, in calls of
                          * different groups or with different ranks; false: they are in different
                          * calls of one group */
    int other;           /* CAUSE_COLLECTIVE without `circle`: a rank in a different call, or -1; */
    const RingCall *late_call, *other_call; /* the calls of `first` and `other` */
    double waited, usual; /* the longest wait now, and the longest one that has ended */
    ChainWait *wait;      /* [waits] those nearest to where it begins first */
    int waits;
} Chain;

/* Finds the cause, and sets the depths of the search, which must outlive the chain. */
void chain_make(Chain *chain, Search *search);
void chain_free(Chain *chain);
/* Returns for how many seconds the rank has been in this entry, or between two entries if it is
 * NULL. NaN: not known. */
double chain_seconds(const RingFile *ring, const RingEntry *entry);

/* Inside chain*.c: makes the list of waits, and finds calls of a group that differ. */
void chain_list_waits(Chain *chain, const Search *search);
bool chain_find_difference(Chain *chain, const Net *net);

#endif
