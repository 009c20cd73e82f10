/* launch_processes.c -- starts the ranks as processes. The process that does this is called the
 * launcher. It is no rank, and it never calls CUDA: otherwise the ranks, which are forked from it,
 * could not use CUDA. launcher.c waits for them. See launch.h. */
#include "parallel/grid/launch_processes.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "model/core/openblas.h"
#include "model/core/progress.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/grid/gpus.h"
#include "parallel/grid/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The process that started the ranks; 0: this process is not a rank. */
static pid_t launcher_process;

pid_t launch_parent(void)
{
    return launcher_process;
}

int launch_signal(void)
{
    return launcher_process ? launcher_signal() : 0;
}

/* ---- in the process of a rank ---------------------------------------------------------------- */

/* Prepares a rank so that only the launcher can ask it to stop; the launcher asks only rank 0. The
 * rank gets its own process group, so Ctrl-C in a terminal does not reach it. It ignores SIGTTOU,
 * so it may print although it is not in the foreground. */
static void prepare_signals(const Launcher *l)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigset_t received;
    sigemptyset(&received);
    sigaddset(&received, launcher_signal());
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        signal(ignored[i], SIG_IGN);
        /* These signals are unblocked, too: when the launcher passes a second signal on, rank 0
         * restores that signal's default action and raises it, which ends rank 0 only if it is not
         * blocked. */
        sigaddset(&received, ignored[i]);
    }
    signal(SIGTTOU, SIG_IGN);
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &l->usual, NULL);
    /* The signal mask that the launcher has inherited may block these signals. */
    sigprocmask(SIG_UNBLOCK, &received, NULL);
}

/* Sends the code and the result of rank 0 to the launcher. */
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

static void note_spoken(void *context)
{
    RankNote *note = context;
    atomic_store(&note->spoken, true);
}

static void be_rank(const Launcher *l, int rank, LaunchBody body, void *context)
    __attribute__((noreturn));
static void be_rank(const Launcher *l, int rank, LaunchBody body, void *context)
{
    char place[64];
    /* Asks the kernel to kill this process when the launcher ends. If the launcher has ended before
     * this call, this process already has another parent. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher_process) _exit(EXIT_PEER_LOST);
    prepare_signals(l);
    ends_set_spoken(note_spoken, &l->note[rank]);
    gpus_prepare_process(rank);
    close(l->result[0]);
    if (rank > 0) close(l->result[1]);
    log_set_rank(rank, grid_place_text(l->options->size, rank, place, sizeof place));
    openblas_prepare();
    ends_share(true);
    Comm world =
        l->ranks > 1 ? socket_world_join(l->links, rank, l->options->timeout) : comm_self("world");
    int code = body(&world, context);
    comm_close(&world);
    ends_share(false);
    atomic_store(&l->note[rank].left, true);
    if (rank == 0) {
        /* The output is flushed before the result is sent: its reader may be slow, and after the
         * result this process has only a limited time to end. */
        fflush(stdout);
        send_result(l, code);
    }
    exit(EXIT_OK);
}

/* ---- in the launcher ------------------------------------------------------------------------- */

static void start_ranks(Launcher *l, LaunchBody body, void *context)
{
    pid_t self = getpid();
    for (int r = 0; r < l->ranks; r++) {
        fflush(NULL); /* otherwise the child would print the content of the buffers again */
        pid_t process = progress_fork();
        if (process == 0) {
            launcher_process = self;
            be_rank(l, r, body, context);
        }
        if (process < 0) {
            int error = errno;
            launcher_kill(l, SIGKILL);
            fail(EXIT_SYSTEM, "rank %d of %d cannot be started as a process: %s", r, l->ranks,
                 strerror(error));
        }
        /* The child itself makes this call, too (prepare_signals), but it may be stopped before it
         * does so. This process makes the call for that case: when this process ends, the kernel
         * continues a stopped child that has its own process group (launch.h), so the child can
         * end. */
        setpgid(process, process);
        l->rank[r].process = process;
        l->running++;
    }
}

int launch_processes(int ranks, const LaunchOptions *options, LaunchBody body, void *context)
{
    char err[512];
    Launcher l = {.ranks = ranks, .options = options, .first = -1, .left_to_end = -1};
    CHECK(options->result_bytes <= LAUNCH_RESULT_BYTES, "a result of %zu bytes",
          options->result_bytes);
    raise_limit_of_open_files();
    /* The launcher reads from the pipe in a loop with other tasks, so its reads must not block; the
     * writes of rank 0 may block. */
    if (pipe2(l.result, O_CLOEXEC) != 0 || fcntl(l.result[0], F_SETFL, O_NONBLOCK) != 0)
        fail(EXIT_SYSTEM, "no pipe for the result: %s", strerror(errno));
    l.links = socket_links_create(ranks, err, sizeof err);
    if (l.links == NULL) fail(EXIT_SYSTEM, "%s", err);
    for (int r = 0; r < ranks; r++)
        socket_links_name(l.links, r, grid_place_text(options->size, r, err, sizeof err));
    launcher_prepare(&l);
    start_ranks(&l, body, context);
    close(l.result[1]);
    socket_links_release(l.links);
    launcher_wait(&l);
    close(l.result[0]);
    socket_links_destroy(l.links);
    return launcher_end(&l);
}
