/* saving.c -- the saves of a run: when they are due, what they warn of, and what becomes of older
 * checkpoints. See saving.h. */
#include "parallel/run/saving.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/run/between_steps.h"
#include "parallel/run/comparing.h"
#include "parallel/run/run_ranks.h"
#include "parallel/run/signals.h"
#include "parallel/run/step_report.h"
#include "parallel/trainer/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A loss more than this many times that of uniform guessing is neither the start of a training nor
 * the noise of a batch: the run has diverged. */
enum { MUCH_WORSE = 4 };

bool run_is_healthy(const Run *run, char *why, size_t n)
{
    double uniform = log((double)run->config->model.vocab_size);
    if (run->records.last.skips_in_row > 0) return error_set(why, n, "updates are being skipped");
    if (run->records.spiking) return error_set(why, n, "the loss has just risen abruptly");
    if (!run->records.last_known) return true;
    if (!isfinite(run->records.last.loss)) return error_set(why, n, "the loss is not finite");
    if (run->records.last.loss > MUCH_WORSE * uniform)
        return error_set(why, n, "the loss is %.4g, far above that of uniform guessing (%.4g)",
                         run->records.last.loss, uniform);
    return true;
}

/* Returns text that says when a failed save is tried again, for the end of a warning; "" if never.
 */
static const char *next_try(const Run *run)
{
    const Config *c = run->config;
    int64_t step = run->trainer.steps, interval = c->checkpoint.save_interval;
    /* The process ends after this save, so there is no next try. */
    if (run->saving.last_try || run_stop_seen(run)) return "";
    if (run_is_over(run)) return "; trying again before the run ends";
    bool again = interval > 0 && interval <= c->train_steps &&
                 step - step % interval <= c->train_steps - interval;
    return again ? "; trying again at the next interval" : "; trying again after the last step";
}

/* Warns that this save does not remove older checkpoints, for the reason `why`. Warns only once
 * until the training is healthy again, and only if there is an older checkpoint to remove. */
static void warn_keeping(Run *run, const char *why)
{
    char ignored[512];
    int64_t *steps, keep = run->config->checkpoint.keep, others = 0;
    if (!run->trainer.keep_all) run->saving.keeping_warned = false;
    if (!run->lead || !run->trainer.keep_all || run->saving.keeping_warned || keep <= 0) return;
    int n = checkpoint_list(run->folder.path, &steps, ignored, sizeof ignored);
    for (int i = 0; i < n; i++)
        others += steps[i] < run->trainer.steps;
    free(steps);
    if (others < keep) return;
    log_warning("step %lld: %s, so no older checkpoint is removed", (long long)run->trainer.steps,
                why);
    run->saving.keeping_warned = true;
}

void run_save(Run *run)
{
    char err[2048], why[160];
    run_read_records(run);
    /* While the training is unhealthy, the older checkpoints are the good ones, so none is removed.
     */
    run->trainer.keep_all = !run_is_healthy(run, why, sizeof why);
    warn_keeping(run, why);
    double start = seconds_now();
    run_pause_clock(run);
    run->stops.worked = true;
    Flight *flight = run->trainer.session.flight;
    int64_t noted = flight_work_begin(flight, FLIGHT_SAVE);
    run_begin_work(run, "finishing this save");
    run_compare_replicas(run);
    progress_print(&run->work.progress, "saving step %lld", (long long)run->trainer.steps);
    /* If somebody removed the lock file, another run may have started in this folder. Two runs that
     * save here would remove each other's checkpoints. */
    bool in_place = !run->lead || run_folder_in_place(&run->folder, err, sizeof err);
    bool ok = !run->lead || !in_place || run_folder_hold(&run->folder, err, sizeof err);
    run_require(run, ok, EXIT_CANNOT_CREATE, err, sizeof err);
    /* The metrics are written before the checkpoint: a resume truncates metrics.jsonl to the
     * checkpoint's step, but cannot restore lines that never reached the disk. */
    int64_t flushing = flight_work_begin(flight, FLIGHT_DISK);
    ok = in_place && (!run->lead || metrics_flush(run->output.metrics, err, sizeof err));
    flight_work_end(flight, flushing);
    ok = control_agree(run->world, ok, err, sizeof err) &&
         trainer_save(&run->trainer, run->folder.path, run->origin.config_text, run->origin.machine,
                      err, sizeof err);
    run->saving.error = ok ? EXIT_OK : error_exit_code(err, EXIT_INPUT_OUTPUT);
    if (ok) {
        char *path = checkpoint_path(run->folder.path, run->trainer.steps);
        run->saving.saved_step = run->trainer.steps;
        run->saving.seconds = fmax(run->saving.seconds, seconds_now() - start);
        if (run->lead)
            metrics_saved(run->output.metrics, run->trainer.steps, seconds_now() - start, path);
        free(path);
    } else {
        log_warning("step %lld is not saved: %s%s", (long long)run->trainer.steps, err,
                    next_try(run));
        if (run->lead) metrics_note(run->output.metrics, "warn", run->trainer.steps, err);
    }
    run_end_work(run);
    flight_work_end(flight, noted);
    run_resume_clock(run);
}

void run_save_if_due(Run *run)
{
    if (run_is_due(run->trainer.steps, run->config->checkpoint.save_interval))
        run_save(run);
    else
        run_compare_if_due(run);
}

void run_try_save(Run *run)
{
    char err[2048];
    int64_t first = run->trainer.steps, last = run->config->train_steps;
    int64_t interval = run->config->checkpoint.save_interval;
    if (run->saving.saved_step == first || first >= last) return;
    if (interval > 0 && first - first % interval < last - interval) return;
    run_begin_work(run, "finishing this save");
    progress_print(&run->work.progress, "trying a save");
    bool ok = trainer_try_save(&run->trainer, run->folder.path, run->origin.config_text,
                               run->origin.machine, err, sizeof err);
    run_end_work(run);
    if (ok) return;
    control_fail(run->world, error_exit_code(err, EXIT_INPUT_OUTPUT),
                 "this run saves only at its end, and a trial at its start failed: %s", err);
}
