/* nccl_set.h -- runs tests in a set of processes with deadlines. The parent forks the ranks and
 * watches them. If a test exceeds its time or a rank gives up, it kills the set and prints the
 * reason as the result; otherwise the ranks print the results. The parent makes no CUDA call, so
 * every set starts in a clean state, and no child outlives its set or the parent. */
#ifndef TESTS_PROBE_NCCL_SET_H
#define TESTS_PROBE_NCCL_SET_H

#include "tests/probe/probe.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SET_RANKS = 4, SET_SKIPPED = 3, SET_LATE = 4 };

/* State of a rank that the parent may read at any time. */
struct set_rank {
    char doing[64];   /* the call it is in; printed if a deadline passes */
    char error[384];  /* the error message with which it gave up */
    char leaving[96]; /* name of the result "seconds until it exited"; "" if that is not measured */
    int64_t left_at;
    pid_t pid;  /* 0 after it has exited */
    int status; /* the status from waitpid */
};

/* The memory that the parent and its ranks share. */
struct set {
    int64_t end; /* time at which the whole probe must be over, in ns */
    char prefix[64];
    int n;
    int victim; /* the rank that a test kills by a signal, or -1 */
    struct set_rank rank[SET_RANKS];

    char question[160];
    const char *verdict; /* what a passed deadline means; a string constant */
    int64_t asked, deadline;
    int first_failed; /* rank that failed first; -1: none */
    unsigned arrived, turn;

    /* Data that tests of NCCL pass from rank to rank, or from the parent to the ranks. */
    char id[128];
    int version, pinned, same_host, implicit_order, abort, report_init;
    int first, operations; /* number of tests to skip; number of kinds of collective to test */
    int step;              /* the test that is running; -1 before the communicator is created */
    int calls;
    unsigned wrong;
    int seen;
    int64_t killed_at;
};

static inline int64_t set_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double set_seconds_since(int64_t then)
{
    return 1e-9 * (double)(set_now() - then);
}

static inline void set_sleep_us(long us)
{
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

/* Makes a result's text fit on one line and into one cell of a table. */
static inline void set_one_line(char *text)
{
    for (; *text; text++) {
        if (*text == '\n' || *text == '\r') *text = ' ';
        if (*text == '|') *text = '/';
    }
}

/* ---- what ranks call ------------------------------------------------------------------------- */

static inline void set_doing(struct set *s, int rank, const char *what)
{
    snprintf(s->rank[rank].doing, sizeof s->rank[rank].doing, "%.*s", (int)strcspn(what, "("),
             what);
}

/* Ends this rank. The parent prints the reason of the first rank that failed and kills the
 * others. */
static inline void set_fail(struct set *s, int rank, const char *format, ...)
{
    int none = -1;
    va_list args;
    va_start(args, format);
    vsnprintf(s->rank[rank].error, sizeof s->rank[rank].error, format, args);
    va_end(args);
    set_one_line(s->rank[rank].error);
    __atomic_compare_exchange_n(&s->first_failed, &none, rank, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    _exit(PROBE_FAILED);
}

/* Waits for all ranks. Gives up some time after the test's deadline; by then the parent has
 * acted. */
static inline void set_barrier(struct set *s, int rank)
{
    unsigned turn = __atomic_load_n(&s->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&s->arrived, 1, __ATOMIC_ACQ_REL) == (unsigned)s->n) {
        __atomic_store_n(&s->arrived, 0u, __ATOMIC_RELAXED);
        __atomic_store_n(&s->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    set_doing(s, rank, "a barrier");
    while (__atomic_load_n(&s->turn, __ATOMIC_ACQUIRE) == turn) {
        int64_t deadline = __atomic_load_n(&s->deadline, __ATOMIC_ACQUIRE);
        if (deadline != INT64_MAX && set_now() > deadline + 2000000000)
            set_fail(s, rank, "nobody came to the barrier");
        set_sleep_us(20);
    }
}

/* Starts the next test in all ranks together. Its result is named prefix.name, and it may take
 * `seconds`. */
static inline void set_ask(struct set *s, int rank, const char *name, double seconds,
                           const char *verdict)
{
    set_barrier(s, rank);
    if (rank == 0) {
        __atomic_store_n(&s->deadline, INT64_MAX, __ATOMIC_SEQ_CST);
        snprintf(s->question, sizeof s->question, "%s.%s", s->prefix, name);
        s->verdict = verdict;
        s->asked = set_now();
        __atomic_store_n(&s->deadline, s->asked + (int64_t)(1e9 * seconds), __ATOMIC_SEQ_CST);
    }
    set_barrier(s, rank);
}

/* From here on, the parent measures how long this rank takes to exit, as result `name`. */
static inline void set_leave(struct set *s, int rank, const char *name)
{
    s->rank[rank].left_at = set_now();
    set_doing(s, rank, "its end");
    snprintf(s->rank[rank].leaving, sizeof s->rank[rank].leaving, "%s", name);
}

/* ---- what the parent calls ------------------------------------------------------------------- */

static inline struct set *set_make(double seconds)
{
    struct set *s = (struct set *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) {
        perror("mmap");
        exit(PROBE_FAILED);
    }
    s->end = set_now() + (int64_t)(1e9 * seconds);
    s->victim = -1;
    return s;
}

static inline double set_seconds_left(const struct set *s)
{
    return 1e-9 * (double)(s->end - set_now());
}

/* Returns whether a rank ended in a way that no test expects. */
static inline int set_rank_failed(const struct set *s, int rank)
{
    int status = s->rank[rank].status;
    if (s->rank[rank].pid || (rank == s->victim && WIFSIGNALED(status))) return 0;
    return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == PROBE_FAILED);
}

/* Collects the ranks that have exited; returns how many are still running. */
static inline int set_reap(struct set *s)
{
    int left = 0;
    for (int r = 0; r < s->n; r++) {
        struct set_rank *rank = &s->rank[r];
        if (!rank->pid) continue;
        if (waitpid(rank->pid, &rank->status, WNOHANG) == 0) {
            left++;
            continue;
        }
        rank->pid = 0;
        if (rank->leaving[0] && WIFEXITED(rank->status))
            probe_number(rank->leaving, set_seconds_since(rank->left_at), "s");
    }
    return left;
}

/* Prints why the current test has no result: `late`, or, if that is NULL, the reason of the rank
 * that failed. */
static inline void set_report(struct set *s, const char *late)
{
    char text[1024];
    int used = 0, first = s->first_failed;
    for (int r = 0; first < 0 && r < s->n; r++)
        if (set_rank_failed(s, r)) first = r;
    if (late) {
        used = snprintf(text, sizeof text, "%s after %.1f s (", late, set_seconds_since(s->asked));
        for (int r = 0; r < s->n; r++)
            used += snprintf(text + used, sizeof text - (size_t)used, "%srank %d: %s",
                             r ? "; " : "", r, s->rank[r].pid ? s->rank[r].doing : "gone");
        snprintf(text + used, sizeof text - (size_t)used, ")");
    } else if (s->rank[first].error[0]) {
        snprintf(text, sizeof text, "failed: rank %d: %s", first, s->rank[first].error);
    } else {
        int status = s->rank[first].status, by_signal = WIFSIGNALED(status);
        snprintf(text, sizeof text, "failed: rank %d ended %s %d in %s", first,
                 by_signal ? "by signal" : "with status",
                 by_signal ? WTERMSIG(status) : WEXITSTATUS(status), s->rank[first].doing);
    }
    probe_word(s->question, text);
}

/* Kills the remaining processes of a set by SIGKILL, and prints how long that took or that it
 * failed. */
static inline void set_kill(struct set *s)
{
    int64_t from = set_now();
    int left;
    for (int r = 0; r < s->n; r++) {
        if (!s->rank[r].pid) continue;
        if (s->rank[r].leaving[0])
            probe_word(s->rank[r].leaving, probe_name("failed: still there after %.1f s",
                                                      set_seconds_since(s->rank[r].left_at)));
        kill(s->rank[r].pid, SIGKILL);
    }
    while ((left = set_reap(s)) > 0 && set_seconds_since(from) < 4)
        set_sleep_us(1000);
    if (left)
        probe_word(probe_name("%s.sigkill", s->question),
                   probe_name("failed: %d processes still there after 4 s", left));
    else
        probe_number(probe_name("%s.sigkill", s->question), set_seconds_since(from), "s");
}

/* Forks the ranks. Returns 0, or -1 if a fork failed; the ranks forked before that are in
 * s->rank. */
static inline int set_fork(struct set *s, void (*body)(struct set *, int))
{
    pid_t parent = getpid();
    for (int r = 0; r < s->n; r++) {
        pid_t pid = fork();
        if (pid < 0) return -1;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(PROBE_FAILED);
            body(s, r);
            _exit(0);
        }
        s->rank[r].pid = pid;
    }
    return 0;
}

static inline void set_reset(struct set *s, const char *prefix, int n)
{
    memset(s->rank, 0, sizeof s->rank);
    s->n = n;
    s->arrived = s->turn = 0;
    s->first_failed = s->step = -1;
    s->seen = 0;
    s->killed_at = 0;
    snprintf(s->prefix, sizeof s->prefix, "%s", prefix);
    snprintf(s->question, sizeof s->question, "%s.start", prefix);
    s->verdict = "failed: no answer";
    s->asked = set_now();
    s->deadline = s->asked + (int64_t)15e9;
}

/* Runs body(set, rank) in n children for at most `seconds` and returns when none is left. Returns
 * 0, or the exit status of the first rank that ended with another one, or SET_LATE after a
 * deadline, or SET_SKIPPED if the probe's own time is nearly over. */
static inline int set_run(struct set *s, const char *prefix, int n, void (*body)(struct set *, int),
                          double seconds)
{
    int64_t end, failed_at = 0;
    set_reset(s, prefix, n);
    if (seconds > set_seconds_left(s)) seconds = set_seconds_left(s);
    if (seconds < 3) {
        probe_word(prefix, "skipped: the probe's time is over");
        return SET_SKIPPED;
    }
    end = set_now() + (int64_t)(1e9 * seconds);
    if (set_fork(s, body)) {
        probe_word(prefix, "failed: fork");
        set_kill(s);
        return PROBE_FAILED;
    }
    while (set_reap(s)) {
        int64_t now = set_now(), deadline = __atomic_load_n(&s->deadline, __ATOMIC_SEQ_CST);
        for (int r = 0; r < n && !failed_at; r++)
            if (set_rank_failed(s, r)) failed_at = now;
        /* Give the other ranks half a second to report what they saw. */
        if (failed_at ? now > failed_at + 500000000 : now > deadline || now > end) {
            set_report(s, failed_at        ? NULL
                          : now > deadline ? s->verdict
                                           : "failed: cut off by the set's deadline");
            set_kill(s);
            if (failed_at) return PROBE_FAILED;
            return SET_LATE;
        }
        set_sleep_us(1000);
    }
    for (int r = 0; r < n; r++) {
        if (set_rank_failed(s, r)) {
            set_report(s, NULL);
            return PROBE_FAILED;
        }
        if (WIFEXITED(s->rank[r].status) && WEXITSTATUS(s->rank[r].status))
            return WEXITSTATUS(s->rank[r].status);
    }
    return 0;
}

#endif
