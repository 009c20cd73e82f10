/* frame.h -- inside parallel/comm/socket: the data structures that ranks send: frames between two
 * ranks, and packets between a rank and rank 0 (stream.h), which never exceed PACKET_BYTES. All
 * ranks run the same program, so the structs are sent as they are in memory. */
#ifndef PARALLEL_COMM_SOCKET_FRAME_H
#define PARALLEL_COMM_SOCKET_FRAME_H

#include "parallel/comm/call.h"
#include "parallel/comm/socket/members.h"
#include "parallel/comm/watched.h"

/* ---- between any two ranks: a frame, followed by its data ------------------------------------ */

typedef enum {
    FRAME_ARRIVE, /* to the parent in a group's tree, or to member 0 of a small group: the sender
                   * and all members below it have arrived at a meeting; the data are their
                   * contributions */
    FRAME_ODD,    /* sent before the ARRIVE if a member below the sender makes another call than the
                   * sender: contains that member's call; `number` is its world rank */
    FRAME_MET,    /* from the parent: all members have arrived; the data are the answer */
    FRAME_OFFER,  /* the sender has a message for the receiver and can send it */
    FRAME_ACCEPT, /* reply to the oldest offer of the group: the receiver waits for the message's
                   * data */
    FRAME_DATA    /* elements of a tensor that the receiver expects */
} SocketFrameKind;

/* Values of SocketFrame.call: a CommVerb, or one of these. */
enum { CALL_BARRIER = COMM_VERBS, CALL_SPLIT, CALL_TREE, CALLS };

typedef struct {
    uint64_t group;
    int64_t number; /* number of the meeting; in a FRAME_ODD: a world rank */
    int64_t bytes;  /* of the data that follow */
    int64_t count;  /* of the call, in elements; -1: it moves no data */
    int32_t kind;
    int32_t call, dtype, op, root; /* root: world rank, or -1 */
    int32_t device;                /* the call's tensors are on a device */
    char made[16];                 /* for a split: name of the new groups */
} SocketFrame;

/* ---- between a rank and rank 0: packets ------------------------------------------------------ */

typedef enum {
    PACKET_REPORT,   /* to rank 0: a SocketReport, after the PACKET_GROUPs that belong to it */
    PACKET_GROUP,    /* to rank 0: a SocketGroupReport */
    PACKET_WATCHED,  /* to rank 0: a SocketWatched */
    PACKET_CLAIM,    /* to rank 0: the rank's process fails and asks for permission to print the
                      * error */
    PACKET_GRANT,    /* from rank 0: permission granted */
    PACKET_ASK,      /* from rank 0: report at once */
    PACKET_VERDICT,  /* from rank 0: another rank has failed; end with this code */
    PACKET_FAREWELL, /* from rank 0, to ranks without a launcher: all ranks have left the world */
    PACKET_TREE,     /* to rank 0: the last packet on this connection; all later packets will come
                      * over the tree */
    PACKET_LOST,     /* to rank 0: the process of a child of the sender has ended. From the parent:
                      * rank 0's process has ended (EXIT_PEER_LOST), or is silent (EXIT_HANG) */
    PACKET_DUMP,     /* to rank 0: a request for a dump of the flight recorders (dumps.h), number
                      * `asked`. From rank 0: the order to write this dump */
    PACKET_ALIVE,    /* from a parent that is not rank 0, or to rank 0: a sign of life */
    PACKET_ENDED     /* from the launcher to rank 0: a rank's process has ended */
} SocketPacketKind;

/* The largest size of a packet. */
enum { PACKET_BYTES = 1024 };

typedef struct {
    uint32_t bytes; /* of the whole packet */
    int32_t kind;
    int32_t rank; /* to rank 0: the sender; from rank 0: the receiver, or -1 for all ranks below */
} SocketPacketHead;

/* A short packet without a report. */
typedef struct {
    SocketPacketHead head;
    int32_t rank;   /* of an ENDED, and of a LOST to rank 0: the rank that has ended. Of a VERDICT:
                     * the rank that prints the error. Of an ALIVE from a parent: the silent rank
                     * above it; -1: none */
    int32_t code;   /* exit code, or the wait status of an ended process */
    int32_t spoken; /* of an ENDED: the process has printed an error message */
    uint64_t asked; /* number of the question (ASK) or of the dump (DUMP) */
} SocketWord;

static inline SocketWord socket_word(SocketPacketKind kind)
{
    return (SocketWord){.head = {.bytes = sizeof(SocketWord), .kind = (int32_t)kind}};
}

/* What a rank reports about one of its groups. The first packets about a group also list its
 * members. If the ranks are so unevenly spaced that one packet cannot hold the list, only member 0
 * sends it, in several packets. */
enum { RUNS_IN_PACKET = 64 };
typedef struct {
    SocketPacketHead head;
    int32_t size;
    uint64_t id;
    char name[16];
    int64_t meetings; /* number of meetings that the rank has begun */
    int32_t member;   /* the rank's index in the group */
    int32_t closed;   /* the rank has left the group */
    int32_t at, runs; /* the runs in this packet begin at member `at` */
    RankRun run[RUNS_IN_PACKET];
} SocketGroupReport;

/* Describes the wait of a rank that has left all groups. Rank 0 waits until all other ranks have
 * left. Another rank waits until its last report can be sent; a joined rank waits until all ranks
 * have left. */
#define SOCKET_LAST_WAIT "end of the program"

/* What a rank waits for. It names at most SOCKET_NAMED ranks that are waited for, and at most
 * SOCKET_NAMED that have closed their connection. */
enum { SOCKET_NAMED = 64 };
typedef struct {
    int32_t waits;
    int32_t unlimited; /* the wait has no deadline */
    int32_t meets;     /* it waits in a meeting: rank 0 knows from all reports who has not
                        * arrived */
    int32_t whos;      /* number of ranks that it waits for, first in rank[] */
    int32_t gones;     /* number of ranks that have closed their connection, next in rank[]; each of
                        * the two numbers is at most SOCKET_NAMED */
    int32_t zero;
    uint64_t wait; /* number of this wait; each wait has its own deadline */
    uint64_t group;
    int64_t meeting;    /* number of the meeting */
    uint64_t confirmed; /* number of rank 0's latest question after which the rank has confirmed
                         * that it still waits */
    char call[BLAME_CALL_BYTES];
    int32_t rank[2 * SOCKET_NAMED]; /* `whos` world ranks, then `gones` */
} SocketWait;

typedef struct {
    SocketPacketHead head;
    int32_t zero;
    uint64_t asked; /* number of the latest ASK that the rank has received */
    SocketWait wait;
} SocketReport;

/* The state of one of a rank's watched groups (watched.h), whose calls another transport carries.
 * The rank has `calls` such groups; this is number `at` of them. */
enum { WATCHED_IN_REPORT = 16 };
typedef struct {
    SocketPacketHead head;
    int32_t calls, at, zero;
    WatchedCall call; /* unless calls = 0 */
} SocketWatched;

typedef union {
    SocketPacketHead head;
    SocketWord word;
    SocketReport report;
    SocketGroupReport group;
    SocketWatched watched;
} SocketPacket;

_Static_assert(sizeof(SocketPacket) <= PACKET_BYTES, "every packet fits");

/* Return how many bytes of the packet are used. */
static inline size_t socket_report_bytes(const SocketReport *report)
{
    int32_t ranks = report->wait.whos + report->wait.gones;
    return offsetof(SocketReport, wait.rank) + (size_t)ranks * sizeof report->wait.rank[0];
}

static inline size_t socket_group_report_bytes(const SocketGroupReport *group)
{
    return offsetof(SocketGroupReport, run) + (size_t)group->runs * sizeof group->run[0];
}

#endif
