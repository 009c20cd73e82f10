/* comparing.c -- see comparing.h. */
#include "parallel/run/comparing.h"

#include "model/core/clock.h"
#include "model/core/progress.h"
#include "parallel/grid/control.h"
#include "parallel/run/between_steps.h"
#include "parallel/run/saving.h"
#include "parallel/run/step_report.h"
#include "parallel/trainer/replicas.h"

/* Ends the program: from here on, every save might replace a good checkpoint by a bad one. A
 * pending save is good, because its state was compared before it began. */
static _Noreturn void end_unequal(Run *run, const char *what)
{
    char err[512];
    long long step = (long long)run->trainer.steps;
    run_await_save(run);
    if (run->lead) {
        metrics_note(run->output.metrics, "end", step, what);
        metrics_flush(run->output.metrics, err, sizeof err);
    }
    control_fail(run->world, EXIT_REPLICAS,
                 "step %lld: %s; a device or its memory has failed. This step is not saved: "
                 "start again to go on from the newest checkpoint in %s, without that device if "
                 "this happens again",
                 step, what, run->folder.path);
}

Comparisons run_compare_replicas(Run *run)
{
    char err[2048];
    double start = seconds_now();
    if (!run->config->checkpoint.compare_replicas || run->world->size == 1) return (Comparisons){0};
    progress_print(&run->work.progress, "comparing replicas");
    if (!trainer_replicas_equal(&run->trainer, err, sizeof err)) end_unequal(run, err);
    double seconds = seconds_now() - start;
    if (run->lead) metrics_compared(run->output.metrics, run->trainer.steps, seconds);
    return (Comparisons){.n = 1, .seconds = seconds};
}

void run_compare_if_due(Run *run)
{
    int64_t interval = run->config->checkpoint.compare_interval;
    /* The save after the last step compares the replicas itself. */
    if (!run_is_due(run->trainer.steps, interval) || run_is_over(run)) return;
    run_read_records(run); /* before the clock stops: pending device work counts as step time */
    run_pause_clock(run);
    run_begin_work(run, "finishing this comparison of replicas");
    Comparisons one = run_compare_replicas(run);
    run->saving.between.n += one.n;
    run->saving.between.seconds += one.seconds;
    run_end_work(run);
    run_resume_clock(run);
}
