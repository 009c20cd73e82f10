/* net.h -- how far the members of each group have got: the groups of all ranks' rings, put
 * together. */
#ifndef PARALLEL_FLIGHT_NET_H
#define PARALLEL_FLIGHT_NET_H

#include "parallel/flight/folder.h"

/* How far a member has got in the collectives of its group. A rank that has not answered has made
 * none (-1); one that is not known counts as one that has made all. */
typedef struct {
    int rank;      /* in the world */
    int64_t begun; /* the last collective that its host has begun */
    int64_t here;  /* the last one that it has arrived at: its device, if that carries them */
} NetMember;

typedef struct {
    const RingGroup *group;
    NetMember *member;       /* [size] in the group's order */
    int *by_begun, *by_here; /* [size] members in ascending order of these numbers */
    int size;
    int64_t done; /* the last collective that some member has finished, and all before it */
} NetGroup;

typedef struct {
    const FlightFiles *files;
    NetGroup *group;
    int groups;
    int **of; /* [ranks] of each rank that was read: index of each group of its ring, or -1 if the
               * group's ranks are not known */
    /* The groups of a rank, also of one that has not answered: in[first[rank]] to
     * in[first[rank + 1] - 1]. */
    int64_t *first; /* [ranks + 1] */
    struct NetIn {
        int group, member; /* index of the group, and of the rank in it */
    } * in;
} Net;

/* Puts the groups together; `files` must outlive the net. The work grows with the ranks and their
 * groups' sizes, times a logarithm. */
void net_make(Net *net, const FlightFiles *files);
void net_free(Net *net);

/* Returns the group that an entry of this rank names, or NULL if there is none, or its ranks are
 * not known. */
const NetGroup *net_group(const Net *net, int rank, const RingEntry *entry);
/* Returns how many members, of those by_begun or by_here, have begun (or arrived at) less than this
 * call: they come first. */
int net_behind(const NetGroup *group, bool here, int64_t call);
/* Returns whether the group has members whose files have not been read (RANK_UNKNOWN). */
bool net_unknown(const NetGroup *group);

/* What the two ends of a message are. */
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
