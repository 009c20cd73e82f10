/* launcher.c -- implements launcher.h: what the process that started the ranks does until they have
 * ended. Usually a rank that fails prints the error, or rank 0 prints it for a rank that could not.
 * The launcher prints an error only if rank 0 could not either. */
#include "parallel/grid/launcher.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/dumps.h"
#include "model/core/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* After one rank has failed, the others have this many seconds to end; then they are killed. Rank
 * 0's order to end reaches them within two seconds. */
static const double SECONDS_TO_END = 5;
/* How many milliseconds the launcher waits until standard error accepts its message. If nobody
 * reads standard error, the launcher ends without printing the message. */
enum { MILLISECONDS_TO_PRINT = 4000 };
/* Seconds between two checks of the ranks. */
static const double PERIOD = 0.2;

int launcher_signal(void)
{
    return SIGRTMIN + 1;
}

void launcher_kill(const Launcher *l, int number)
{
    for (int r = 0; r < l->ranks; r++)
        if (l->rank[r].process > 0 && !l->rank[r].ended) kill(l->rank[r].process, number);
}

/* From now on, ranks that have not ended after `seconds` seconds are killed, unless a shorter limit
 * is set already. Time in which this process is stopped does not count. */
static void limit_end(Launcher *l, double seconds)
{
    if (l->left_to_end < 0 || seconds < l->left_to_end) l->left_to_end = seconds;
}

/* ---- how ranks end --------------------------------------------------------------------------- */

/* Returns whether the rank was ended by a signal that the launcher did not send. */
static bool died(const RankProcess *rank)
{
    return rank->ended && WIFSIGNALED(rank->status) && !rank->killed;
}

static int exit_code(const RankProcess *rank)
{
    return WIFSIGNALED(rank->status) ? (int)EXIT_PEER_LOST : WEXITSTATUS(rank->status);
}

/* Reads the part of the result that has arrived. */
static void receive_result(Launcher *l)
{
    const LaunchOptions *o = l->options;
    size_t all = sizeof(int) + o->result_bytes;
    while (l->bytes < all) {
        ssize_t got = read(l->result[0], l->received + l->bytes, all - l->bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return;
        l->bytes += (size_t)got;
    }
    if (l->returned) return;
    l->returned = true;
    if (o->result_bytes > 0) memcpy(o->result, l->received + sizeof(int), o->result_bytes);
    /* All ranks have already left the world. Now they only have to exit. */
    if (o->timeout > 0) limit_end(l, o->timeout + SECONDS_TO_END);
}

/* If a signal from a user has ended rank 0, notes that the same signal is to end this process. */
static void note_signal_of_rank_0(Launcher *l)
{
    const RankProcess *rank = &l->rank[0], *first = &l->rank[l->first < 0 ? 0 : l->first];
    int by = WIFSIGNALED(rank->status) ? WTERMSIG(rank->status) : 0;
    bool same = by && sigismember(&l->passed, by) == 1;
    bool asked =
        same || (l->passed_on && (by == launcher_signal() || (rank->killed && l->passed_two)));
    /* If another rank has failed before, the signal is not the cause. But if that rank failed only
     * because it lost rank 0, the signal is the cause, and that rank's end was merely noticed
     * before rank 0's. */
    bool failed = l->first >= 0 && (died(first) || exit_code(first) != EXIT_PEER_LOST);
    if (failed || !(asked || by == SIGPIPE)) return;
    l->fatal = same || !asked ? by : l->passed_on;
    limit_end(l, 0);
}

static void note_end(Launcher *l, int r, int status)
{
    RankProcess *rank = &l->rank[r];
    rank->ended = true;
    rank->stopped = false;
    rank->status = status;
    l->running--;
    receive_result(l);
    if (r > 0) socket_links_report_end(l->links, r, status, atomic_load(&l->note[r].spoken));
    if (l->returned) return;
    if (r == 0) note_signal_of_rank_0(l);
    if (l->fatal || l->first >= 0 || rank->killed) return;
    /* A rank that has left the world cannot harm the others. Rank 0 still must send the result. */
    if (r > 0 && (exit_code(rank) == EXIT_OK || l->note[r].left)) return;
    l->first = r;
    limit_end(l, SECONDS_TO_END);
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

/* ---- ranks that cannot end by themselves ----------------------------------------------------- */

/* Ends the run if rank 0 is stopped for too long while another rank is not. Ranks that wait for
 * rank 0 end the run themselves only in a call with a deadline. If another rank is stopped, rank 0
 * itself notices if ranks wait for it too long. If all ranks are stopped, that is intended. */
static void count_stopped(Launcher *l, double passed)
{
    double timeout = l->options->timeout;
    int stopped = 0;
    if (l->too_late) return; /* `stood` will be printed, so it stays as it is */
    for (int r = 0; r < l->ranks; r++)
        stopped += l->rank[r].stopped;
    if (!l->rank[0].stopped) l->stood = 0;
    if (l->rank[0].stopped && stopped < l->running) l->stood += passed;
    if (timeout <= 0 || l->stood < timeout + SECONDS_TO_END || l->first >= 0) return;
    l->too_late = true;
    l->first = 0;
    limit_end(l, 0);
}

/* Kills the ranks that should have ended by now and, after a failure, the stopped ones, which would
 * not end by themselves. */
static void kill_late_ranks(Launcher *l, double passed)
{
    if (l->left_to_end > 0) l->left_to_end = fmax(l->left_to_end - passed, 0);
    for (int r = 0; r < l->ranks; r++) {
        RankProcess *rank = &l->rank[r];
        if (rank->ended || !(l->left_to_end == 0 || (l->first >= 0 && rank->stopped))) continue;
        rank->killed = true;
        kill(rank->process, SIGKILL);
    }
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Stops the ranks together with this process, as Ctrl-Z does with a program of one process. The
 * system ignores the request if no shell could continue this process. */
static void stop_together(Launcher *l)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    launcher_kill(l, SIGSTOP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* this process stops here */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    launcher_kill(l, SIGCONT);
}

/* Sends the waiting signals to rank 0. If the user's queue of signals is full, the rest is sent at
 * the next call. */
static void pass_on(Launcher *l)
{
    int sent = 0;
    for (; sent < l->n_unsent && !l->rank[0].ended; sent++) {
        union sigval number = {.sival_int = l->unsent[sent]};
        if (sigqueue(l->rank[0].process, launcher_signal(), number) != 0) break;
    }
    l->n_unsent -= sent;
    memmove(l->unsent, l->unsent + sent, (size_t)l->n_unsent * sizeof *l->unsent);
}

static void take_signal(Launcher *l, int number)
{
    if (number == SIGCHLD) return;
    if (number == SIGTSTP) {
        stop_together(l);
    } else if (number == SIGUSR2) {
        launcher_kill(l, SIGUSR2); /* not only to rank 0, which may be stopped */
    } else if (l->rank[0].ended) {
        limit_end(l, 0); /* the outcome of the launch is known, so the other ranks are killed */
    } else {
        /* A second signal ends rank 0, and so the run. If rank 0 is stopped, the time limit ends
         * it. SIGHUP does not count: a closing terminal sends it twice. */
        if (l->passed_on && number != SIGHUP) {
            l->passed_two = true;
            limit_end(l, SECONDS_TO_END);
        }
        l->passed_on = number;
        sigaddset(&l->passed, number);
        if (l->n_unsent < LAUNCHER_UNSENT) l->unsent[l->n_unsent++] = number;
    }
}

void launcher_prepare(Launcher *l)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP};
    struct sigaction was;
    l->note = mmap(NULL, LAUNCH_MAX_RANKS * sizeof *l->note, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l->note == MAP_FAILED)
        fail(EXIT_NO_MEMORY, "no memory that the ranks share: %s", strerror(errno));
    sigemptyset(&l->passed);
    sigemptyset(&l->signals);
    /* This process may have inherited that SIGCHLD is ignored, which discards exit statuses. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &l->child);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        /* A blocked signal arrives even if it is ignored, so ignored ones stay unblocked: nohup
         * ignores SIGHUP; a shell without job control SIGTSTP and, in the background, SIGINT. */
        sigaction(taken[i], NULL, &was);
        if (was.sa_handler != SIG_IGN) sigaddset(&l->signals, taken[i]);
    }
    if (dumps_hold()) sigaddset(&l->signals, SIGUSR2);
    sigprocmask(SIG_BLOCK, &l->signals, &l->usual);
}

void launcher_wait(Launcher *l)
{
    const struct timespec period = {.tv_nsec = (long)(PERIOD * 1e9)};
    while (l->running > 0) {
        double start = seconds_now();
        int number = sigtimedwait(&l->signals, NULL, &period);
        /* At most PERIOD, because the time for which this process was stopped does not count. */
        double passed = fmin(seconds_now() - start, PERIOD);
        if (number > 0) take_signal(l, number);
        pass_on(l);
        receive_result(l);
        collect_ends(l);
        count_stopped(l, passed);
        kill_late_ranks(l, passed);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool ended_badly(const RankProcess *rank)
{
    return !WIFEXITED(rank->status) || WEXITSTATUS(rank->status) != EXIT_OK;
}

static bool any_ended_badly(const Launcher *l)
{
    for (int r = 0; r < l->ranks; r++)
        if (ended_badly(&l->rank[r])) return true;
    return false;
}

/* Warns of ranks that did not exit properly after their work; the result is final nevertheless. */
static void warn_of_ends(const Launcher *l)
{
    for (int r = 0; r < l->ranks; r++) {
        const RankProcess *rank = &l->rank[r];
        if (!ended_badly(rank)) continue;
        if (rank->killed)
            log_message(LOG_WARNING,
                        "the work is done, but the process of rank %d did not end: it "
                        "was killed",
                        r);
        else if (WIFSIGNALED(rank->status))
            log_message(LOG_WARNING,
                        "the work is done, but the process of rank %d was then killed by signal %d "
                        "(%s)",
                        r, WTERMSIG(rank->status), strsignal(WTERMSIG(rank->status)));
        else
            log_message(LOG_WARNING,
                        "the work is done, but the process of rank %d then ended with code %d", r,
                        WEXITSTATUS(rank->status));
    }
}

/* Returns whether a rank has ended because its connection to rank 0 broke, without printing an
 * error. */
static bool rank_0_was_lost(const Launcher *l)
{
    for (int r = 1; r < l->ranks; r++) {
        int status = l->rank[r].status;
        if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_PEER_LOST) return true;
    }
    return false;
}

/* Returns a rank that has printed why it ends: the rank that failed first, if it has printed that,
 * otherwise any other rank that has. Returns NULL if no rank has. */
static const RankProcess *speaker(const Launcher *l)
{
    for (int i = -1; i < l->ranks; i++) {
        int r = i < 0 ? l->first : i;
        if (l->note[r].spoken && ended_badly(&l->rank[r])) return &l->rank[r];
    }
    return NULL;
}

/* For the case that all ranks end with `code` and none has printed why. If a rank was killed,
 * writes to text that it could not print the error, which rank 0 had left to that rank. */
static void name_silenced(const Launcher *l, int code, char *text, size_t n)
{
    int r = 0;
    while (r < l->ranks && !died(&l->rank[r]))
        r++;
    if (r == l->ranks) return;
    int by = WTERMSIG(l->rank[r].status);
    snprintf(
        text, n,
        "the process of rank %d was killed by signal %d (%s) before it could say why all ranks "
        "end with code %d",
        r, by, strsignal(by), code);
}

/* Returns the exit code of a failed launch. If no rank could print the reason, writes to text how a
 * rank has ended; otherwise writes "". */
static int explain(const Launcher *l, char *text, size_t n)
{
    const RankProcess *zero = &l->rank[0], *first = &l->rank[l->first];
    bool first_died = died(first) && WIFSIGNALED(zero->status);
    const RankProcess *dead = first_died ? first : zero, *spoken = speaker(l);
    *text = '\0';
    if (l->too_late) {
        snprintf(text, n,
                 "the process of rank 0 has been stopped for %.0f s, longer than parallel.timeout "
                 "(%g s) allows",
                 l->stood, l->options->timeout);
        return EXIT_HANG;
    }
    if (spoken) return exit_code(spoken);
    if (died(dead)) {
        int by = WTERMSIG(dead->status);
        snprintf(text, n, "the process of rank %d was killed by signal %d (%s)",
                 first_died ? l->first : 0, by, strsignal(by));
        return EXIT_PEER_LOST;
    }
    if (WIFSIGNALED(zero->status)) return exit_code(first);
    if (WEXITSTATUS(zero->status) == EXIT_OK) {
        snprintf(text, n, "the process of rank 0 ended before its work was done");
        return EXIT_PEER_LOST;
    }
    /* If rank 0 ends by itself, it first sends its exit code to all ranks. But here a rank has lost
     * its connection to rank 0 and has received no code, so something else has ended rank 0. */
    if (WEXITSTATUS(zero->status) != EXIT_PEER_LOST && rank_0_was_lost(l)) {
        snprintf(text, n, "the process of rank 0 ended with code %d before its work was done",
                 WEXITSTATUS(zero->status));
        return EXIT_PEER_LOST;
    }
    name_silenced(l, WEXITSTATUS(zero->status), text, n);
    return WEXITSTATUS(zero->status);
}

/* Prints the error or the warnings, if there are any, unless nobody reads the output. Returns the
 * exit code of the launch. */
static int report_ends(const Launcher *l)
{
    int code = 0;
    char text[512] = "";
    struct sigaction was;
    if (l->returned)
        memcpy(&code, l->received, sizeof code);
    else
        code = explain(l, text, sizeof text);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &was);
    bool warns = l->returned && any_ended_badly(l);
    if ((*text || warns) && log_can_write(STDERR_FILENO, MILLISECONDS_TO_PRINT)) {
        if (*text) error_print((ExitCode)code, "%s", text);
        if (warns) warn_of_ends(l);
    }
    sigaction(SIGPIPE, &was, NULL);
    return code;
}

int launcher_end(Launcher *l)
{
    enum { BY_SIGNAL = 128 }; /* as shells report it */
    int code = BY_SIGNAL + l->fatal;
    CHECK(l->returned || l->fatal || l->first >= 0, "%d ranks have ended without a cause",
          l->ranks);
    if (l->fatal == 0) code = report_ends(l);
    munmap(l->note, LAUNCH_MAX_RANKS * sizeof *l->note);
    sigaction(SIGCHLD, &l->child, NULL);
    if (l->fatal) {
        sigset_t fatal;
        sigemptyset(&fatal);
        sigaddset(&fatal, l->fatal);
        signal(l->fatal, SIG_DFL);
        raise(l->fatal);
        sigprocmask(SIG_UNBLOCK, &fatal, NULL); /* this process ends here */
    }
    sigprocmask(SIG_SETMASK, &l->usual, NULL);
    return code;
}
