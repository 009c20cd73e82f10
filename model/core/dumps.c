/* dumps.c -- implements dumps.h. */
#include "model/core/dumps.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/pool.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

const char *const dump_reason_name[DUMP_REASONS] = {
    [DUMP_DEADLINE] = "deadline", [DUMP_SIGNAL] = "signal", [DUMP_FAILURE] = "failure"};

/* Times in seconds. ORDER: how long to wait for rank 0's order. FILES, LAST_FILES: how long to wait
 * for the files of other processes, after a signal and at the program's end. QUIET: how long to
 * wait at the program's end after the latest file has appeared. LOOK: time between two checks for
 * files. LAST: how long the thread that ends the process waits for the last dump. */
static const double ORDER = 1, FILES = 2, LAST_FILES = 1, QUIET = 0.4, LOOK = 0.05, LAST = 2;

static struct {
    bool held;            /* dumps_hold_signal has blocked the signal */
    pthread_mutex_t asks; /* guards the hook, and is held while it runs */
    void (*ask)(void *context, int64_t number);
    void *ask_context;
    DumpWriter writer;
    pthread_t thread;
    int wake, signals;       /* an eventfd and a signalfd, which stay open; -1: none */
    atomic_int process;      /* the process in which the thread runs; 0: it does not run */
    atomic_bool stop;        /* the thread must end */
    _Atomic int64_t ordered; /* number of the newest dump that must be written */
    atomic_int code;         /* exit code with which the process ends; -1: it is not ending */
    atomic_bool printed;     /* the thread that ends the process now waits for the last dump */
    atomic_bool spoken;      /* this process has printed the error message */
    atomic_bool alone;       /* the other processes do not know of the last dump */
    atomic_bool done;        /* the last dump is written; nobody need wait for it any more */
} dumps = {.asks = PTHREAD_MUTEX_INITIALIZER, .wake = -1, .signals = -1, .code = -1};

/* True in the dump thread, which must not wait for itself. */
static _Thread_local bool is_writer;

/* The state of the dump thread's work. */
typedef struct {
    int64_t written; /* number of the newest dump that is written */
    double alone_at; /* when to stop waiting for rank 0's order; INFINITY: it does not wait */
    double say_at;   /* when to print what the files show, at the latest; INFINITY: printed */
} Work;

static void wake(void)
{
    const uint64_t once = 1;
    ssize_t written = write(dumps.wake, &once, sizeof once);
    (void)written; /* the write can fail only if the thread has already been woken */
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Waits for at most `seconds`, until the thread is woken or SIGUSR2 arrives. Returns whether the
 * signal has arrived. */
static bool wait_for(double seconds)
{
    struct pollfd fd[] = {{.fd = dumps.wake, .events = POLLIN},
                          {.fd = dumps.signals, .events = POLLIN}};
    struct signalfd_siginfo info;
    uint64_t times;
    bool came = false;
    if (poll(fd, 2, isfinite(seconds) ? (int)ceil(1000 * fmax(seconds, 0)) : -1) <= 0) return false;
    if (fd[0].revents && read(dumps.wake, &times, sizeof times) < 0) return false;
    while (fd[1].revents && read(dumps.signals, &info, sizeof info) > 0)
        came = true;
    return came;
}

/* Handles a request for a dump. If ranks are processes, forwards it to rank 0; otherwise orders the
 * dump. */
static void wish(Work *work)
{
    int64_t number = work->written + 1;
    pthread_mutex_lock(&dumps.asks);
    if (dumps.ask) dumps.ask(dumps.ask_context, number);
    bool asked = dumps.ask != NULL;
    pthread_mutex_unlock(&dumps.asks);
    if (asked)
        work->alone_at = seconds_now() + ORDER;
    else
        dumps_order(number);
}

static void write_ordered(Work *work)
{
    int64_t number = atomic_load(&dumps.ordered);
    if (number <= work->written) return;
    dumps.writer.write(dumps.writer.context, (Dump){.number = number, .reason = DUMP_SIGNAL});
    work->written = number;
    work->alone_at = INFINITY;
    work->say_at = seconds_now() + FILES;
}

static void say(Work *work)
{
    Dump dump = {.number = work->written, .reason = DUMP_SIGNAL};
    if (!isfinite(work->say_at)) return;
    int missing = dumps.writer.missing(dumps.writer.context, dump);
    if (missing > 0 && seconds_now() < work->say_at) return;
    work->say_at = INFINITY;
    dumps.writer.say(dumps.writer.context, dump);
}

/* Writes the dump of a process that ends. If this process has printed the error message, then
 * prints what the files of all processes show. */
static void write_last(int code)
{
    Dump dump = {.reason = code == EXIT_HANG ? DUMP_DEADLINE : DUMP_FAILURE};
    dumps.writer.write(dumps.writer.context, dump);
    while (!atomic_load(&dumps.printed))
        wait_for(INFINITY);
    if (!atomic_load(&dumps.spoken)) return;
    dump.alone = atomic_load(&dumps.alone);
    double now = seconds_now(), end = dump.alone ? now : now + LAST_FILES, quiet = now + QUIET;
    for (int before = 0, missing = 1; missing > 0 && now < fmin(end, quiet); before = missing) {
        missing = dumps.writer.missing(dumps.writer.context, dump);
        if (missing != before) quiet = now + QUIET;
        if (missing > 0) wait_for(LOOK);
        now = seconds_now();
    }
    dumps.writer.say(dumps.writer.context, dump);
}

static void *dumps_main(void *unused)
{
    Work work = {.alone_at = INFINITY, .say_at = INFINITY};
    is_writer = true;
    while (!atomic_load(&dumps.stop)) {
        double look = isfinite(work.say_at) ? LOOK : INFINITY;
        if (wait_for(fmin(look, work.alone_at - seconds_now()))) wish(&work);
        int code = atomic_load(&dumps.code);
        if (code >= 0) {
            write_last(code);
            atomic_store(&dumps.done, true);
            ends_wait(); /* the process ends without waiting for this thread */
        }
        if (seconds_now() >= work.alone_at) dumps_order(work.written + 1);
        write_ordered(&work);
        say(&work);
    }
    return unused;
}

/* ---- the signal, starting and stopping ------------------------------------------------------- */

void dumps_hold_signal(void)
{
    struct sigaction was;
    sigset_t signal, mask;
    sigemptyset(&signal);
    sigaddset(&signal, SIGUSR2);
    if (sigaction(SIGUSR2, NULL, &was) != 0 || was.sa_handler == SIG_IGN) return;
    if (pthread_sigmask(SIG_BLOCK, &signal, &mask) != 0 || sigismember(&mask, SIGUSR2)) return;
    dumps.held = true;
}

bool dumps_hold(void)
{
    return dumps.held;
}

/* Opens the descriptors on which the thread waits, once per process. Returns false if the system
 * refuses. */
static bool open_descriptors(void)
{
    sigset_t signal;
    sigemptyset(&signal);
    sigaddset(&signal, SIGUSR2);
    if (dumps.wake < 0) dumps.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (dumps.wake >= 0 && dumps.held && dumps.signals < 0)
        dumps.signals = signalfd(-1, &signal, SFD_CLOEXEC | SFD_NONBLOCK);
    return dumps.wake >= 0 && (!dumps.held || dumps.signals >= 0);
}

int dumps_open(const DumpWriter *writer)
{
    if (!open_descriptors()) return errno;
    dumps.writer = *writer;
    atomic_store(&dumps.stop, false);
    atomic_store(&dumps.done, false);
    atomic_store(&dumps.ordered, 0);
    atomic_store(&dumps.process, (int)getpid());
    int error = thread_try_start(&dumps.thread, dumps_main, NULL);
    if (error != 0) atomic_store(&dumps.process, 0);
    return error;
}

/* Returns whether the thread runs in this process. It does not run in a forked child. */
static bool runs(void)
{
    return atomic_load(&dumps.process) == (int)getpid();
}

void dumps_close(void)
{
    if (!runs()) return;
    atomic_store(&dumps.process, 0);
    atomic_store(&dumps.stop, true);
    wake();
    pthread_join(dumps.thread, NULL);
}

/* ---- called by other threads ----------------------------------------------------------------- */

void dumps_set_ask(void (*ask)(void *context, int64_t number), void *context)
{
    pthread_mutex_lock(&dumps.asks);
    dumps.ask = ask;
    dumps.ask_context = context;
    pthread_mutex_unlock(&dumps.asks);
}

void dumps_order(int64_t number)
{
    int64_t before = atomic_load(&dumps.ordered);
    while (before < number && !atomic_compare_exchange_weak(&dumps.ordered, &before, number))
        continue;
    if (runs()) wake();
}

void dumps_begin_last(int code)
{
    int none = -1;
    if (code != EXIT_HANG && code != EXIT_PEER_LOST && code != EXIT_BUG) return;
    if (!runs() || is_writer) return;
    if (atomic_compare_exchange_strong(&dumps.code, &none, code)) wake();
}

void dumps_end_alone(void)
{
    atomic_store(&dumps.alone, true);
}

void dumps_end_last(bool spoken)
{
    const useconds_t pause = 1000;
    if (!runs() || is_writer || atomic_load(&dumps.code) < 0) return;
    if (spoken) atomic_store(&dumps.spoken, true);
    atomic_store(&dumps.printed, true);
    wake();
    double end = seconds_now() + LAST;
    while (!atomic_load(&dumps.done) && seconds_now() < end)
        usleep(pause);
}
