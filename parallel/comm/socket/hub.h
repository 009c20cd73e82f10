/* hub.h -- inside parallel/comm/socket: what rank 0's process knows about all ranks. From their
 * reports it finds out who keeps whom waiting, enforces parallel.timeout, and notices ranks that
 * end. It lets one failure speak, and sends the verdict to all other ranks. */
#ifndef PARALLEL_COMM_SOCKET_HUB_H
#define PARALLEL_COMM_SOCKET_HUB_H

#include "parallel/comm/socket/service.h"

#include <poll.h>

/* A group as its members have reported it. */
typedef struct SocketHubGroup {
    struct SocketHubGroup *next; /* in the same bucket */
    uint64_t id;
    char name[16];
    SocketMembers members; /* those that are not known have not reported the group */
    int known, open;       /* number of members that are known, and that have not left */
    int64_t *meetings;     /* [size] begun by each member */
    bool *closed;          /* [size] the member has left */
    int64_t least_left;    /* the fewest meetings that a member had begun when it left */
    /* Whether those that wait at meeting `asked_at` wait for the rank that prints alone, as found
     * when time passed for the `asked_in`-th time. */
    uint64_t asked_in;
    int64_t asked_at;
    bool for_printer;
} SocketHubGroup;

typedef struct {
    SocketWait wait;
    uint64_t asked; /* the question that its latest report answers */
    bool left;
    bool carries;      /* it passes on what others send, also after it has left */
    bool ended, known; /* its process has ended; the launcher has reported it, with this: */
    int status;        /* the wait status */
    bool spoken;       /* it has printed an error message */
    int order;         /* how many had been reported before */
    double ended_for;  /* seconds since then */
    double silent;     /* seconds since it was last heard */
    uint64_t timed;    /* the wait that `patience` belongs to */
    double limit;      /* how many seconds a wait of this rank may take */
    double patience;   /* seconds that it may still take */
    uint64_t suspect;  /* the wait that seems to be for a rank that has left */
    uint64_t question; /* the question whose answer confirms it */
    int calls;         /* number of watched groups */
    WatchedCall *call; /* [WATCHED_IN_REPORT], or NULL */
} SocketHubRank;

struct SocketHub {
    SocketService *service;
    SocketLinks *links;
    int ranks;
    double timeout;
    atomic_int claimed; /* the rank whose failure speaks; -1: none */
    atomic_bool tree;   /* all ranks are reached over a tree, of which rank 0's children are left */
    int reported;       /* how many processes the launcher has reported as ended */
    int left;           /* how many ranks but rank 0 have left */
    SocketHubRank *rank;  /* [ranks] */
    SocketStream *stream; /* [ranks] the connections to them; service->sends guards sending */
    SocketStream launcher;
    struct pollfd *fd;       /* [ranks + 1] those that are polled: */
    int *polled;             /* [ranks + 1] ranks */
    SocketHubGroup **bucket; /* [buckets], a power of 2: the groups by id */
    int buckets, groups;
    uint64_t passes;        /* how often time has passed */
    uint64_t asked;         /* number of questions */
    int64_t dumps;          /* number of the newest dump that was ordered */
    uint64_t late_question; /* the last one because of a deadline */
    double asked_for;       /* seconds since then; < 0: its answers are not awaited any more */
    SocketPacket packet;    /* that was received last */
    WatchedCall *call;      /* watched calls, those that are judged: `watched` */
    int *first_call;        /* [ranks] */
    int *next_call, calls;  /* room for so many */
    WatchedCalls watched;
    BlameRoom *room; /* for searches */
};

/* Returns whether the rank has reported since rank 0 last asked because of a deadline. */
static inline bool socket_hub_has_answered(const SocketHub *hub, const SocketHubRank *rank)
{
    return rank->asked >= hub->late_question;
}

SocketHub *socket_hub_create(SocketService *service, SocketLinks *links, double timeout);
void socket_hub_destroy(SocketHub *hub);
/* For tests: how many seconds rank 0 waits at the end of the program for the next rank to leave, if
 * the timeout is shorter. */
void socket_hub_set_last_wait(double seconds);
/* Runs in the service thread until this rank has been stopped and all others have left. */
void socket_hub_main(SocketHub *hub);
/* Returns whether the rank's failure is the first, and then sends the verdict to all others. May be
 * called from any thread of rank 0's process. */
bool socket_hub_claim(SocketHub *hub, int rank, int code);

/* Orders the dump with this number from all ranks, if it is newer than the last one. In the service
 * thread. */
void socket_hub_dump(SocketHub *hub, int64_t number);

/* All ranks of a large world are connected in its tree (relay.h): from now on rank 0 uses it. May
 * be called from any thread. */
void socket_hub_use_tree(SocketHub *hub);

/* table.c. Takes what a rank has sent. Returns false if it makes no sense. */
bool socket_hub_take(SocketHub *hub, int rank, const SocketPacket *packet);
/* Returns the group with this id, or NULL if no member has reported it, or all have left it. */
SocketHubGroup *socket_hub_group(const SocketHub *hub, uint64_t id);
/* Make the table with the world as its first group, and free it. */
void socket_hub_make_table(SocketHub *hub);
void socket_hub_free_table(SocketHub *hub);

/* ended.c. Ends the program if the process of a rank has ended, or a joined rank is silent. */
void socket_hub_judge_ended(SocketHub *hub, double passed);
/* Ends the program because a joined rank is silent. Both sides of a broken network end with the
 * same code, as if they had waited for each other. */
void socket_hub_end_for_silent(SocketHub *hub, int rank);
/* Returns whether a rank that has not answered may have done so, but another one does not pass it
 * on to rank 0: one above it in the tree that has not answered either. */
bool socket_hub_is_cut_off(const SocketHub *hub, int rank);
bool socket_hub_any_is_cut_off(const SocketHub *hub);
/* Returns which of those that are waited for has been silent for so many seconds, or the first one.
 * In worlds without a tree it is always that. */
int socket_hub_silent_one(const SocketHub *hub, const BlameWait *wait, double seconds);
/* Leaves out the ranks that are cut off. Returns whether others are left. */
bool socket_hub_leave_out_cut_off(const SocketHub *hub, BlameWait *wait);
/* Makes this thread print messages as that rank. */
void socket_hub_speak_for(const SocketHub *hub, int rank);

/* judge.c. Ends the program if a rank has waited too long or waits for one that has left, or if a
 * rank's process has ended. `passed`: seconds since the last call. Returns whether it waits for
 * answers, which should be handled soon. */
bool socket_hub_judge(SocketHub *hub, double passed);
/* Asks all ranks for a report. `anew`: the answers can be told from those to earlier questions. */
void socket_hub_ask(SocketHub *hub, bool anew);
/* Asks one rank anew. */
void socket_hub_ask_one(SocketHub *hub, int rank);

#endif
