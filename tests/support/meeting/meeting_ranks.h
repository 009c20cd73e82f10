/* meeting_ranks.h -- real processes that meet, for tests of parallel/meeting. */
#ifndef TESTS_SUPPORT_MEETING_MEETING_RANKS_H
#define TESTS_SUPPORT_MEETING_MEETING_RANKS_H

#include "parallel/meeting/meeting.h"

#include <sys/types.h>

/* How one process ended. */
typedef struct {
    bool met, told;
    ExitCode code;
    char err[MEETING_SENTENCE_BYTES];
    char wrong[256]; /* what is wrong with the result of a meeting that was held, or "" */
    double seconds;  /* that meeting_hold took */
    Meeting m;       /* without its pointers */
    SocketMember last;
} MeetingResult;

typedef struct {
    int processes; /* that are started; usually as many as ranks */
    /* Sets the options of process i, in this process; they are {.rank = i, .size = processes,
     * .local_rank = -1, .timeout = 20} before. May wait, or end the process. */
    void (*set)(void *context, int i, MeetingOptions *o);
    void *context;
    /* Called in each process after a meeting that was held; may be NULL. Returns "" or what is
     * wrong. */
    const char *(*check)(void *context, const Meeting *m);
    const char *output; /* a file for what the processes print, or NULL */
    /* Called in this process while the ranks meet; may be NULL. */
    void (*meanwhile)(void *context, const pid_t *pid);
} MeetingRun;

/* Starts the processes, each of which holds a meeting and checks its result: the connections to
 * rank 0 carry bytes, and the listening socket of the next rank can be reached. Waits until all
 * have ended. Returns [processes] results; the caller frees. A process that does not return from
 * meeting_hold has met == false and code 0. */
MeetingResult *meeting_ranks(const MeetingRun *run);

#endif
