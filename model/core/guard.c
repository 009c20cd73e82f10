/* guard.c -- implements guard.h. */
#include "model/core/guard.h"

#include "model/core/clock.h"
#include "model/core/dumps.h"
#include "model/core/exit_codes.h"
#include "model/core/log.h"
#include "model/core/pool.h"

#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Milliseconds between two checks. */
enum { PERIOD = 100 };

static struct {
    pthread_mutex_t mutex; /* guards the list; the guard's thread never waits for it */
    GuardWatch *watches;
    _Atomic double grace;
    pthread_mutex_t life; /* held while the thread is started or stopped */
    pthread_t thread;
    int wake; /* an eventfd; written to end the thread */
    atomic_bool runs;
    atomic_int process; /* the process whose state this is; a forked child resets the state */
    atomic_bool ending; /* guard_end_within has been called */
    _Atomic int64_t
        left;        /* milliseconds until the end that guard_end_within has requested; 0: none */
    atomic_int code; /* exit code of that end */
} guard = {.mutex = PTHREAD_MUTEX_INITIALIZER,
           .life = PTHREAD_MUTEX_INITIALIZER,
           .wake = -1,
           .grace = GUARD_GRACE};

void guard_set_grace(double seconds)
{
    atomic_store(&guard.grace, seconds);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Ends the process without what the C library and the sanitizers do at exit, because that takes the
 * locks of stdio streams, which another thread may hold. */
static void quit(int code)
{
    for (;;)
        syscall(SYS_exit_group, code);
}

/* Counts down to the end that guard_end_within has requested, and ends the process then. `passed`:
 * milliseconds since the last call. */
static void hold_end(int64_t passed)
{
    int64_t left = atomic_load(&guard.left);
    if (left == 0) return;
    if (left <= passed) quit(atomic_load(&guard.code));
    atomic_store(&guard.left, left - passed);
}

/* Ends the process because `late` has made no progress for too long. The message also says in which
 * calls the other watched ranks are. */
static void end_late(const GuardWatch *late)
{
    enum { MILLISECONDS = 1000, MOST = 3072 };
    char text[MOST + 512], call[192];
    double grace = atomic_load(&guard.grace);
    dumps_begin_last(EXIT_HANG); /* another thread writes the dump */
    late->describe(late->context, call, sizeof call);
    size_t used = (size_t)snprintf(text, sizeof text,
                                   "error[%d] %s: rank %d has waited %g s (parallel.timeout and %g "
                                   "s more), and %s, which holds the deadline, does not answer",
                                   (int)EXIT_HANG, call, late->rank, late->timeout + grace, grace,
                                   late->holder);
    for (const GuardWatch *w = guard.watches; w && used < MOST; w = w->next) {
        if (w == late || w->turn(w->context) == 0) continue;
        w->describe(w->context, call, sizeof call);
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "; rank %d is in %s", w->rank, call);
    }
    text[used++] = '\n';
    if (log_can_write(STDERR_FILENO, MILLISECONDS)) {
        ssize_t written = write(STDERR_FILENO, text, used);
        (void)written; /* the error cannot be reported anywhere else */
    }
    dumps_end_last(true);
    quit(EXIT_HANG);
}

static void look(GuardWatch *w, double passed)
{
    int64_t turn = w->turn(w->context);
    if (turn == 0 || turn != w->seen) {
        w->seen = turn;
        w->stood = 0;
        return;
    }
    w->stood += passed;
    if (w->stood > w->timeout + atomic_load(&guard.grace)) end_late(w);
}

static void *guard_main(void *unused)
{
    double since = seconds_now(), waiting = 0;
    struct pollfd wake = {.fd = guard.wake, .events = POLLIN};
    while (poll(&wake, 1, PERIOD) <= 0) {
        /* Time in which the process was stopped (SIGSTOP) does not count, because the ranks it
         * waits for were stopped, too: a single poll counts as at most twice the period. */
        double now = seconds_now(), passed = fmax(0, fmin(now - since, 2e-3 * PERIOD));
        since = now;
        hold_end((int64_t)ceil(passed * 1e3));
        waiting += passed;
        if (atomic_load(&guard.ending)) continue; /* the cause has been printed, or soon will be */
        if (pthread_mutex_trylock(&guard.mutex) != 0) continue;
        for (GuardWatch *w = guard.watches; w; w = w->next)
            look(w, waiting);
        waiting = 0;
        pthread_mutex_unlock(&guard.mutex);
    }
    return unused;
}

/* Resets the state in a forked child: the ranks and the guard thread of the parent do not run
 * there, and that thread may have owned the mutex at the fork. */
static void begin_in_child(void)
{
    int process = (int)getpid(), before = atomic_exchange(&guard.process, process);
    if (before == process || before == 0) return;
    pthread_mutex_init(&guard.mutex, NULL);
    pthread_mutex_init(&guard.life, NULL);
    guard.watches = NULL;
    if (guard.wake >= 0) close(guard.wake);
    guard.wake = -1;
    atomic_store(&guard.runs, false);
    atomic_store(&guard.ending, false);
    atomic_store(&guard.left, 0);
}

/* Starts the thread unless it runs already. Returns false if the system refuses it. */
static bool start(void)
{
    if (atomic_exchange(&guard.runs, true)) return true;
    if (guard.wake < 0) guard.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (guard.wake >= 0 && thread_try_start(&guard.thread, guard_main, NULL) == 0) return true;
    atomic_store(&guard.runs, false);
    return false;
}

/* Stops the thread, so that a process without ranks has no other thread when it forks. */
static void stop(void)
{
    uint64_t once = 1;
    if (!atomic_load(&guard.runs) || write(guard.wake, &once, sizeof once) < 0) return;
    pthread_join(guard.thread, NULL);
    if (read(guard.wake, &once, sizeof once) < 0) return;
    atomic_store(&guard.runs, false);
    if (atomic_load(&guard.ending)) (void)start();
}

/* ---- called by other threads ----------------------------------------------------------------- */

void guard_add(GuardWatch *watch)
{
    watch->seen = 0;
    watch->stood = 0;
    begin_in_child();
    pthread_mutex_lock(&guard.life);
    /* If the thread cannot start, only the other threads enforce the deadline. */
    (void)start();
    pthread_mutex_lock(&guard.mutex);
    watch->next = guard.watches;
    guard.watches = watch;
    pthread_mutex_unlock(&guard.mutex);
    pthread_mutex_unlock(&guard.life);
}

void guard_remove(GuardWatch *watch)
{
    pthread_mutex_lock(&guard.life);
    pthread_mutex_lock(&guard.mutex);
    GuardWatch **at = &guard.watches;
    while (*at && *at != watch)
        at = &(*at)->next;
    if (*at) *at = watch->next;
    bool last = guard.watches == NULL;
    pthread_mutex_unlock(&guard.mutex);
    if (last && !atomic_load(&guard.ending)) stop();
    pthread_mutex_unlock(&guard.life);
}

void guard_end_within(double seconds, int code)
{
    begin_in_child();
    atomic_store(&guard.code, code);
    if (atomic_exchange(&guard.ending, true)) return;
    bool runs = start(); /* without taking `life`, whose owner may be blocked */
    atomic_store(&guard.left, (int64_t)ceil(seconds * 1e3));
    if (!runs) alarm((unsigned)ceil(seconds));
}
