/* net.h -- merges the groups in all ranks' files, and finds how far each member of a group has
 * got. */
#ifndef PARALLEL_FLIGHT_NET_H
#define PARALLEL_FLIGHT_NET_H

#include "parallel/flight/folder.h"

/* How far a member has got in the collectives of its group. A silent rank counts as having made no
 * call (-1), an unknown one as having made all calls. */
typedef struct {
    int rank;      /* in the world */
    int64_t begun; /* the last collective that its host has begun */
    int64_t here;  /* the last one that it has reached, or that its device has, if a device carries
                    * the calls */
} NetMember;

typedef struct {
    const RingGroup *group;
    NetMember *member;       /* [size] in the group's order */
    int *by_begun, *by_here; /* [size] members in ascending order of these numbers */
    int size;
    int64_t done; /* the last collective up to which some member has finished all */
} NetGroup;

typedef struct {
    const FlightFiles *files;
    NetGroup *group;
    int groups;
    int **of; /* [ranks] for each rank that was read: the index in `group` of each group of its
               * file, or -1 if the group's ranks are not known */
    /* The groups of a rank, even of a silent one: in[first[rank]] to in[first[rank + 1] - 1]. */
    int64_t *first; /* [ranks + 1] */
    struct NetIn {
        int group, member; /* index of the group, and of the rank in it */
    } * in;
} Net;

/* Merges the groups; `files` must outlive the net. The work grows with the ranks and their groups'
 * sizes, times a logarithm. */
void net_make(Net *net, const FlightFiles *files);
void net_free(Net *net);

/* Returns the group that an entry of this rank names, or NULL if there is none, or its ranks are
 * not known. */
const NetGroup *net_group(const Net *net, int rank, const RingEntry *entry);
/* Returns how many members have not begun this call yet, or, if `here`, not reached it. They are
 * the first ones in by_begun or by_here. */
int net_behind(const NetGroup *group, bool here, int64_t call);
/* Returns whether the group has members whose files have not been read (RANK_UNKNOWN). */
bool net_unknown(const NetGroup *group);

/* The state of the peer's end of a message. */
typedef enum {
    PEER_UNKNOWN, /* nothing is known about the peer */
    PEER_LATE,    /* the peer has not made its call */
    PEER_BUSY,    /* the peer's host has made it, but its device has not arrived at it */
    PEER_HERE,    /* it is in the call, too */
    PEER_DONE     /* it has finished the call */
} PeerState;
/* Finds the peer of an unfinished message of this rank: sets *peer to its rank in the world, or -1
 * if it is not known. */
PeerState net_peer(const Net *net, int rank, const RingEntry *message, int *peer);

#endif
