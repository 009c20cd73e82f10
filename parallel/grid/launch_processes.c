/* launch_processes.c -- starts the ranks as processes, passes signals on to rank 0, and waits until
 * all have ended. The process that does this is called the launcher. It is no rank, and it never
 * calls CUDA, so that the ranks, which are forked from it, can. See launch.h. */
#include "parallel/grid/launch_processes.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/openblas.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/grid/gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds that the other ranks have to end after one has failed; then they are killed. The verdict
 * reaches them within two. */
static const double seconds_to_end = 5;

typedef struct {
    pid_t process; /* 0: not started */
    bool ended, stopped;
    bool killed; /* by the launcher */
} RankProcess;

typedef struct {
    int ranks;
    const LaunchOptions *options;
    SocketLinks *links;
    int result[2];           /* the pipe on which rank 0 sends its code and options->result */
    sigset_t signals, usual; /* the signals that are waited for; the mask before */
    RankProcess rank[LAUNCH_MAX_RANKS];
    int running;
    bool returned; /* rank 0's body has returned `code` */
    int code;
    int failure;   /* the exit code of the first rank that failed; EXIT_OK: none */
    int passed_on; /* the last signal that was passed on to rank 0; 0: none */
    int fatal;     /* the signal passed on to rank 0 by which it died; 0: none */
    double limit;  /* when ranks that are left are killed; 0: not yet known */
} Launcher;

/* The process that started the ranks; 0: this process is not a rank. */
static pid_t launcher_process;

pid_t launch_parent(void)
{
    return launcher_process;
}

static int passing_signal(void)
{
    return SIGRTMIN + 1;
}

int launch_signal(void)
{
    return launcher_process ? passing_signal() : 0;
}

/* ---- in the process of a rank ---------------------------------------------------------------- */

/* Requests to stop come from the launcher alone, to rank 0. Every rank is in a process group of its
 * own, so Ctrl-C in a terminal does not reach it. It may print although it is not in the
 * foreground. */
static void prepare_signals(const Launcher *l)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &l->usual, NULL);
}

/* Sends the code and the result of rank 0 to the launcher. The pipe holds them without a reader. */
static void send_result(const Launcher *l, int code)
{
    const LaunchOptions *o = l->options;
    char bytes[sizeof code + LAUNCH_RESULT_BYTES], *at = bytes;
    memcpy(bytes, &code, sizeof code);
    if (o->result_bytes > 0) memcpy(bytes + sizeof code, o->result, o->result_bytes);
    for (size_t left = sizeof code + o->result_bytes; left > 0;) {
        ssize_t n = write(l->result[1], at, left);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(EXIT_SYSTEM, "the result cannot be passed on: %s", strerror(errno));
        at += n;
        left -= (size_t)n;
    }
}

static void be_rank(const Launcher *l, int rank, LaunchBody body, void *context)
    __attribute__((noreturn));
static void be_rank(const Launcher *l, int rank, LaunchBody body, void *context)
{
    char place[64];
    /* The kernel ends this process together with the launcher, which may have ended before this
     * call. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher_process) _exit(EXIT_PEER_LOST);
    prepare_signals(l);
    gpus_prepare_process(rank);
    close(l->result[0]);
    log_set_rank(rank, grid_place_text(l->options->size, rank, place, sizeof place));
    openblas_prepare();
    ends_share(true);
    Comm world = socket_world_join(l->links, rank, l->options->timeout, place);
    int code = body(&world, context);
    comm_close(&world);
    ends_share(false);
    if (rank == 0) send_result(l, code);
    exit(EXIT_OK);
}

/* ---- in the launcher ------------------------------------------------------------------------- */

static void kill_ranks(const Launcher *l, int signal_)
{
    for (int r = 0; r < l->ranks; r++)
        if (l->rank[r].process > 0 && !l->rank[r].ended) kill(l->rank[r].process, signal_);
}

static void start_ranks(Launcher *l, LaunchBody body, void *context)
{
    pid_t self = getpid();
    for (int r = 0; r < l->ranks; r++) {
        fflush(NULL); /* otherwise the child prints again what is still in the buffers */
        pid_t process = fork();
        if (process == 0) {
            launcher_process = self;
            be_rank(l, r, body, context);
        }
        if (process < 0) {
            int error = errno;
            kill_ranks(l, SIGKILL);
            fail(EXIT_SYSTEM, "rank %d of %d cannot be started as a process: %s", r, l->ranks,
                 strerror(error));
        }
        l->rank[r].process = process;
        l->running++;
    }
}

/* Reads up to n bytes that rank 0 has sent. Returns false if there are fewer. */
static bool receive(const Launcher *l, void *to, size_t n)
{
    for (char *at = to; n > 0;) {
        ssize_t got = read(l->result[0], at, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false; /* also if another process still has the other end open */
        at += got;
        n -= (size_t)got;
    }
    return true;
}

/* Called when rank 0 has ended. */
static void note_end_of_rank_0(Launcher *l, int status)
{
    const LaunchOptions *o = l->options;
    l->returned = receive(l, &l->code, sizeof l->code) && receive(l, o->result, o->result_bytes);
    if (l->returned) {
        /* The others end at the same time, unless something is wrong with them. */
        if (o->timeout > 0) l->limit = seconds_now() + o->timeout + seconds_to_end;
        return;
    }
    int ended_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (l->passed_on && (ended_by == l->passed_on || ended_by == passing_signal())) {
        l->fatal = l->passed_on;
        l->limit = seconds_now();
    } else if (WIFSIGNALED(status) && !l->rank[0].killed) {
        error_print(EXIT_PEER_LOST, "the process of rank 0 was killed by signal %d (%s)",
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_OK) {
        error_print(EXIT_PEER_LOST, "the process of rank 0 ended before its work was done");
    }
}

/* Notes how a rank has ended. A rank that fails prints its own error, unless it is rank 0 and was
 * ended without being able to. If another one is ended so, rank 0 prints the error. */
static void note_end(Launcher *l, int rank, int status)
{
    int code = WIFSIGNALED(status) ? (int)EXIT_PEER_LOST : WEXITSTATUS(status);
    l->rank[rank].ended = true;
    l->running--;
    if (rank > 0) socket_links_report_end(l->links, rank, status);
    if (rank == 0) note_end_of_rank_0(l, status);
    if (rank == 0 && code == EXIT_OK && !l->returned) code = EXIT_PEER_LOST;
    if (code == EXIT_OK || l->failure != 0) return;
    l->failure = code;
    if (l->limit == 0) l->limit = seconds_now() + seconds_to_end;
}

static void collect_ends(Launcher *l)
{
    for (int r = 0; r < l->ranks; r++) {
        int status;
        RankProcess *rank = &l->rank[r];
        if (rank->ended) continue;
        if (waitpid(rank->process, &status, WNOHANG | WUNTRACED | WCONTINUED) <= 0) continue;
        rank->stopped = WIFSTOPPED(status);
        if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) note_end(l, r, status);
    }
}

/* Kills the ranks that should have ended by now, and those that cannot end because they are
 * stopped. */
static void kill_late_ranks(Launcher *l)
{
    bool late = l->limit > 0 && seconds_now() >= l->limit;
    for (int r = 0; r < l->ranks; r++) {
        RankProcess *rank = &l->rank[r];
        if (rank->ended || !(late || (l->failure && rank->stopped))) continue;
        rank->killed = true;
        kill(rank->process, SIGKILL);
    }
}

/* Stops the ranks together with the launcher, as Ctrl-Z does with a program of one process. */
static void stop_together(const Launcher *l)
{
    kill_ranks(l, SIGSTOP);
    raise(SIGSTOP);
    kill_ranks(l, SIGCONT);
}

static void take_signal(Launcher *l, int number)
{
    if (number == SIGTSTP) {
        stop_together(l);
    } else if (number != SIGCHLD && l->rank[0].ended) {
        l->fatal = number;
        l->limit = seconds_now();
    } else if (number != SIGCHLD) {
        l->passed_on = number;
        sigqueue(l->rank[0].process, passing_signal(), (union sigval){.sival_int = number});
    }
}

static void wait_for_ranks(Launcher *l)
{
    while (l->running > 0) {
        int number = sigtimedwait(&l->signals, NULL, &(struct timespec){.tv_nsec = 200000000});
        if (number > 0) take_signal(l, number);
        collect_ends(l);
        kill_late_ranks(l);
    }
}

/* Blocks the signals that wait_for_ranks takes. */
static void hold_signals(Launcher *l, struct sigaction *was)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP};
    sigemptyset(&l->signals);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        sigaddset(&l->signals, taken[i]);
    /* If SIGCHLD is ignored, as a process may inherit it, children leave no exit status. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, was);
    sigprocmask(SIG_BLOCK, &l->signals, &l->usual);
}

int launch_processes(int ranks, const LaunchOptions *options, LaunchBody body, void *context)
{
    char err[512];
    Launcher l = {.ranks = ranks, .options = options};
    struct sigaction was;
    CHECK(options->result_bytes <= LAUNCH_RESULT_BYTES, "a result of %zu bytes",
          options->result_bytes);
    if (pipe2(l.result, O_CLOEXEC | O_NONBLOCK) != 0)
        fail(EXIT_SYSTEM, "no pipe for the result: %s", strerror(errno));
    l.links = socket_links_create(ranks, err, sizeof err);
    if (l.links == NULL) fail(EXIT_SYSTEM, "%s", err);
    hold_signals(&l, &was);
    start_ranks(&l, body, context);
    close(l.result[1]);
    socket_links_release(l.links);
    wait_for_ranks(&l);
    close(l.result[0]);
    socket_links_destroy(l.links);
    sigaction(SIGCHLD, &was, NULL);
    if (l.fatal) signal(l.fatal, SIG_DFL);
    sigprocmask(SIG_SETMASK, &l.usual, NULL);
    if (l.fatal) raise(l.fatal);
    return l.failure ? l.failure : l.code;
}
