/* signals.c -- handles the signals that stop a run, and checks the file RUN/STOP and the time
 * limits. */
#include "parallel/run/signals.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/terminal.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "parallel/grid/machines.h"
#include "parallel/memory/saved_bytes.h"
#include "parallel/run/saving.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The state that the signal handler sets, and the texts that it prints. The texts are formatted in
 * advance, because a signal handler must not call printf. There are two copies of each: `place` is
 * the index of the complete one while the other is being written. The handler always interrupts the
 * thread that writes them, because all other threads block signals (signals_hold in pool.h). */
typedef struct {
    atomic_int asked; /* the first signal that requested a stop; 0: none arrived */
    atomic_int place; /* index of the complete texts */
    bool silent;      /* true: this rank prints no replies, because rank 0 does */
    bool terminal;    /* stderr is a terminal: a live line must be erased before a reply */
    int columns;      /* columns at which the replies are wrapped */
    char doing[2][64], lost[2][160];
} StopSignals;

static StopSignals watch;

static const struct {
    int number;
    const char *name; /* the reply begins with this */
} watched[] = {{SIGINT, ""}, {SIGTERM, "SIGTERM: "}, {SIGUSR1, "SIGUSR1: "}, {SIGHUP, "SIGHUP: "}};
enum { N_WATCHED = sizeof watched / sizeof watched[0] };

/* Writes the three texts as one line with a single write call, so no other output can split the
 * line. */
static void answer(const char *name, const char *text, const char *end)
{
    enum { MILLISECONDS = 100 };
    if (watch.silent) return;
    const char *part[] = {name, text, end}, *clear = watch.terminal ? "\r\033[K" : "";
    char whole[256], line[320];
    size_t n = 0, used = strlen(clear);
    for (int i = 0; i < 3; i++)
        for (const char *p = part[i]; *p && n + 1 < sizeof whole; p++)
            whole[n++] = *p;
    whole[n] = '\0';
    memcpy(line, clear, used);
    Fold fold = {.columns = watch.columns, .indent = 4, .wrap = WRAP_PROSE};
    n = used + text_fold(line + used, sizeof line - used, whole, fold);
    if (n >= sizeof line) n = sizeof line - 1;
    /* The handler must not wait if nobody reads the output: a second signal could then not end the
     * program. */
    if (!log_can_write(STDERR_FILENO, MILLISECONDS)) return;
    ssize_t written = write(STDERR_FILENO, line, n); /* fails if the terminal is gone: ignored */
    (void)written;
}

static const char *name_of(int number)
{
    for (int i = 0; i < N_WATCHED; i++)
        if (watched[i].number == number) return watched[i].name;
    return "";
}

/* The signal handler. The first signal requests a stop. The second one restores the default action
 * and raises the signal again, which ends the program when the handler returns. A second SIGHUP is
 * ignored, because a closing terminal sends it twice: once by the kernel and once by the shell. */
static void on_signal(int number, siginfo_t *info, void *unused)
{
    int kept = errno, none = 0, place = watch.place;
    (void)unused;
    /* A rank's process obeys this signal only if it comes from the parent process. */
    if (launch_signal() != 0 && (info->si_code != SI_QUEUE || info->si_pid != launch_parent()))
        return;
    if (launch_signal() != 0) number = info->si_value.sival_int;
    if (atomic_compare_exchange_strong(&watch.asked, &none, number)) {
        answer(name_of(number), watch.doing[place],
               number == SIGINT   ? "; Ctrl-C again quits at once\n"
               : number == SIGHUP ? "\n"
                                  : "; a second signal ends the run at once\n");
    } else if (number != SIGHUP) {
        answer(name_of(number), watch.lost[place], "\n");
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = kept;
}

/* Returns whether this rank handles signals itself. */
static bool takes_signals(const Run *run)
{
    bool own_process = strcmp(launch_kind(run->world), "processes") == 0;
    return run->lead || (machines_of(run->world).joined && own_process);
}

void run_watch_signals(const Run *run)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
    if (!takes_signals(run)) return;
    watch.silent = !run->lead;
    watch.terminal = isatty(STDERR_FILENO);
    watch.columns = INT_MAX;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_WATCHED; i++)
        sigaddset(&action.sa_mask, watched[i].number); /* handle one signal at a time */
    if (launch_signal() != 0) sigaction(launch_signal(), &action, NULL);
    for (int i = 0; i < N_WATCHED && launch_signal() == 0; i++) {
        struct sigaction was;
        bool ignored = sigaction(watched[i].number, NULL, &was) == 0 && was.sa_handler == SIG_IGN;
        /* An ignored signal stays ignored. nohup ignores SIGHUP; a shell without job control
         * ignores SIGINT for commands in the background. */
        if (!ignored) sigaction(watched[i].number, &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
}

/* Formats the reply to a second signal, which states what is lost: "quit at once; steps 11 to 12
 * are not saved: the newest checkpoint is of step 10". If every finished step is saved, only
 * unfinished work is lost: the reply names the current step if `step` is true, and otherwise says
 * "the work under way". */
static void format_lost(char *out, size_t n, const Run *run, bool step)
{
    bool any = run->saving.saved_step >= 0;
    int64_t from = (any ? run->saving.saved_step : run->saving.first_step) + 1,
            to = run->trainer.steps;
    char newest[64] = "there is no checkpoint";
    if (any)
        snprintf(newest, sizeof newest, "the newest checkpoint is of step %lld",
                 (long long)run->saving.saved_step);
    if (to < from && step)
        snprintf(out, n, "quit at once; only step %lld, which is under way, is lost",
                 (long long)to + 1);
    else if (to < from)
        snprintf(out, n, "quit at once; only the work under way is lost");
    else if (to == from)
        snprintf(out, n, "quit at once; step %lld is not saved: %s", (long long)to, newest);
    else
        snprintf(out, n, "quit at once; steps %lld to %lld are not saved: %s", (long long)from,
                 (long long)to, newest);
}

void run_prepare_answers(const Run *run, const char *doing)
{
    if (!run->lead) return;
    watch.columns = watch.terminal ? terminal_line(stderr) : INT_MAX;
    int place = !watch.place;
    bool step = doing == NULL && !run_is_over(run);
    int64_t last = run->stops.next;
    snprintf(watch.doing[place], sizeof watch.doing[place], "%s",
             doing ? doing : "finishing this step, then saving");
    if (step && last > run->trainer.steps + 1)
        snprintf(watch.doing[place], sizeof watch.doing[place],
                 "going on to step %lld at most, then saving", (long long)last);
    format_lost(watch.lost[place], sizeof watch.lost[place], run, step);
    watch.place = place;
}

/* Returns after how many seconds the run must stop for its batch job, on rank 0 after the first
 * step. */
static double seconds_of_job(const Run *run)
{
    const RunSaving *s = &run->saving;
    double steps = (double)(run->trainer.steps - s->first_step);
    double step = (seconds_now() - s->begun) / steps;
    double save = s->seconds > 0 ? s->seconds : saved_seconds((double)run->plan.checkpoint);
    int64_t interval = run->config->parallel.stop_interval;
    if (run_saving_step(run) >= 0) save *= 2; /* a pending save must end first */
    return job_seconds(&run->job, save, interval > 0 ? step * (double)interval : step);
}

bool run_job_is_ending(const Run *run)
{
    return run->lead && run->trainer.steps > run->saving.first_step && seconds_of_job(run) <= 0;
}

bool run_time_is_over(const Run *run)
{
    double most = run->config->max_time;
    bool over = most > 0 && seconds_now() - run->started >= most;
    return run->lead && run->trainer.steps > run->saving.first_step &&
           (over || run_job_is_ending(run));
}

bool run_stop_seen(const Run *run)
{
    return watch.asked != 0 || run_time_is_over(run) ||
           (run->lead && run_folder_stop_asked(&run->folder));
}

/* ---- agreeing -------------------------------------------------------------------------------- */

bool run_agrees_now(const Run *run)
{
    return run->stops.worked || run->trainer.steps >= run->stops.next;
}

/* Returns after how many steps the ranks decide again whether to stop. Called on rank 0. */
static int64_t steps_until_next(Run *run)
{
    static const double every = 5; /* seconds */
    enum { GROWTH = 4 }; /* the result grows at most by this factor: the first steps may be fast */
    RunStops *stops = &run->stops;
    int64_t given = run->config->parallel.stop_interval, steps = run->trainer.steps_read;
    int64_t done = steps - stops->reached, before = run->trainer.steps - stops->last_step;
    double now = seconds_now(), seconds = now - stops->last, most = run->config->max_time;
    if (given > 0 || !machines_of(run->world).joined) return given > 0 ? given : 1;
    stops->last = now;
    stops->reached = steps;
    stops->last_step = run->trainer.steps;
    /* The host may be some steps ahead of the device. If the device has finished none since the
     * last decision, the duration of a step is not known. */
    if (done <= 0 || before <= 0) return 1;
    double left = most > 0 ? fmin(every, run->started + most - now) : every;
    left = fmin(left, seconds_of_job(run));
    double fit = left * (double)done / fmax(seconds, 1e-6);
    return (int64_t)fmax(1, fmin(fit, GROWTH * (double)before));
}

bool run_stop_asked(Run *run)
{
    if (!run_agrees_now(run)) return false;
    int64_t wish[2] = {run_stop_seen(run), run->lead ? steps_until_next(run) : 0};
    comm_all_reduce(run->world, NULL, tensor_1d(wish, I64, 2), REDUCE_MAX);
    run->stops.next = run->trainer.steps + wish[1];
    run->stops.worked = wish[0] != 0; /* if they stop, a later call must have the same result */
    if (wish[1] > 1) run_prepare_answers(run, NULL);
    return wish[0] != 0;
}

bool run_stop_asked_within(Run *run)
{
    static const double every = 0.1;
    double now = seconds_now();
    if (watch.asked != 0) return true;
    if (!run->lead) return false;
    if (run_time_is_over(run)) return true;
    if (now < run->work.stop_looked_at + every) return false;
    /* If the file exists, the time is not stored, so the next call also finds it without a delay.
     */
    if (run_folder_stop_asked(&run->folder)) return true;
    run->work.stop_looked_at = now;
    return false;
}
