/* frame.h -- inside parallel/comm/socket: what travels between two ranks, and between a rank and
 * rank 0. All ranks run the same program, so these structs are sent as they are. */
#ifndef PARALLEL_COMM_SOCKET_FRAME_H
#define PARALLEL_COMM_SOCKET_FRAME_H

#include "parallel/comm/call.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/comm/watched.h"

#include <errno.h>
#include <sys/socket.h>

/* ---- between any two ranks: a frame, followed by its data ------------------------------------ */

typedef enum {
    FRAME_ARRIVE, /* to member 0 of a group: the sender has arrived at a meeting */
    FRAME_MET,    /* from member 0: all have arrived; the data are all members' contributions */
    FRAME_OFFER,  /* a message can be sent */
    FRAME_ACCEPT, /* the receiver of the oldest offered message waits for its data */
    FRAME_DATA    /* elements of a tensor that the receiver expects */
} SocketFrameKind;

/* The calls of a frame: a CommVerb, or one of these. */
enum { CALL_BARRIER = COMM_VERBS, CALL_SPLIT, CALLS };

typedef struct {
    uint64_t group;
    int64_t number; /* number of the meeting */
    int64_t bytes;  /* of the data that follow */
    int64_t count;  /* of the call, in elements; -1: it moves no data */
    int32_t kind;
    int32_t call, dtype, op, root; /* root: world rank, or -1 */
    int32_t device;                /* the call's tensors are on a device */
    char made[16];                 /* for a split: name of the new groups */
} SocketFrame;

/* The first bytes on a connection between two ranks. */
enum { SECRET_BYTES = 16 };
typedef struct {
    unsigned char secret[SECRET_BYTES];
    int32_t rank, zero;
} SocketHello;

/* ---- between a rank and rank 0: one packet at a time ----------------------------------------- */

typedef enum {
    PACKET_REPORT,  /* to rank 0: a SocketReport */
    PACKET_WATCHED, /* to rank 0: a SocketWatched, before the report of the same moment */
    PACKET_CLAIM,   /* to rank 0: the rank's process fails and asks to be the one that speaks */
    PACKET_GRANT,   /* from rank 0: it may speak */
    PACKET_ASK,     /* from rank 0: report at once */
    PACKET_VERDICT, /* from rank 0: another rank has failed; end with this code */
    PACKET_ENDED    /* from the launcher to rank 0: a rank's process has ended */
} SocketPacketKind;

typedef struct {
    int32_t kind;
    int32_t rank;
    int32_t code;   /* exit code, or the wait status of an ended process */
    int32_t spoken; /* of an ENDED: the process has printed an error message */
    uint64_t asked; /* of an ASK: its number */
} SocketPacket;

/* One group of a rank. */
typedef struct {
    uint64_t id;
    char name[16];
    int32_t size;
    int32_t closed;                   /* the rank has left the group */
    int64_t meetings;                 /* number of meetings that the rank has begun */
    uint8_t member[SOCKET_MAX_RANKS]; /* world ranks */
} SocketGroupReport;

/* What a rank waits in after it has left all groups: for the others to leave (rank 0), or until its
 * last report can be sent. */
#define SOCKET_LAST_WAIT "end of the program"

/* What a rank waits for. */
typedef struct {
    int32_t waits;
    int32_t unlimited; /* the wait has no deadline */
    int32_t meets;     /* for a meeting: rank 0 knows from all reports who has not arrived */
    uint64_t wait;     /* number of this wait; each has its own deadline */
    uint64_t group;
    uint64_t who;       /* else: set of world ranks that it waits for */
    uint64_t confirmed; /* the question after which the rank has looked again and still waits */
    uint64_t gone;      /* set of world ranks whose connection has been closed by the peer */
    char call[BLAME_CALL_BYTES];
} SocketWait;

enum { GROUPS_IN_REPORT = 64 };
typedef struct {
    int32_t kind, rank;
    int32_t groups; /* number of groups that follow, at most GROUPS_IN_REPORT */
    int32_t zero;
    uint64_t asked; /* number of the latest ASK that the rank has received */
    SocketWait wait;
    SocketGroupReport group[GROUPS_IN_REPORT];
} SocketReport;

/* All watched groups of a rank, of another transport. */
enum { WATCHED_IN_REPORT = 16 };
typedef struct {
    int32_t kind, rank, calls, zero;
    WatchedCall call[WATCHED_IN_REPORT];
} SocketWatched;

/* What rank 0 may receive. */
typedef union {
    SocketPacket small;
    SocketReport report;
    SocketWatched watched;
} SocketAnyPacket;

/* Receives a packet. Returns its bytes; 0 if the peer has closed the connection; -1 if there is
 * none at the moment. */
static inline ssize_t socket_packet(int fd, void *packet, size_t n)
{
    /* If the peer has closed it without reading all packets, ECONNRESET comes first, once, and then
     * what the peer had sent. */
    for (;;) {
        ssize_t got = recv(fd, packet, n, MSG_DONTWAIT);
        if (got >= 0) return got;
        if (errno != EINTR && errno != ECONNRESET) return errno == EAGAIN ? -1 : 0;
    }
}

/* Return how many bytes of the packet are used. */
static inline size_t socket_report_bytes(const SocketReport *report)
{
    return offsetof(SocketReport, group) + (size_t)report->groups * sizeof report->group[0];
}

static inline size_t socket_watched_bytes(const SocketWatched *watched)
{
    return offsetof(SocketWatched, call) + (size_t)watched->calls * sizeof watched->call[0];
}

#endif
