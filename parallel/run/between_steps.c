/* between_steps.c -- the evaluations and samples of a run, and the progress lines of its work. */
#include "parallel/run/between_steps.h"

#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/progress.h"
#include "model/core/utf8.h"
#include "parallel/grid/control.h"
#include "parallel/run/best.h"
#include "parallel/run/saving.h"
#include "parallel/run/signals.h"
#include "parallel/run/step_report.h"
#include "parallel/trainer/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void run_begin_work(Run *run, const char *doing)
{
    progress_again(&run->work.progress);
    run->work.start = seconds_now();
    run->work.doing = doing;
    run_prepare_answers(run, doing);
}

/* Begins the progress line of a step. For the first step, for which a user waits, it appears at
 * once. */
static void begin_step(Run *run)
{
    progress_again(&run->work.progress);
    if (run->trainer.steps == run->saving.first_step) progress_hurry(&run->work.progress);
}

void run_end_work(Run *run)
{
    progress_end(&run->work.progress);
    run->work.doing = NULL;
    run_prepare_answers(run, NULL);
}

/* Writes the current part of the work to the progress line. The time that it shows for a step is
 * the host's. The device may be slower, but to know that, the host would have to wait for it. */
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
    int64_t noted = run->lead ? flight_work_begin(run->trainer.session.flight, FLIGHT_CONSOLE) : 0;
    if (run->lead && work->kind == WORK_STEP && work->done == 0) begin_step(run);
    if (run->lead) say_work(run, work);
    flight_work_end(run->trainer.session.flight, noted);
    if (work->kind == WORK_STEP) return true;
    run_advance_save(run, true); /* all ranks are at the same part of an evaluation or a sample */
    return !run_stop_asked_within(run);
}

/* Evaluates the main validation data, and then the sets of eval.sets; stops as soon as an
 * evaluation is cut short by a stop request. Returns the record of the main data, which is marked
 * as cut if any evaluation was cut short. */
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

/* Returns whether this step is saved, or being saved. */
static bool is_saved(const Run *run)
{
    int64_t step = run->trainer.steps;
    return run->saving.saved_step == step || run_saving_step(run) == step;
}

bool run_evaluate(Run *run, bool final)
{
    if (run->trainer.val == NULL) return true;
    EvalRecord *sets = must_calloc((size_t)run->trainer.n_sets + 1, sizeof *sets);
    run_read_records(run); /* before the clock stops: pending device work counts as step time */
    run_pause_clock(run);
    run->stops.worked = true;
    bool saved = is_saved(run);
    Flight *flight = run->trainer.session.flight;
    int64_t noted = flight_work_begin(flight, FLIGHT_EVALUATION);
    run_begin_work(run, saved ? "ending this evaluation" : "ending this evaluation, then saving");
    EvalRecord r = evaluate_all(run, sets);
    run_end_work(run);
    flight_work_end(flight, noted);
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
    bool saved = is_saved(run);
    Flight *flight = run->trainer.session.flight;
    int64_t noted = flight_work_begin(flight, FLIGHT_SAMPLE);
    run_begin_work(run, saved ? "ending this sample" : "ending this sample, then saving");
    if (run->lead) say_work(run, &(Work){.kind = WORK_SAMPLE, .all = c->eval.sample_tokens});
    char *text = trainer_sample(&run->trainer, c->eval.sample_prompt, c->eval.sample_tokens);
    run_end_work(run);
    flight_work_end(flight, noted);
    if (text) {
        if (run->lead)
            metrics_sample(run->output.metrics, run->trainer.steps, seconds_now() - run->work.start,
                           c->eval.sample_prompt, text);
        free(run->records.sample);
        run->records.sample =
            utf8_escaped(text); /* result.json must be UTF-8, but the model may draw any bytes */
    }
    /* If there is no text although no stop was requested, the run generates no samples. That is a
     * complete result, too. */
    bool whole = text != NULL || !run_stop_asked(run);
    free(text);
    run_resume_clock(run);
    return whole;
}

bool run_is_over(const Run *run)
{
    return run->trainer.steps >= run->config->train_steps || best_has_stalled(run);
}

/* Returns whether the run must be evaluated after this step. After its last step run_finish does
 * that. */
static bool evaluation_due(const Run *run)
{
    return run_is_due(run->trainer.steps, run->config->eval.interval) && !run_is_over(run);
}

/* Returns whether a sample must be generated after this step; after the last one run_finish does
 * that. */
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

void run_catch_up(Run *run)
{
    run_try_save(run);
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
