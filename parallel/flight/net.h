/* net.h -- makes the net: the groups of ranks that the files of all ranks contain, each group once,
 * and how far each member of a group has got. */
#ifndef PARALLEL_FLIGHT_NET_H
#define PARALLEL_FLIGHT_NET_H

#include "parallel/flight/folder.h"

/* How far a member has got in the collectives of its group, as numbers of calls. A silent rank
 * counts as having made no call (-1), an unknown rank as having made all calls. */
typedef struct {
    int rank;      /* in the world */
    int64_t begun; /* the last collective that its host has begun */
    int64_t here;  /* the last collective at which it has arrived, or at which its device has
                      arrived, if a device executes the calls */
} NetMember;

typedef struct {
    const RingGroup *group;
    NetMember *member;       /* [size] in the group's order */
    int *by_begun, *by_here; /* [size] indices of members, by ascending `begun` or `here` */
    int size;
    int64_t done; /* some member has finished all collectives up to this one */
} NetGroup;

typedef struct {
    const FlightFiles *files;
    NetGroup *group;
    int groups;
    int **of; /* [ranks] for each rank that was read: the index in `group` of each group of its
               * file, or -1 if the group's ranks are not known */
    /* The groups of each rank, also of a silent one: in[first[rank]] to in[first[rank + 1] - 1]. */
    int64_t *first; /* [ranks + 1] */
    struct NetIn {
        int group, member; /* index of the group, and of the rank in it */
    } * in;
} Net;

/* Merges the groups; `files` must outlive the net. The time grows with the number of ranks and the
 * sizes of their groups, times a logarithm. */
void net_make(Net *net, const FlightFiles *files);
void net_free(Net *net);

/* Returns the group that an entry of this rank names, or NULL if it names none or the group's ranks
 * are not known. */
const NetGroup *net_group(const Net *net, int rank, const RingEntry *entry);
/* Returns how many members have not begun this call yet or, if `here`, have not arrived at it yet.
 * They are the first members in by_begun or, if `here`, in by_here. */
int net_behind(const NetGroup *group, bool here, int64_t call);
/* Returns whether the group has members whose files have not been read (RANK_UNKNOWN). */
bool net_unknown(const NetGroup *group);

/* The state of the peer's end of a message. */
typedef enum {
    PEER_UNKNOWN, /* nothing is known about the peer */
    PEER_LATE,    /* the peer has not made its call */
    PEER_BUSY,    /* the peer's host has made its call, but its device has not arrived at it */
    PEER_HERE,    /* the peer is in its call, too */
    PEER_DONE     /* the peer has finished its call */
} PeerState;
/* Returns the state of the peer's end of an unfinished message of this rank. Sets *peer to the
 * peer's rank in the world, or to -1 if it is not known. */
PeerState net_peer(const Net *net, int rank, const RingEntry *message, int *peer);

#endif
