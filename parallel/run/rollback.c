/* rollback.c -- goes back to the newest checkpoint before an event, and skips the data in between.
 * See rollback.h. */
#include "parallel/run/rollback.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/run/best.h"
#include "parallel/run/between_steps.h"
#include "parallel/run/health.h"
#include "parallel/run/run_ranks.h"
#include "parallel/run/saving.h"
#include "parallel/run/step_report.h"
#include "parallel/trainer/save.h"

#include <stdio.h>

/* ---- after a checkpoint was loaded ----------------------------------------------------------- */

void run_take_up(Run *run, bool same_run)
{
    StepState s = trainer_state(&run->trainer);
    MetricsTail tail = run->lead ? metrics_tail(run->output.metrics) : (MetricsTail){0};
    run->records.last_known = same_run && tail.trained && tail.last.step == s.steps;
    health_take_up(run, &s);
    if (run->records.last_known) run->records.last.loss = tail.last.loss;
    control_share(run->world, &run->records.last_known, sizeof run->records.last_known);
    control_share(run->world, &run->records.last.loss, sizeof run->records.last.loss);
}

void run_begin_here(Run *run)
{
    double now = seconds_now();
    int64_t step = run->trainer.steps;
    run->saving.first_step = step;
    run->saving.begun = now;
    run->stops = (RunStops){.next = step, .last = now, .last_step = step, .reached = step};
}

/* ---- going back ------------------------------------------------------------------------------ */

/* Opens the checkpoint to go back to: one from before the event or, if the event ends a series of
 * skipped updates, from before the first of them. Ends the run if there is none. */
static Checkpoint *find_checkpoint(Run *run)
{
    char err[2048];
    Checkpoint *c = NULL;
    bool ok = checkpoint_open_before(&run->trainer.io, run->folder.path, health_first_step(run),
                                     run->config->checkpoint.save_interval, &c, err, sizeof err);
    run_require(run, ok, EXIT_DAMAGED, err, sizeof err);
    if (c == NULL) health_end(run, true);
    return c;
}

/* Loads weights, optimizer states and step state, and moves the position in the data to the first
 * sample after the event. */
static void load(Run *run, Checkpoint *c)
{
    char err[2048];
    Trainer *t = &run->trainer;
    const StepRecord *event = &run->records.event;
    device_synchronize(&t->session.dev);
    bool ok = trainer_load(t, c, err, sizeof err);
    run_require(run, ok, EXIT_DAMAGED, err, sizeof err);
    StepState s = trainer_state(t);
    /* Computed from the event, not from the checkpoint: after a second rollback to the same
     * checkpoint, both rollbacks must count. */
    s.data_offset = event->samples + event->data_offset - s.samples;
    s.rollbacks = event->rollbacks + 1;
    trainer_set_state(t, s);
}

/* Prints a warning, and writes a line "rollback" to the metrics, with the first step that is
 * repeated. */
static void tell(Run *run, const Checkpoint *c)
{
    char why[200], text[400];
    const StepState *from = &checkpoint_manifest(c)->state;
    const StepRecord *event = &run->records.event;
    int64_t most = run->config->health.max_rollbacks;
    health_say_why(run, why, sizeof why);
    snprintf(text, sizeof text,
             "step %lld: %s; going back to step %lld without the data since (rollback %lld of at "
             "most %lld)",
             (long long)event->step, why, (long long)from->steps, (long long)event->rollbacks + 1,
             (long long)most);
    log_warning("%s", text);
    if (run->lead) metrics_note(run->output.metrics, "rollback", from->steps + 1, text);
}

/* Resets the files and the figures of the run to the step of the checkpoint.
 *
 * The metrics go back last: if the run is killed before that, the next start resumes from the
 * newest checkpoint that is left, and the metrics still have all steps up to it. For the same
 * reason the run ends, without changing the metrics, if it cannot remove a later checkpoint. */
static void forget_later(Run *run, const Checkpoint *c)
{
    char err[2048];
    const StepState *s = &checkpoint_manifest(c)->state;
    best_forget_after(run, s->steps);
    bool ok =
        checkpoint_remove_after(&run->trainer.io, run->folder.path, s->steps, err, sizeof err);
    run_require(run, ok, EXIT_INPUT_OUTPUT, err, sizeof err);
    ok = !run->lead || metrics_go_back(run->output.metrics, s->steps, s->samples,
                                       run->records.event.rollbacks + 1, err, sizeof err);
    run_require(run, ok, EXIT_INPUT_OUTPUT, err, sizeof err);
    run->saving.saved_step = s->steps;
    run->saving.error = EXIT_OK;
    run->saving.warned_step = 0;
    run_take_up(run, true);
    best_go_back(run, c);
}

bool run_goes_back(Run *run)
{
    if (!run->records.goes_back) return false;
    run_await_save(run); /* the pending checkpoint may be the one to go back to */
    run_begin_work(run, "going back to a checkpoint");
    progress_print(&run->work.progress, "going back to a checkpoint");
    Checkpoint *c = find_checkpoint(run);
    load(run, c);
    forget_later(run, c);
    run_end_work(run);
    tell(run, c);
    checkpoint_close(c);
    run->records.event = (StepRecord){0};
    run->records.goes_back = run->records.spiking = false;
    /* The next report covers only steps that are made from here on. */
    run->clock = (RunClock){.shown_at = run->clock.shown_at};
    run->trainer.phases.seconds = (PhaseSeconds){0};
    run->trainer.feed.seconds = 0;
    run_begin_here(run);
    run_resume_clock(run);
    return true;
}
