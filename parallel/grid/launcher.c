/* launcher.c -- implements launcher.h: what the process that started the ranks does until they have
 * ended. Usually a rank that fails says why, or rank 0 says it for one that could not. The launcher
 * speaks only where rank 0 could not either. */
#include "parallel/grid/launcher.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/guard.h"
#include "model/core/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds that the other ranks have to end after one has failed; then they are killed. The verdict
 * reaches them within two. */
static const double SECONDS_TO_END = 5;
/* The launcher's message may take so many seconds: perhaps nobody reads it. */
static const double SECONDS_TO_PRINT = 4;
/* Seconds between two looks at the ranks. */
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

/* ---- how ranks end --------------------------------------------------------------------------- */

/* Whether a signal ended the rank that the launcher did not send. */
static bool died(const RankProcess *rank)
{
    return rank->ended && WIFSIGNALED(rank->status) && !rank->killed;
}

static int exit_code(const RankProcess *rank)
{
    return WIFSIGNALED(rank->status) ? (int)EXIT_PEER_LOST : WEXITSTATUS(rank->status);
}

/* Reads what has arrived of the result. */
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
    /* All ranks have left the world before. Now they only have to exit. */
    if (o->timeout > 0) l->limit = seconds_now() + o->timeout + SECONDS_TO_END;
}

/* If a signal that a user sends ended rank 0, it is to end this process in the same way. */
static void note_signal_of_rank_0(Launcher *l)
{
    const RankProcess *rank = &l->rank[0], *first = &l->rank[l->first < 0 ? 0 : l->first];
    int by = WIFSIGNALED(rank->status) ? WTERMSIG(rank->status) : 0;
    bool asked = l->passed_on &&
                 (by == l->passed_on || by == launcher_signal() || (rank->killed && l->passed_two));
    /* Another rank may have failed before. But if it has only lost rank 0, it was seen first by
     * chance. */
    bool failed = l->first >= 0 && (died(first) || exit_code(first) != EXIT_PEER_LOST);
    if (failed || !(asked || by == SIGPIPE)) return;
    l->fatal = asked ? l->passed_on : SIGPIPE;
    l->limit = seconds_now();
}

static void note_end(Launcher *l, int r, int status)
{
    RankProcess *rank = &l->rank[r];
    rank->ended = true;
    rank->stopped = false;
    rank->status = status;
    l->running--;
    receive_result(l);
    if (r > 0) socket_links_report_end(l->links, r, status);
    if (l->returned) return;
    if (r == 0) note_signal_of_rank_0(l);
    if (l->fatal || l->first >= 0 || rank->killed) return;
    if (r > 0 && exit_code(rank) == EXIT_OK) return;
    l->first = r;
    if (l->limit == 0) l->limit = seconds_now() + SECONDS_TO_END;
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

/* Counts for how long ranks have been stopped. The other ranks end a run that waits for a stopped
 * one, but not if there is none that could, and not once they have left the world. Whoever stops
 * all ranks means it. */
static void count_stopped(Launcher *l, double passed)
{
    double timeout = l->options->timeout;
    int stopped = 0;
    for (int r = 0; r < l->ranks; r++)
        stopped += l->rank[r].stopped;
    for (int r = 0; r < l->ranks; r++) {
        RankProcess *rank = &l->rank[r];
        rank->stood = rank->stopped ? rank->stood + (stopped < l->ranks ? passed : 0) : 0;
        if (timeout <= 0 || rank->stood < timeout + SECONDS_TO_END || l->first >= 0) continue;
        rank->too_late = true;
        l->first = r;
        l->limit = seconds_now();
    }
}

/* Kills the ranks that should have ended by now. A stopped rank does not end at all. */
static void kill_late_ranks(Launcher *l)
{
    bool late = l->limit > 0 && seconds_now() >= l->limit;
    for (int r = 0; r < l->ranks; r++) {
        RankProcess *rank = &l->rank[r];
        if (rank->ended || !(late || (l->first >= 0 && rank->stopped))) continue;
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
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* it stops here */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    launcher_kill(l, SIGCONT);
}

/* The queue of a user's signals may be full. Then the signal is sent later. */
static void pass_on(Launcher *l)
{
    union sigval number = {.sival_int = l->unsent};
    if (l->unsent == 0 || l->rank[0].ended) return;
    if (sigqueue(l->rank[0].process, launcher_signal(), number) == 0) l->unsent = 0;
}

static void take_signal(Launcher *l, int number)
{
    if (number == SIGCHLD) return;
    if (number == SIGTSTP) {
        stop_together(l);
    } else if (l->rank[0].ended) {
        if (l->first < 0) l->fatal = number;
        l->limit = seconds_now();
    } else {
        /* The second one ends rank 0 at once, and so the run; but not if rank 0 is stopped. A
         * closing terminal sends SIGHUP twice. */
        if (l->passed_on && number != SIGHUP) {
            l->passed_two = true;
            l->limit = seconds_now() + SECONDS_TO_END;
        }
        l->passed_on = l->unsent = number;
    }
}

void launcher_hold_signals(Launcher *l)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP};
    struct sigaction was;
    sigemptyset(&l->signals);
    /* If SIGCHLD is ignored, as a process may inherit it, children leave no exit status. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &l->child);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        /* An ignored signal that is blocked would still arrive: nohup ignores SIGHUP, and a shell
         * without job control SIGTSTP. */
        bool spared = taken[i] == SIGHUP || taken[i] == SIGTSTP;
        sigaction(taken[i], NULL, &was);
        if (!spared || was.sa_handler != SIG_IGN) sigaddset(&l->signals, taken[i]);
    }
    sigprocmask(SIG_BLOCK, &l->signals, &l->usual);
}

void launcher_wait(Launcher *l)
{
    const struct timespec period = {.tv_nsec = (long)(PERIOD * 1e9)};
    while (l->running > 0) {
        double start = seconds_now();
        int number = sigtimedwait(&l->signals, NULL, &period);
        double passed = fmin(seconds_now() - start, PERIOD); /* not while this process is stopped */
        if (number > 0) take_signal(l, number);
        pass_on(l);
        receive_result(l);
        collect_ends(l);
        count_stopped(l, passed);
        kill_late_ranks(l);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The result stands, whatever happened to ranks that only had to exit. */
static void warn_of_ends(const Launcher *l)
{
    for (int r = 0; r < l->ranks; r++) {
        const RankProcess *rank = &l->rank[r];
        if (WIFEXITED(rank->status) && WEXITSTATUS(rank->status) == EXIT_OK) continue;
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

/* Whether a rank has ended because the connection to rank 0 broke, without a word. */
static bool rank_0_was_lost(const Launcher *l)
{
    for (int r = 1; r < l->ranks; r++)
        if (!l->rank[r].killed && exit_code(&l->rank[r]) == EXIT_PEER_LOST) return true;
    return false;
}

/* Prints how a rank has ended if no rank could do so, because rank 0's process was not able to.
 * Returns the exit code of the launch. */
static int explain(const Launcher *l)
{
    const RankProcess *zero = &l->rank[0], *first = &l->rank[l->first];
    int code = exit_code(first);
    if (first->too_late)
        return error_print(EXIT_HANG,
                           "the process of rank %d has been stopped for %.0f s, longer than "
                           "parallel.timeout (%g s) allows",
                           l->first, first->stood, l->options->timeout);
    if (died(first) && WIFSIGNALED(zero->status))
        return error_print(EXIT_PEER_LOST, "the process of rank %d was killed by signal %d (%s)",
                           l->first, WTERMSIG(first->status), strsignal(WTERMSIG(first->status)));
    if (died(zero))
        return error_print(EXIT_PEER_LOST, "the process of rank 0 was killed by signal %d (%s)",
                           WTERMSIG(zero->status), strsignal(WTERMSIG(zero->status)));
    if (WIFSIGNALED(zero->status)) return code;
    if (WEXITSTATUS(zero->status) == EXIT_OK)
        return error_print(EXIT_PEER_LOST, "the process of rank 0 ended before its work was done");
    /* Rank 0 sends its code to all before it ends, unless something else has ended it. */
    if (WEXITSTATUS(zero->status) != EXIT_PEER_LOST && rank_0_was_lost(l))
        return error_print(EXIT_PEER_LOST,
                           "the process of rank 0 ended with code %d before its work was done",
                           WEXITSTATUS(zero->status));
    return code;
}

int launcher_end(Launcher *l)
{
    int code = EXIT_OK;
    if (l->returned) {
        memcpy(&code, l->received, sizeof code);
        warn_of_ends(l);
    } else if (l->fatal == 0) {
        struct sigaction was;
        CHECK(l->first >= 0, "all %d ranks have ended, but none has failed", l->ranks);
        guard_end_within(SECONDS_TO_PRINT, exit_code(&l->rank[l->first]));
        sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &was);
        code = explain(l);
        sigaction(SIGPIPE, &was, NULL);
    }
    sigaction(SIGCHLD, &l->child, NULL);
    if (l->fatal) signal(l->fatal, SIG_DFL);
    sigprocmask(SIG_SETMASK, &l->usual, NULL);
    if (l->fatal) raise(l->fatal);
    return code;
}
