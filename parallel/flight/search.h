/* search.h -- who waits for whom: follows each rank's calls to the ranks that have not arrived at
 * them. The hosts and the devices of ranks are told apart: a call waits for a host that has not
 * made it, or else for a device that has not reached it. */
#ifndef PARALLEL_FLIGHT_SEARCH_H
#define PARALLEL_FLIGHT_SEARCH_H

#include "parallel/flight/front.h"
#include "parallel/flight/net.h"

/* A rank's host (number 2 x rank) or device (2 x rank + 1). */
typedef struct {
    const RingEntry *in; /* what it is in: the call in which it waits, or else the first entry at
                          * which it stands; NULL: nothing is known, or it is between two entries */
    bool looked;         /* `in` and `waits` are known */
    bool wanted;         /* somebody waits for it */
    bool waits;          /* it waits for somebody, or in a call whose ranks are not known */
    int depth; /* how many waits lead from it to where the search began backwards; -1: none do */
} SearchNode;

/* A call in which a node waits. */
typedef struct {
    int node;
    const RingEntry *call;
    int group; /* index in the net, for a collective: waits for its first members */
    bool here; /* by_here, whose devices have not arrived; else by_begun */
    int behind;
    int64_t key; /* for members with smaller numbers than this one */
    int peer;    /* of a message: the node that it waits for; else -1 */
} SearchLink;

typedef struct {
    const Net *net;
    SearchNode *node; /* [2 x ranks] */
    SearchLink *link; /* in the order of their groups (here or not), then peers */
    int links;
} Search;

/* Follows the waits of all ranks that were read. The net must outlive the search. The work grows
 * with the sizes of all groups, whatever the number of ranks that wait in them. */
void search_make(Search *search, const Net *net);
void search_free(Search *search);
/* Sets the depths: 0 for nodes[0..n), 1 for what waits for them, and so on. Once. */
void search_depths(Search *search, const int *nodes, int n);

#endif
