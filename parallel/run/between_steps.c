/* between_steps.c -- the evaluations, samples and saves of a run, and their progress lines. */
#include "parallel/run/between_steps.h"

#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/progress.h"
#include "model/core/utf8.h"
#include "parallel/grid/control.h"
#include "parallel/run/best.h"
#include "parallel/run/run_ranks.h"
#include "parallel/run/signals.h"
#include "parallel/run/step_report.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A loss more than this many times that of uniform guessing is neither the start of a training nor
 * the noise of a batch: the run has diverged. */
enum { MUCH_WORSE = 4 };

static void begin_work(Run *run, const char *doing)
{
    progress_again(&run->work.progress);
    run->work.start = seconds_now();
    run_prepare_answers(run, doing);
}

/* Begins the progress of a step. It appears at once for the first step, for which a user waits. */
static void begin_step(Run *run)
{
    progress_again(&run->work.progress);
    if (run->trainer.steps == run->saving.first_step) progress_hurry(&run->work.progress);
}

static void end_work(Run *run)
{
    progress_end(&run->work.progress);
    run_prepare_answers(run, NULL);
}

/* Says which part of the work is under way, for the line that shows progress. The time that it
 * shows for a step is that of the host. The device may be slower, but the host would have to wait
 * for it to know. */
static void say_work(Run *run, const Work *work)
{
    char loss[32] = "";
    Progress *p = &run->work.progress;
    Figure part = figure_count((double)(work->done < work->all ? work->done + 1 : work->all));
    Figure all = figure_count((double)work->all);
    switch (work->kind) {
    case WORK_STEP:
        if (run->records.last_known)
            snprintf(loss, sizeof loss, ", last loss %.4g", run->records.last.loss);
        progress_count(p, work->done, work->all, "step %lld: micro-batch %s of %s%s",
                       (long long)run->trainer.steps + 1, part.text, all.text, loss);
        break;
    case WORK_EVALUATION:
        progress_count(p, work->done, work->all, "evaluating%s%s micro-batch %s of %s",
                       run->work.set ? " " : "", run->work.set ? run->work.set : "", part.text,
                       all.text);
        break;
    case WORK_SAMPLE:
        progress_count(p, work->done, work->all, "sampling token %s of %s", part.text, all.text);
        break;
    }
}

bool run_watch(void *context, const Work *work)
{
    Run *run = context;
    if (run->lead && work->kind == WORK_STEP && work->done == 0) begin_step(run);
    if (run->lead) say_work(run, work);
    return work->kind == WORK_STEP || !run_stop_asked_within(run);
}

/* Evaluates the main validation data, and then the sets; stops as soon as one is cut short. Returns
 * the record of the main data, which is cut if any is. */
static EvalRecord evaluate_all(Run *run, EvalRecord *sets)
{
    EvalRecord r = trainer_evaluate(&run->trainer, 0);
    for (int i = 0; i < run->trainer.n_sets && !r.cut; i++) {
        run->work.set = run->data.sets[i].name;
        sets[i] = trainer_evaluate_set(&run->trainer, i);
        r.cut = sets[i].cut;
    }
    run->work.set = NULL;
    return r;
}

bool run_evaluate(Run *run, bool final)
{
    if (run->trainer.val == NULL) return true;
    EvalRecord *sets = must_calloc((size_t)run->trainer.n_sets + 1, sizeof *sets);
    run_read_records(run); /* before the clock stops: pending device work counts as step time */
    run_pause_clock(run);
    run->stops.worked = true;
    bool saved = run->saving.saved_step == run->trainer.steps;
    begin_work(run, saved ? "ending this evaluation" : "ending this evaluation, then saving");
    EvalRecord r = evaluate_all(run, sets);
    end_work(run);
    /* An evaluation that was cut short is discarded; the next start makes it again, in full. */
    if (!r.cut) {
        run->records.eval = r;
        run->records.eval.final = final;
        for (int i = 0; i < run->trainer.n_sets; i++)
            sets[i].final = final;
        if (run->lead)
            metrics_eval(run->output.metrics, &run->records.eval, sets, run->trainer.n_sets);
        memory_print_use(run->config, &run->plan, "after an evaluation");
        free(run->records.sets);
        run->records.sets = sets;
    } else {
        free(sets);
    }
    run_resume_clock(run);
    if (!r.cut) best_compare(run);
    if (!r.cut) best_keep(run);
    return !r.cut;
}

bool run_sample(Run *run)
{
    const Config *c = run->config;
    run_read_records(run);
    run_pause_clock(run);
    run->stops.worked = true;
    bool saved = run->saving.saved_step == run->trainer.steps;
    begin_work(run, saved ? "ending this sample" : "ending this sample, then saving");
    if (run->lead) say_work(run, &(Work){.kind = WORK_SAMPLE, .all = c->eval.sample_tokens});
    char *text = trainer_sample(&run->trainer, c->eval.sample_prompt, c->eval.sample_tokens);
    end_work(run);
    if (text) {
        if (run->lead)
            metrics_sample(run->output.metrics, run->trainer.steps, seconds_now() - run->work.start,
                           c->eval.sample_prompt, text);
        free(run->records.sample);
        run->records.sample =
            utf8_escaped(text); /* result.json must be UTF-8, but the model may draw any bytes */
    }
    /* Without text and without a request to stop, the run draws no samples: not an early end. */
    bool whole = text != NULL || !run_stop_asked(run);
    free(text);
    run_resume_clock(run);
    return whole;
}

bool run_is_healthy(const Run *run, char *why, size_t n)
{
    double uniform = log((double)run->config->model.vocab_size);
    if (run->records.last.skips_in_row > 0) return error_set(why, n, "updates are being skipped");
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
    begin_work(run, "finishing this save");
    progress_print(&run->work.progress, "saving step %lld", (long long)run->trainer.steps);
    /* If somebody removed the lock file, another run may have started in this folder. Two runs that
     * save here would remove each other's checkpoints. */
    bool in_place = !run->lead || run_folder_in_place(&run->folder, err, sizeof err);
    bool ok = !run->lead || !in_place || run_folder_hold(&run->folder, err, sizeof err);
    run_require(run, ok, EXIT_CANNOT_CREATE, err, sizeof err);
    /* The metrics are written before the checkpoint: a resume truncates metrics.jsonl to the
     * checkpoint's step, but cannot restore lines that never reached the disk. */
    ok = in_place && (!run->lead || metrics_flush(run->output.metrics, err, sizeof err));
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
    end_work(run);
    run_resume_clock(run);
}

bool run_is_over(const Run *run)
{
    return run->trainer.steps >= run->config->train_steps || best_has_stalled(run);
}

/* The last step is evaluated and sampled by run_finish. */
static bool evaluation_due(const Run *run)
{
    return run_is_due(run->trainer.steps, run->config->eval.interval) && !run_is_over(run);
}

static bool sample_due(const Run *run)
{
    return run_is_due(run->trainer.steps, run->config->eval.sample_interval) && !run_is_over(run);
}

void run_evaluate_if_due(Run *run)
{
    if (evaluation_due(run)) run_evaluate(run, false);
}

void run_sample_if_due(Run *run)
{
    if (sample_due(run)) run_sample(run);
}

/* Writes a checkpoint and removes it again, if the run saves only at its end: an end without a save
 * would lose all its steps. Ends the program if that fails. */
static void try_save(Run *run)
{
    char err[2048];
    int64_t first = run->trainer.steps, last = run->config->train_steps;
    int64_t interval = run->config->checkpoint.save_interval;
    if (run->saving.saved_step == first || first >= last) return;
    if (interval > 0 && first - first % interval < last - interval) return;
    begin_work(run, "finishing this save");
    progress_print(&run->work.progress, "trying a save");
    bool ok = trainer_try_save(&run->trainer, run->folder.path, run->origin.config_text,
                               run->origin.machine, err, sizeof err);
    end_work(run);
    if (ok) return;
    control_fail(run->world, error_exit_code(err, EXIT_INPUT_OUTPUT),
                 "this run saves only at its end, and a trial at its start failed: %s", err);
}

void run_catch_up(Run *run)
{
    try_save(run);
    if (run->folder.state != RUN_RESUMED || run->trainer.steps == 0) return;
    /* Only rank 0 has the metrics, but all ranks evaluate together. */
    MetricsTail tail = run->lead ? metrics_tail(run->output.metrics) : (MetricsTail){0};
    bool known = tail.last.step == run->trainer.steps;
    bool evaluated = known && tail.evaluated, sampled = known && tail.sampled;
    control_share(run->world, &evaluated, sizeof evaluated);
    control_share(run->world, &sampled, sizeof sampled);
    if (evaluation_due(run) && !evaluated) run_evaluate(run, false);
    /* The earlier attempt may have ended before it recorded this step as the best. */
    if (evaluated && run->records.eval.step == run->trainer.steps) best_keep(run);
    if (sample_due(run) && !sampled) run_sample(run);
}

void run_save_if_due(Run *run)
{
    if (run_is_due(run->trainer.steps, run->config->checkpoint.save_interval)) run_save(run);
}
