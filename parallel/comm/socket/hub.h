/* hub.h -- inside parallel/comm/socket: what rank 0's process knows about all ranks. From their
 * reports it finds out which ranks wait for which, enforces parallel.timeout, and detects ranks
 * that have ended. It allows one rank to print the error of a failure, and sends the verdict (the
 * exit code) to all other ranks. */
#ifndef PARALLEL_COMM_SOCKET_HUB_H
#define PARALLEL_COMM_SOCKET_HUB_H

#include "parallel/comm/socket/service.h"

#include <poll.h>

/* A group as its members have reported it. */
typedef struct SocketHubGroup {
    struct SocketHubGroup *next; /* in the same bucket */
    uint64_t id;
    char name[16];
    SocketMembers members; /* rank -1: the member is not known yet, because no report has listed
                            * it */
    int known, open;       /* known: number of known members; open: number of members that have not
                            * left */
    int64_t *meetings;     /* [size] number of meetings that each member has begun */
    bool *closed;          /* [size] the member has left */
    int64_t least_left;    /* the fewest meetings that a member had begun when it left */
    /* Cache. `for_printer`: the ranks that wait in meeting `asked_at` wait only for the rank that
     * prints. This was found out when `passes` was `asked_in`. */
    uint64_t asked_in;
    int64_t asked_at;
    bool for_printer;
} SocketHubGroup;

typedef struct {
    SocketWait wait;
    uint64_t asked; /* number of the question that its latest report answers */
    bool left;
    bool carries;      /* true: it forwards packets of other ranks, even after it has left */
    bool ended, known; /* ended: its process has ended; known: the launcher has reported this, with
                        * the next three values: */
    int status;        /* the wait status of the process */
    bool spoken;       /* the process has printed an error message */
    int order;         /* number of processes whose end was reported before */
    double ended_for;  /* seconds since rank 0 found that it has ended */
    double silent;     /* seconds since its last packet */
    uint64_t timed;    /* number of the wait that `patience` belongs to */
    double limit;      /* seconds that a wait of this rank may take */
    double patience;   /* seconds that this wait may still take */
    uint64_t suspect;  /* number of the wait that seems to be for a rank that has left */
    uint64_t question; /* number of the question whose answer confirms that wait */
    int calls;         /* number of the rank's watched groups (watched.h) */
    WatchedCall *call; /* [WATCHED_IN_REPORT] their state; NULL: it has reported none */
} SocketHubRank;

struct SocketHub {
    SocketService *service;
    SocketLinks *links;
    int ranks;
    double timeout;
    atomic_int claimed;   /* the rank that was allowed to print its failure; -1: none */
    atomic_bool tree;     /* true: rank 0 sends over the tree. Ranks that are not its children then
                           * give up their connections to rank 0 */
    int reported;         /* number of processes that the launcher has reported as ended */
    int left;             /* number of ranks other than 0 that have left */
    SocketHubRank *rank;  /* [ranks] */
    SocketStream *stream; /* [ranks] the connections to them; service->sends guards sending */
    SocketStream launcher;
    struct pollfd *fd;       /* [ranks + 1] the polled descriptors: wake, launcher, then
                              * connections */
    int *polled;             /* [ranks + 1] the ranks that the connections in fd[] lead to */
    SocketHubGroup **bucket; /* [buckets], a power of 2: the groups by id */
    int buckets, groups;
    uint64_t passes;        /* how often the waiting times have been increased so far (pass_time in
                             * judge.c) */
    uint64_t asked;         /* number of questions that rank 0 has asked */
    int64_t dumps;          /* number of the newest dump that was ordered */
    uint64_t late_question; /* the last question that was asked because of a deadline */
    double asked_for;       /* seconds since late_question was asked; < 0: rank 0 waits for no
                             * answers */
    SocketPacket packet;    /* the packet that was received last */
    WatchedCall *call;      /* memory for copies of the watched calls of all ranks; `watched`
                             * describes the copies that are in it now */
    int *first_call;        /* [ranks] */
    int *next_call, calls;  /* calls: how many calls fit in `call` and in `next_call` */
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
/* For tests: sets how many seconds rank 0 waits at the end of the program for the next rank to
 * leave, if the timeout is shorter. */
void socket_hub_set_last_wait(double seconds);
/* Runs in the service thread until this rank's service is stopped and all other ranks have left. */
void socket_hub_main(SocketHub *hub);
/* Returns whether the rank's failure is the first one. If so, sends the verdict to all other ranks.
 * May be called from any thread of rank 0's process. */
bool socket_hub_claim(SocketHub *hub, int rank, int code);

/* Tells all ranks to write the dump with this number, if it is newer than the last one. To be
 * called in the service thread. */
void socket_hub_dump(SocketHub *hub, int64_t number);

/* From now on rank 0 sends over the tree of a large world (relay.h). All connections of the tree
 * must exist. May be called from any thread. */
void socket_hub_use_tree(SocketHub *hub);

/* table.c. Stores what a rank has reported. Returns false if the packet makes no sense. */
bool socket_hub_take(SocketHub *hub, int rank, const SocketPacket *packet);
/* Returns the group with this id, or NULL if no member has reported it, or all have left it. */
SocketHubGroup *socket_hub_group(const SocketHub *hub, uint64_t id);
/* Create the table, with the world as its first group, and free the table. */
void socket_hub_make_table(SocketHub *hub);
void socket_hub_free_table(SocketHub *hub);

/* ended.c. Ends the program if the process of a rank has ended, or a joined rank is silent. */
void socket_hub_judge_ended(SocketHub *hub, double passed);
/* Ends the program because a joined rank is silent. If the network is broken, both sides end with
 * the same exit code, as if they had waited for each other. */
void socket_hub_end_for_silent(SocketHub *hub, int rank);
/* Returns whether the answer of a rank that has not answered may be lost on its way: a rank above
 * it in the tree, which should forward it, has not answered either. */
bool socket_hub_is_cut_off(const SocketHub *hub, int rank);
/* Returns whether any rank that has not left the world is cut off in this way. */
bool socket_hub_any_is_cut_off(const SocketHub *hub);
/* Returns the first of the ranks in wait->who that has been silent for `seconds`; if there is none,
 * or the world has no tree, the first rank of wait->who. */
int socket_hub_silent_one(const SocketHub *hub, const BlameWait *wait, double seconds);
/* Removes the ranks that are cut off from wait->who. Returns whether any rank remains in the
 * list. */
bool socket_hub_leave_out_cut_off(const SocketHub *hub, BlameWait *wait);
/* Makes this thread print messages as that rank. */
void socket_hub_speak_for(const SocketHub *hub, int rank);

/* judge.c. Ends the program if a rank has waited too long or waits for one that has left, or if a
 * rank's process has ended. `passed`: seconds since the last call. Returns whether rank 0 is
 * waiting for answers, so that it should be called again soon. */
bool socket_hub_judge(SocketHub *hub, double passed);
/* Asks all ranks for a report. `anew`: with a new number, which distinguishes the answers from
 * those to earlier questions. */
void socket_hub_ask(SocketHub *hub, bool anew);
/* Asks one rank, with a new number. */
void socket_hub_ask_one(SocketHub *hub, int rank);

#endif
