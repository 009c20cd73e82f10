/* health.c -- warns about spikes and skipped updates, and ends a run that diverges. See
 * health.h. */
#include "parallel/run/health.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/run/saving.h"
#include "parallel/trainer/decide.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what happened --------------------------------------------------------------------------- */

/* Writes "loss 9.31 is 24 deviations above 3.2, the median of the losses before it". */
static const char *say_spike(const StepRecord *r, char *out, size_t n)
{
    if (!isfinite(r->loss))
        snprintf(out, n, "the loss is not finite");
    else
        snprintf(out, n,
                 "loss %.4g is %.3g deviations above %.4g, the median of the losses before it",
                 r->loss, (r->loss - r->median) / r->deviation, r->median);
    return out;
}

/* Warns about a spike. Under the policy "warn" it reports only the first of several in a row: if
 * the loss stays high, every step is a spike until the median has risen, too. */
static void warn_spike(const Run *run, const StepRecord *r)
{
    char what[160];
    bool skipped = run->config->health.policy == HEALTH_SKIP;
    if (skipped)
        log_warning("step %lld: %s, update skipped (%lld in a row)", (long long)r->step,
                    say_spike(r, what, sizeof what), (long long)r->spikes_in_row);
    else if (run->config->health.policy == HEALTH_WARN && !run->records.spiking)
        log_warning("step %lld: %s", (long long)r->step, say_spike(r, what, sizeof what));
}

/* Warns if the update of a step was skipped. If its gradient norm is finite, the reason is that
 * none of its targets counts for the loss. */
static void warn_skipped(const StepRecord *r)
{
    if (isfinite(r->grad_norm))
        log_warning("step %lld: none of its targets counts, update skipped", (long long)r->step);
    else
        log_warning("step %lld: gradients are not finite, update skipped (%lld in a row)",
                    (long long)r->step, (long long)r->skips_in_row);
}

/* Returns whether too many updates in a row were skipped for the run to continue. With a dynamic
 * loss scale, which adapts by skipping updates, only two things count: updates that were skipped
 * because of a spike, and an overflow at the smallest scale (`stop`). */
static bool too_many_skipped(const Config *c, const StepRecord *r)
{
    bool dynamic = c->fp16.enabled && c->fp16.loss_scale == 0;
    int64_t in_row = r->spikes_in_row + (dynamic ? 0 : r->skips_in_row);
    return r->stop || in_row >= c->max_consecutive_skipped_steps;
}

void health_note(Run *run, const StepRecord *r)
{
    HealthPolicy policy = run->config->health.policy;
    bool spike_ends = r->spike && (policy == HEALTH_STOP || policy == HEALTH_ROLLBACK);
    if (r->spike)
        warn_spike(run, r);
    else if (!r->applied)
        warn_skipped(r);
    run->records.spiking = r->spike;
    if (run->records.event.step == 0 && (spike_ends || too_many_skipped(run->config, r)))
        run->records.event = *r;
}

/* ---- the end of the run ---------------------------------------------------------------------- */

bool health_goes_back(const Run *run)
{
    const Config *c = run->config;
    return c->health.policy == HEALTH_ROLLBACK &&
           run->records.event.rollbacks < c->health.max_rollbacks;
}

void health_say_why(const Run *run, char *out, size_t n)
{
    const StepRecord *r = &run->records.event;
    int64_t in_row = r->spikes_in_row + r->skips_in_row;
    if (r->stop)
        snprintf(out, n, "gradients overflow at the smallest loss scale (%g)", r->loss_scale);
    else if (r->spike && in_row <= 1)
        say_spike(r, out, n);
    else if (r->spikes_in_row > 0)
        snprintf(out, n, "%lld updates in a row were skipped, %lld of them because of a spike",
                 (long long)in_row, (long long)r->spikes_in_row);
    else if (r->skips_in_row == 1)
        snprintf(out, n, "its gradients are not finite");
    else
        snprintf(out, n, "%lld steps in a row had gradients that are not finite",
                 (long long)r->skips_in_row);
}

int64_t health_first_step(const Run *run)
{
    const StepRecord *r = &run->records.event;
    int64_t in_row = r->skips_in_row + r->spikes_in_row;
    return r->step - (in_row > 0 ? in_row - 1 : 0);
}

/* Returns whether the run's folder has a checkpoint from before records.event. */
static bool has_older(const Run *run)
{
    char ignored[512];
    int64_t *steps, older = 0;
    int n = checkpoint_list(run->folder.path, &steps, ignored, sizeof ignored);
    for (int i = 0; i < n; i++)
        older += steps[i] < health_first_step(run);
    if (n >= 0) free(steps);
    return older > 0;
}

/* Writes the end of the error message: what the user can do. */
static const char *say_instead(const Run *run, bool older, char *out, size_t n)
{
    const StepRecord *r = &run->records.event;
    /* If fp16 gradients overflowed, a smaller loss scale may help. */
    bool scaled = run->config->fp16.enabled && r->loss_scale > 1 && !r->spike;
    const char *key = r->stop ? "fp16.min_loss_scale" : "fp16.loss_scale";
    snprintf(
        out, n, "%s%s%s%slower optimizer.params.lr%s%s%s", scaled ? "write a smaller " : "",
        scaled ? key : "", scaled ? ", " : "", scaled && !older ? "or " : "",
        older ? ", or start again from an older checkpoint in " : "", older ? run->folder.path : "",
        r->spike ? "; --set health.policy=skip --allow-config-change leaves out such updates" : "");
    return out;
}

void health_end(Run *run, bool none_before)
{
    char err[512], why[200], often[80] = "", instead[PATH_MAX + 300];
    run_await_save(run); /* waits for a pending save of an earlier step */
    const StepRecord *r = &run->records.event;
    health_say_why(run, why, sizeof why);
    if (run->config->health.policy == HEALTH_ROLLBACK && !health_goes_back(run) && r->rollbacks > 0)
        snprintf(often, sizeof often, "the run has gone back %s (health.max_rollbacks); ",
                 figure_of(r->rollbacks, "time").text);
    if (run->lead) {
        metrics_note(run->output.metrics, "end", r->step, why);
        metrics_flush(run->output.metrics, err, sizeof err);
    }
    control_fail(run->world, EXIT_DIVERGED, "step %lld: %s; %s%s%s", (long long)r->step, why, often,
                 none_before ? "there is no checkpoint before it to go back to; " : "",
                 say_instead(run, !none_before && has_older(run), instead, sizeof instead));
}

/* ---- totals ---------------------------------------------------------------------------------- */

void health_take_up(Run *run, const StepState *s)
{
    run->records.last = decide_totals(s);
}

void health_print(const Run *run)
{
    const StepRecord *r = &run->records.last;
    char skipped[96] = "", spikes[48] = "", back[96] = "";
    const char *comma = "";
    if (r->skipped > 0) {
        snprintf(skipped, sizeof skipped, "%s skipped (%s)", figure_of(r->skipped, "update").text,
                 figure_of(r->skipped_tokens, "token").text);
        comma = ", ";
    }
    if (r->spikes > 0) {
        snprintf(spikes, sizeof spikes, "%s%s", comma, figure_of(r->spikes, "spike").text);
        comma = ", ";
    }
    if (r->rollbacks > 0)
        snprintf(back, sizeof back, "%s%s (%s left out)", comma,
                 figure_of(r->rollbacks, "rollback").text,
                 figure_of(r->data_offset, "sample").text);
    if (skipped[0] || spikes[0] || back[0]) log_field("health", "%s%s%s", skipped, spikes, back);
}
