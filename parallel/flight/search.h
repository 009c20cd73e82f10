/* search.h -- who waits for whom: follows each rank's calls to the ranks that have not arrived at
 * them. A rank's host and its device are separate nodes: a call waits for a host that has not made
 * it, or else for a device that has not reached it. */
#ifndef PARALLEL_FLIGHT_SEARCH_H
#define PARALLEL_FLIGHT_SEARCH_H

#include "parallel/flight/front.h"
#include "parallel/flight/net.h"

/* A node of the search: a rank's host (node 2 x rank) or device (node 2 x rank + 1). */
typedef struct {
    const RingEntry *in; /* the call in which it waits, or else the first entry that it is in; NULL:
                          * nothing is known, or it is between two entries */
    bool looked;         /* `in` and `waits` are known */
    bool wanted;         /* another node waits for it */
    bool waits;          /* it waits for another node, or in a call whose ranks are not known */
    int depth; /* number of waits on the shortest way from this node to one of the nodes that were
                  given to search_depths; -1: there is no way */
} SearchNode;

/* A call in which a node waits. */
typedef struct {
    int node;
    const RingEntry *call;
    int group; /* of a collective: index in the net. The node waits for the group's first `behind`
                  members in the order by_here or by_begun */
    bool here; /* true: by_here, because their devices have not arrived; false: by_begun */
    int behind;
    int64_t key; /* number of a call: the awaited members are those whose `here` or `begun` is
                    smaller */
    int peer;    /* of a message: the node that it waits for; else -1 */
} SearchLink;

typedef struct {
    const Net *net;
    SearchNode *node; /* [2 x ranks] */
    SearchLink *link; /* sorted: collectives first, by group and `here`; then messages, by peer */
    int links;
} Search;

/* Follows the waits of all ranks that were read. The net must outlive the search. The time grows
 * with the sizes of all groups, whatever the number of ranks that wait in them. */
void search_make(Search *search, const Net *net);
void search_free(Search *search);
/* Sets the depths: 0 for nodes[0..n), 1 for the nodes that wait for them, and so on. May be called
 * only once. */
void search_depths(Search *search, const int *nodes, int n);

#endif
