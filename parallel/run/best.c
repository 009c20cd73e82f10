/* best.c -- tracks the validation loss of a run, and keeps the checkpoint with the lowest one. See
 * best.h.
 *
 * Which checkpoint is the best is recorded in a file next to the checkpoints. The lowest loss needs
 * no file of its own: metrics.jsonl has every evaluation, and at a resume it is cut back to the
 * step of the checkpoint. */
#include "parallel/run/best.h"

#include "data/identity.h"
#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/min_max.h"
#include "parallel/grid/control.h"
#include "parallel/run/saving.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* FIRST: no best checkpoint is saved in the first 1/FIRST of the run, because there nearly every
 * evaluation is the best so far. EACH: at most this many best checkpoints are saved per
 * save_interval. */
enum { FIRST = 10, EACH = 4 };

bool best_is_kept(const Config *c, const DataSet *data)
{
    return c->checkpoint.keep_best && data->val.n_files > 0;
}

bool best_takes_disk(const Config *c, const DataSet *data)
{
    return best_is_kept(c, data) && c->eval.interval > 0 && c->eval.interval < c->train_steps;
}

/* Returns the least number of steps between two saves of a best checkpoint. */
static int64_t least_distance(const Config *c)
{
    int64_t interval = c->checkpoint.save_interval;
    if (interval <= 0 || interval > c->train_steps) interval = c->train_steps;
    return (interval + EACH - 1) / EACH;
}

int64_t best_most_saves(const Config *c)
{
    int64_t save = c->checkpoint.save_interval, interval = c->eval.interval;
    if (save > 0 && interval % save == 0) return 0;
    int64_t distance = least_distance(c);
    return (c->train_steps - 1) / max_i64(interval, distance);
}

/* ---- opening --------------------------------------------------------------------------------- */

ExitCode best_failure(const char *err)
{
    bool failed = error_says(err, EIO) || error_says(err, ESTALE);
    return error_exit_code(err, failed ? EXIT_INPUT_OUTPUT : EXIT_DAMAGED);
}

/* Ends the program if `err` shows that the best checkpoint could not be read because of a system
 * error. The checkpoint may be intact, and without its record the next save would remove it. */
static void require_readable(const Run *run, const char *err)
{
    ExitCode code = best_failure(err);
    if (code == EXIT_DAMAGED) return;
    fail(code,
         "the best checkpoint may be whole, but cannot be read (to give it up, remove "
         "%s/checkpoints/best.json): %s",
         run->folder.path, err);
}

/* Returns the record of the best checkpoint, on rank 0; step 0 if there is no valid one. A record
 * of a damaged or missing checkpoint is removed. If the checkpoint cannot be read for another
 * reason, the program ends. A record that was made with different validation data stays, so that
 * its checkpoint is kept, but its loss is not compared: the next evaluation replaces it. */
static CheckpointBest read_record(const Run *run, const Checkpoint *resumed)
{
    char err[1024];
    CheckpointBest best;
    Checkpoint *c = NULL;
    bool good = checkpoint_best_find(run->folder.path, &best, &c, err, sizeof err), same = true;
    /* The best checkpoint can be newer than `resumed` only if it is damaged; otherwise the run
     * would have resumed from it. */
    bool ahead = resumed == NULL || best.step > checkpoint_manifest(resumed)->state.steps;
    bool kept = !ahead && best_is_kept(run->config, &run->data);
    if (!good && kept) require_readable(run, err);
    if (!good) log_warning("%s; the best checkpoint is chosen anew", err);
    if (c) same = data_identity_same_val(checkpoint_manifest(c)->data, run->data.identity);
    checkpoint_close(c);
    if (good && best.step == 0) return best;
    if (good && kept) return same ? best : (CheckpointBest){0};
    if (!checkpoint_best_forget(run->folder.path, err, sizeof err)) log_warning("%s", err);
    return (CheckpointBest){0};
}

/* Restores the lowest loss and the newest evaluation from the metrics, on rank 0. */
static void take_metrics(Run *run, const Checkpoint *resumed)
{
    MetricsTail tail = metrics_tail(run->output.metrics);
    if (!data_identity_same_val(checkpoint_manifest(resumed)->data, run->data.identity)) {
        metrics_note(run->output.metrics, "data", run->trainer.steps, "other validation data");
        return;
    }
    run->best.lowest = tail.lowest;
    run->best.since = tail.since_lowest;
    if (tail.evaluated && tail.last.step == run->trainer.steps) run->records.eval = tail.eval;
    /* If the metrics have been lost, the loss of the best checkpoint counts as the lowest. */
    if (run->best.lowest.step == 0 && run->best.kept.step > 0)
        run->best.lowest =
            (EvalRecord){.step = run->best.kept.step, .loss = run->best.kept.val_loss};
}

/* Restores run->best and the newest evaluation, and sends them to all ranks. */
static void restore(Run *run, const Checkpoint *resumed)
{
    if (run->lead) run->best.kept = read_record(run, resumed);
    if (run->lead && resumed) take_metrics(run, resumed);
    control_share(run->world, &run->best, sizeof run->best);
    control_share(run->world, &run->records.eval, sizeof run->records.eval);
}

void best_open(Run *run, const Checkpoint *resumed)
{
    if (run->folder.state == RUN_RESUMED) restore(run, resumed);
}

void best_forget_after(const Run *run, int64_t step)
{
    char err[1024];
    CheckpointBest best;
    /* If the record cannot be read, best_go_back handles that. */
    if (!run->lead || !checkpoint_best_read(run->folder.path, &best, err, sizeof err)) return;
    if (best.step > step && !checkpoint_best_forget(run->folder.path, err, sizeof err))
        log_warning("%s", err);
}

void best_go_back(Run *run, const Checkpoint *to)
{
    run->best = (RunBest){0};
    run->records.eval = (EvalRecord){0};
    free(run->records.sets);
    run->records.sets = NULL;
    restore(run, to);
}

/* ---- after an evaluation --------------------------------------------------------------------- */

/* Returns whether the newest evaluation makes this step the best checkpoint. */
static bool is_best(const Run *run)
{
    const Config *c = run->config;
    const CheckpointBest *kept = &run->best.kept;
    int64_t step = run->trainer.steps;
    if (!best_is_kept(c, &run->data) || step * FIRST < c->train_steps) return false;
    if (kept->step > 0 && !(run->records.eval.loss < kept->val_loss)) return false;
    return run->saving.saved_step == step || run_saving_step(run) == step || kept->step == 0 ||
           step - kept->step >= least_distance(c);
}

/* Removes the checkpoint that was the best until now, unless it is among those kept anyway. */
static void remove_former(Run *run)
{
    char err[1024];
    int64_t keep = run->config->checkpoint.keep;
    if (keep > 0 && !run->trainer.keep_all &&
        !checkpoint_prune(&run->trainer.io, run->folder.path, run->saving.saved_step, (int)keep,
                          err, sizeof err))
        log_warning("%s; older checkpoints stay", err);
}

void best_compare(Run *run)
{
    RunBest *b = &run->best;
    const EvalRecord *e = &run->records.eval;
    bool lower = isfinite(e->loss) && (b->lowest.step == 0 || e->loss < b->lowest.loss);
    /* The loss should be the same on all ranks. Rank 0's result is used nevertheless, because all
     * ranks must end after the same step. */
    control_share(run->world, &lower, sizeof lower);
    b->since++;
    if (!lower) return;
    b->lowest = *e;
    b->since = 0;
}

bool best_has_stalled(const Run *run)
{
    int64_t patience = run->config->eval.patience;
    return patience > 0 && run->best.since >= patience;
}

void best_keep(Run *run)
{
    char err[1024];
    const EvalRecord *e = &run->records.eval;
    RunBest *b = &run->best;
    /* Rank 0 decides here, too: a save that only some ranks make would never end. */
    bool best = isfinite(e->loss) && is_best(run);
    control_share(run->world, &best, sizeof best);
    if (!best) return;
    run_await_save(run);
    if (run->saving.saved_step != run->trainer.steps) run_save(run);
    if (run->saving.saved_step != run->trainer.steps) return;
    CheckpointBest record = {.step = run->trainer.steps, .val_loss = e->loss};
    int64_t noted = flight_work_begin(run->trainer.session.flight, FLIGHT_DISK);
    bool written =
        checkpoint_best_write(&run->trainer.io, run->folder.path, &record, err, sizeof err);
    flight_work_end(run->trainer.session.flight, noted);
    if (!written) {
        log_warning("step %lld is not recorded as the best: %s", (long long)record.step, err);
        return;
    }
    b->kept = record;
    remove_former(run);
    char text[64];
    snprintf(text, sizeof text, "val %.4f", e->loss);
    if (run->lead) metrics_note(run->output.metrics, "best", record.step, text);
}

bool best_has_risen(const Run *run)
{
    const EvalRecord *e = &run->records.eval, *lowest = &run->best.lowest;
    return lowest->step > 0 && lowest->step < e->step && e->loss > lowest->loss + 5e-5;
}
