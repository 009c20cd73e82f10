/* loop.c -- what happens between steps: reports, saves, evaluations, samples. */
#include "parallel/run/loop.h"
#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/progress.h"
#include "model/core/utf8.h"
#include "optim/step_constants.h"
#include "parallel/grid/control.h"
#include "parallel/run/signals.h"
#include "parallel/run/world.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A loss so many times that of uniform guessing is no start of a training and no noise of a batch:
 * the run has left its course. */
enum { MUCH_WORSE = 4 };

static bool due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

/* Speed is that of steps: the clock stands still while the host saves, evaluates or samples. */
static void pause_clock(Run *run)
{
    run->window_seconds += seconds_now() - run->window_start;
}

static void resume_clock(Run *run)
{
    run->window_start = seconds_now();
}

/* Notes the first record that ends the run: gradients overflow at the smallest loss scale, or too
 * many steps in a row were skipped for gradients that are not finite. */
static void note_divergence(Run *run, const StepRecord *r)
{
    const Config *c = run->config;
    bool too_many = !c->fp16.enabled || c->fp16.loss_scale > 0;
    too_many = too_many && r->skips_in_row >= c->max_consecutive_skipped_steps;
    if (run->diverged.step == 0 && (r->stop || too_many)) run->diverged = *r;
}

/* Ends the run (EXIT_DIVERGED) by that record. */
static void end_diverged(Run *run)
{
    char err[512];
    const StepRecord *r = &run->diverged;
    bool scaled = run->config->fp16.enabled && r->loss_scale > 1; /* and it cannot fall */
    const char *scale =
        r->stop ? "write a smaller fp16.min_loss_scale, " : "write a smaller fp16.loss_scale, ";
    char *why =
        r->stop ? text_format("gradients overflow at the smallest loss scale (%g)", r->loss_scale)
        : r->skips_in_row == 1
            ? text_format("its gradients are not finite")
            : text_format("%lld steps in a row had gradients that are not finite",
                          (long long)r->skips_in_row);
    if (run->lead) {
        metrics_note(run->metrics, "end", r->step, why);
        metrics_flush(run->metrics, err, sizeof err);
    }
    control_fail(
        run->world, EXIT_DIVERGED,
        "step %lld: %s; %slower optimizer.params.lr, or start again from an older checkpoint in %s",
        (long long)r->step, why, scaled ? scale : "", run->folder.path);
}

/* A step that was skipped although its norm is finite had no target that counts. */
static void warn_skipped(const StepRecord *r)
{
    if (r->applied) return;
    if (isfinite(r->grad_norm))
        log_warning("step %lld: none of its targets counts, update skipped", (long long)r->step);
    else
        log_warning("step %lld: gradients are not finite, update skipped (%lld in a row)",
                    (long long)r->step, (long long)r->skips_in_row);
}

/* Takes the records of the steps that have ended, or waits for all. Up to the one that ends the
 * run all go to metrics.jsonl. */
static void take_records(Run *run, bool all)
{
    StepRecord record[TRAINER_HISTORY];
    int n = (all ? trainer_read_all : trainer_read)(&run->trainer, record);
    for (int i = 0; i < n && run->diverged.step == 0; i++) {
        if (run->lead) metrics_step(run->metrics, &record[i]);
        warn_skipped(&record[i]);
        note_divergence(run, &record[i]);
    }
    if (n > 0) run->last = record[n - 1];
    run->last_known |= n > 0;
    run->window_steps += n;
}

void run_read_records(Run *run)
{
    take_records(run, true);
    if (run->diverged.step > 0) end_diverged(run);
}

/* Reads the records that have come, on all ranks. A record is the same on all, but not every rank's
 * may have come: what one has found, the others wait for, and all end at the same step. How many a
 * rank has still to read is its own affair: it asks the others in any case. */
static void read_what_has_come(Run *run)
{
    take_records(run, run->trainer.steps - run->trainer.steps_read == TRAINER_HISTORY);
    if (control_max(run->world, run->diverged.step > 0) != 0) run_read_records(run);
}

/* The live line, between printed steps twice a second at most. */
static void show_live(Run *run, bool print)
{
    double now = seconds_now(), seconds = run->window_seconds + now - run->window_start;
    if (!run->lead || run->window_steps == 0 || (!print && now - run->shown_at < 0.5)) return;
    metrics_live(run->metrics, &run->last, seconds / (double)run->window_steps);
    run->shown_at = now;
}

static void report(Run *run)
{
    const Config *c = run->config;
    Trainer *t = &run->trainer;
    PhaseSeconds *phases = &t->phases.seconds;
    bool breakdown = c->wall_clock_breakdown;
    pause_clock(run);
    SpeedRecord speed = {.seconds = run->window_seconds,
                         .steps = run->window_steps,
                         .tokens = run->window_steps * step_tokens(c),
                         .flops_per_token =
                             gpt_flops_per_token(&t->session.layers.whole, c->data.seq_length),
                         .forward = breakdown ? phases->forward : -1,
                         .backward = breakdown ? phases->backward : -1,
                         .optimizer = breakdown ? phases->optimizer : -1,
                         .communication = phases->layers + phases->communication,
                         .exchange = phases->exchange,
                         .bubble = phases->bubble,
                         .data = breakdown ? t->feed.seconds : -1};
    memcpy(speed.exposed, phases->exposed, sizeof speed.exposed);
    if (breakdown && run->world->size > 1) run_compare_ranks(run, &speed);
    if (run->lead) metrics_report(run->metrics, &speed);
    *phases = (PhaseSeconds){0};
    t->feed.seconds = 0;
    run->window_seconds = 0;
    run->window_steps = 0;
    resume_clock(run);
}

void run_check_console(Run *run)
{
    if (!run->lead || run->console_lost || !ferror(stdout)) return;
    run->console_lost = true;
    log_warning("standard output cannot be written: what the run prints is lost, its metrics.jsonl "
                "has all figures");
}

void run_print_comms(const Run *run)
{
    const Session *s = &run->trainer.session;
    if (!run->config->comms_logger.enabled || !run->lead || run->world->size == 1) return;
    const Comm *group[1 + GRID_COMMS] = {s->world};
    grid_comms(&s->grid, group + 1);
    metrics_comms(run->metrics, run->trainer.steps, group, 1 + GRID_COMMS);
}

void run_report(Run *run)
{
    const Config *c = run->config;
    int64_t step = run->trainer.steps;
    bool print = due(step, c->steps_per_print) || step == c->train_steps;
    /* The device is waited for when its step is to be printed, and else only where no further
     * record would fit. */
    if (print)
        run_read_records(run);
    else
        read_what_has_come(run);
    show_live(run, print);
    run_prepare_answers(run, NULL);
    if (print && c->steps_per_print > 0) {
        report(run);
        memory_print_use(run->config, &run->plan, "after a step");
        run_print_comms(run);
    }
    run_check_console(run);
}

/* ---- work between steps ---------------------------------------------------------------------- */

/* Begins to print progress. The live line stays as it is until the first of it is due. */
static void begin_progress(Run *run)
{
    progress_again(&run->progress);
    run->work_start = seconds_now();
}

static void begin_work(Run *run, const char *doing)
{
    begin_progress(run);
    run_prepare_answers(run, doing);
}

static void end_work(Run *run)
{
    progress_end(&run->progress);
    run_prepare_answers(run, NULL);
}

/* Prints how far the work is, and how long the rest will take at the pace so far. For a step that
 * is the pace of the host: to ask the device, which may be behind, would be to wait for it. */
static void print_work(Run *run, const Work *work)
{
    double each = (seconds_now() - run->work_start) / (double)(work->done > 0 ? work->done : 1);
    Figure done = figure_count((double)work->done), all = figure_count((double)work->all);
    Figure left = figure_duration(work->done > 0 ? each * (double)(work->all - work->done) : -1);
    switch (work->kind) {
    case WORK_STEP:
        progress_print(&run->progress, "step %lld: micro-batch %s of %s, %s left",
                       (long long)run->trainer.steps + 1, done.text, all.text, left.text);
        break;
    case WORK_EVALUATION:
        progress_print(&run->progress, "evaluating %s of %s, %s left", done.text, all.text,
                       left.text);
        break;
    case WORK_SAMPLE:
        progress_print(&run->progress, "sampling %s of %s tokens, %s left", done.text, all.text,
                       left.text);
        break;
    }
}

bool run_watch(void *context, const Work *work)
{
    Run *run = context;
    if (run->lead && work->kind == WORK_STEP && work->done == 0) begin_progress(run);
    if (run->lead && progress_due(&run->progress)) print_work(run, work);
    return work->kind == WORK_STEP || !run_stop_asked_within(run);
}

bool run_evaluate(Run *run, bool final)
{
    if (run->trainer.val == NULL) return true;
    run_read_records(run); /* before the clock stops: what the device still does is step time */
    pause_clock(run);
    bool saved = run->saved_step == run->trainer.steps;
    begin_work(run, saved ? "ending this evaluation" : "ending this evaluation, then saving");
    EvalRecord r = trainer_evaluate(&run->trainer, 0);
    end_work(run);
    if (!r.cut) {
        run->eval = r;
        run->eval.final = final;
        if (run->lead) metrics_eval(run->metrics, &run->eval);
        memory_print_use(run->config, &run->plan, "after an evaluation");
    }
    resume_clock(run);
    return !r.cut;
}

bool run_sample(Run *run)
{
    const Config *c = run->config;
    run_read_records(run);
    pause_clock(run);
    bool saved = run->saved_step == run->trainer.steps;
    begin_work(run, saved ? "ending this sample" : "ending this sample, then saving");
    char *text = trainer_sample(&run->trainer, c->eval.sample_prompt, c->eval.sample_tokens);
    end_work(run);
    if (text) {
        if (run->lead)
            metrics_sample(run->metrics, run->trainer.steps, seconds_now() - run->work_start,
                           c->eval.sample_prompt, text);
        free(run->sample);
        run->sample = utf8_escaped(text); /* result.json is UTF-8, whatever the model has drawn */
    }
    bool whole = text != NULL || !run_stop_asked(run);
    free(text);
    resume_clock(run);
    return whole;
}

bool run_is_healthy(const Run *run, char *why, size_t n)
{
    double uniform = log((double)run->config->model.vocab_size);
    if (run->last.skips_in_row > 0) return error_set(why, n, "updates are being skipped");
    if (!run->last_known) return true;
    if (!isfinite(run->last.loss)) return error_set(why, n, "the loss is not finite");
    if (run->last.loss > MUCH_WORSE * uniform)
        return error_set(why, n, "the loss is %.4g, far above that of uniform guessing (%.4g)",
                         run->last.loss, uniform);
    return true;
}

/* When a save that failed is tried again, if ever. */
static const char *next_try(const Run *run)
{
    const Config *c = run->config;
    int64_t step = run->trainer.steps, interval = c->checkpoint.save_interval;
    if (run->last_try || run_stop_seen(run)) return "";
    if (step >= c->train_steps) return "; trying again before the run ends";
    bool again = interval > 0 && interval <= c->train_steps &&
                 step - step % interval <= c->train_steps - interval;
    return again ? "; trying again at the next interval" : "; trying again after the last step";
}

/* Warns that an older checkpoint stays which this save would otherwise remove. Once only, for as
 * long as the numbers stay bad. */
static void warn_keeping(Run *run, const char *why)
{
    char ignored[512];
    int64_t *steps, keep = run->config->checkpoint.keep, others = 0;
    if (!run->trainer.keep_all) run->keeping_warned = false;
    if (!run->lead || !run->trainer.keep_all || run->keeping_warned || keep <= 0) return;
    int n = checkpoint_list(run->folder.path, &steps, ignored, sizeof ignored);
    for (int i = 0; i < n; i++)
        others += steps[i] < run->trainer.steps;
    free(steps);
    if (others < keep) return;
    log_warning("step %lld: %s, so no older checkpoint is removed", (long long)run->trainer.steps,
                why);
    run->keeping_warned = true;
}

void run_save(Run *run)
{
    char err[2048], why[160];
    run_read_records(run);
    /* While the numbers are bad the older checkpoints are the good ones: none is removed. */
    run->trainer.keep_all = !run_is_healthy(run, why, sizeof why);
    warn_keeping(run, why);
    double start = seconds_now();
    pause_clock(run);
    begin_work(run, "finishing this save");
    /* Another run may have been let in since, by a lock file that somebody removed: two of them
     * saving here would prune each other's checkpoints. */
    bool ok = !run->lead || run_folder_hold(&run->folder, err, sizeof err);
    run_require(run, ok, EXIT_CANNOT_CREATE, err, sizeof err);
    /* Metrics first: a resume cuts metrics.jsonl back to its checkpoint's step, and could not make
     * up for lines that never reached the disk. */
    ok = !run->lead || metrics_flush(run->metrics, err, sizeof err);
    ok = control_agree(run->world, ok, err, sizeof err) &&
         trainer_save(&run->trainer, run->folder.path, run->config_text, run->machine, err,
                      sizeof err);
    run->save_error = ok ? EXIT_OK : error_exit_code(err, EXIT_INPUT_OUTPUT);
    if (ok) {
        char *path = checkpoint_path(run->folder.path, run->trainer.steps);
        run->saved_step = run->trainer.steps;
        if (run->lead) metrics_saved(run->metrics, run->trainer.steps, seconds_now() - start, path);
        free(path);
    } else {
        log_warning("step %lld is not saved: %s%s", (long long)run->trainer.steps, err,
                    next_try(run));
        if (run->lead) metrics_note(run->metrics, "warn", run->trainer.steps, err);
    }
    end_work(run);
    resume_clock(run);
}

static bool evaluation_due(const Run *run)
{
    const Config *c = run->config;
    return due(run->trainer.steps, c->eval.interval) && run->trainer.steps < c->train_steps;
}

static bool sample_due(const Run *run)
{
    const Config *c = run->config;
    return due(run->trainer.steps, c->eval.sample_interval) && run->trainer.steps < c->train_steps;
}

void run_evaluate_if_due(Run *run)
{
    if (evaluation_due(run)) run_evaluate(run, false);
}

void run_sample_if_due(Run *run)
{
    if (sample_due(run)) run_sample(run);
}

void run_catch_up(Run *run)
{
    if (run->folder.state != RUN_RESUMED || run->trainer.steps == 0) return;
    MetricsTail tail = run->lead ? metrics_tail(run->metrics) : (MetricsTail){0};
    bool known = tail.last.step == run->trainer.steps;
    bool evaluated = known && tail.evaluated, sampled = known && tail.sampled;
    control_share(run->world, &evaluated, sizeof evaluated);
    control_share(run->world, &sampled, sizeof sampled);
    if (evaluation_due(run) && !evaluated) run_evaluate(run, false);
    if (sample_due(run) && !sampled) run_sample(run);
}

void run_save_if_due(Run *run)
{
    if (due(run->trainer.steps, run->config->checkpoint.save_interval)) run_save(run);
}
