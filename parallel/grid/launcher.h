/* launcher.h -- inside parallel/grid: the process that has started the ranks as processes. It waits
 * for them, passes signals on, and finds out how the ranks have ended. */
#ifndef PARALLEL_GRID_LAUNCHER_H
#define PARALLEL_GRID_LAUNCHER_H

#include "parallel/comm/socket/socket.h"
#include "parallel/grid/launch.h"

#include <signal.h>
#include <stdatomic.h>

/* The largest number of signals that wait to be passed on; further ones are dropped. */
enum { LAUNCHER_UNSENT = 8 };

/* What a rank reports to the launcher, in memory that both share. */
typedef struct {
    atomic_bool left;   /* it has left the world properly */
    atomic_bool spoken; /* it has printed an error message */
} RankNote;

typedef struct {
    pid_t process; /* 0: not started */
    bool ended, stopped;
    bool killed; /* by the launcher */
    int status;  /* as from waitpid, when it has ended */
} RankProcess;

typedef struct {
    int ranks;
    const LaunchOptions *options;
    SocketLinks *links;
    int result[2]; /* the pipe on which rank 0 sends its code and options->result */
    char received[sizeof(int) + LAUNCH_RESULT_BYTES];
    size_t bytes;   /* number of bytes received so far */
    RankNote *note; /* [ranks] */
    sigset_t signals,
        usual;              /* the signals that are waited for; the signal mask before the launch */
    struct sigaction child; /* the action of SIGCHLD before the launch */
    RankProcess rank[LAUNCH_MAX_RANKS];
    int running;
    bool returned;               /* the result is complete: the work of all ranks is done */
    int first;                   /* the first rank that failed; -1: none */
    sigset_t passed;             /* the signals that have been passed on to rank 0 */
    int passed_on;               /* the last of these signals; 0: none */
    int unsent[LAUNCHER_UNSENT]; /* signals that have still to be passed on */
    int n_unsent;
    bool passed_two;    /* a second signal has been passed on, which ends the run at once */
    int fatal;          /* the signal that killed rank 0 and is to end this process, too; 0: none */
    double stood;       /* seconds for which rank 0 was stopped while another rank was not */
    bool too_late;      /* rank 0 was stopped for longer than the timeout allows */
    double left_to_end; /* seconds after which ranks that are left are killed; < 0: no limit yet */
} Launcher;

/* Returns the real-time signal by which other signals are passed on to rank 0. */
int launcher_signal(void);
/* Before the first rank starts: blocks the signals that launcher_wait handles, and allocates
 * l->note. */
void launcher_prepare(Launcher *l);
/* Sends a signal to all ranks that run. */
void launcher_kill(const Launcher *l, int number);
/* Waits until all ranks have ended. Kills those that cannot end by themselves. */
void launcher_wait(Launcher *l);
/* After launcher_wait: prints how a rank ended if no rank could print it, restores the signals, and
 * returns the launch's exit code. Does not return if a signal ended the ranks: the same signal then
 * ends this process. */
int launcher_end(Launcher *l);

#endif
