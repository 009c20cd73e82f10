/* end.c -- ends a run on request or after its last step, and prints its final figures. */
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/shell_text.h"
#include "parallel/grid/control.h"
#include "parallel/report/console.h"
#include "parallel/run/best.h"
#include "parallel/run/between_steps.h"
#include "parallel/run/flights.h"
#include "parallel/run/health.h"
#include "parallel/run/identity.h"
#include "parallel/run/run_ranks.h"
#include "parallel/run/saving.h"
#include "parallel/run/signals.h"
#include "parallel/run/step_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Closes the run's files, trainer and folder, and frees its memory. */
static void run_close(Run *run)
{
    if (run->lead) ends_set_flush(NULL, NULL);
    metrics_close(run->output.metrics);
    run_close_flights(run);
    trainer_close(&run->trainer);
    run_close_log(run);
    run_folder_close(&run->folder);
    free(run->origin.config_text);
    free(run->origin.machine);
    free(run->init.path);
    free(run->records.sample);
    free(run->records.sets);
}

/* Returns whether the config can be read again: standard input and a pipe cannot. */
static bool config_stays(const Run *run)
{
    struct stat info;
    return stat(run->arguments.config, &info) == 0 && S_ISREG(info.st_mode);
}

/* Returns the command that continues the run: the same command or, if that cannot read its config
 * again or asks for a new run, the command with the run's folder. The caller frees it. */
static char *way_on(const Run *run)
{
    bool same = config_stays(run) && run->arguments.resume.kind != RESUME_NEVER;
    if (same) return must_strdup("the same command");
    char *folder = shell_quoted_path(run->folder.path);
    char *command = text_format("./train %s", folder);
    free(folder);
    return command;
}

/* Writes to out[0..n) what `command`, which continues the run, does if the last step is not saved.
 * Returns `out`. */
static const char *way_on_unsaved(const Run *run, const char *command, char *out, size_t n)
{
    if (run->saving.saved_step >= 0)
        snprintf(out, n, "%s goes on from the checkpoint before it", command);
    else
        snprintf(out, n, "no checkpoint was written, so %s begins anew", command);
    return out;
}

/* Returns what has ended the run, for its metrics: a time limit or a request. For a time limit,
 * also writes it to by_time[0..n), in brackets; if the job is about to end, prints that at once. */
static const char *reason_to_leave(const Run *run, char *by_time, size_t n)
{
    *by_time = '\0';
    if (run_job_is_ending(run)) {
        log_info("saving now: %s of the job are left", job_left(&run->job).text);
        snprintf(by_time, n, " (before the job ends)");
        return "before the job ends";
    }
    if (!run_time_is_over(run)) return "stopped on request";
    snprintf(by_time, n, " (max_time: %.6g s)", run->config->max_time);
    return "max_time reached";
}

int run_leave(Run *run)
{
    char err[512], unsaved[1024], by_time[64];
    char *command = way_on(run);
    const char *reason = reason_to_leave(run, by_time, sizeof by_time);
    run_read_records(run);
    run_await_save(run);
    /* If an event makes the run go back to a checkpoint, that comes first: no state from after the
     * event may be saved. */
    run_goes_back(run);
    run->saving.last_try = true; /* the process ends after the next save */
    if (run->saving.saved_step != run->trainer.steps) run_save(run);
    bool saved = run->saving.error == EXIT_OK;
    run_print_comms(run);
    /* Errors are ignored: the run ends even if the disk refuses this line. */
    if (run->lead) {
        metrics_note(run->output.metrics, "end", run->trainer.steps,
                     saved ? reason : "stopped, not saved");
        metrics_flush(run->output.metrics, err, sizeof err);
    }
    if (saved && run_is_over(run))
        log_info("stopped after the last step, %lld%s; %s evaluates and ends the run",
                 (long long)run->trainer.steps, by_time, command);
    else if (saved)
        log_info("stopped after step %lld%s; %s goes on from there", (long long)run->trainer.steps,
                 by_time, command);
    else
        log_warning("stopped after step %lld, which is not saved; %s",
                    (long long)run->trainer.steps,
                    way_on_unsaved(run, command, unsaved, sizeof unsaved));
    free(command);
    ExitCode code = saved ? EXIT_REQUEUE : run->saving.error;
    run_close(run);
    return (int)code;
}

/* Adds the figures of eval.sets. */
static void add_sets(RunResult *r, const Run *run)
{
    if (run->records.sets == NULL) return;
    r->set = must_calloc((size_t)run->trainer.n_sets + 1, sizeof *r->set);
    for (; r->n_sets < run->trainer.n_sets; r->n_sets++) {
        const EvalRecord *e = &run->records.sets[r->n_sets];
        r->set[r->n_sets] =
            (SetResult){.name = must_strdup(e->set),
                        .loss = e->loss,
                        .bits_per_byte = e->bits_per_byte >= 0 ? e->bits_per_byte : NAN,
                        .targets = e->targets};
    }
}

/* Returns the run's final figures and sample. The caller frees the texts. */
static RunResult result_of(const Run *run)
{
    RunResult r = {.steps = run->trainer.steps,
                   .tokens = run->records.last.tokens,
                   .loss = run->records.last.loss,
                   .val_loss = NAN,
                   .bits_per_byte = NAN,
                   .best_val_loss = NAN};
    if (run->trainer.val) {
        r.val_loss = run->records.eval.loss;
        r.batches = loader_micro_batches(run->trainer.val, &r.all_batches);
        if (run->records.eval.bits_per_byte >= 0) r.bits_per_byte = run->records.eval.bits_per_byte;
        add_sets(&r, run);
    }
    if (run->trainer.steps < run->config->train_steps) r.patience = run->config->eval.patience;
    if (best_has_risen(run)) {
        r.best_step = run->best.lowest.step;
        r.best_val_loss = run->best.lowest.loss;
    }
    if (run->records.sample) {
        r.prompt = must_strdup(run->config->eval.sample_prompt);
        r.sample = must_strdup(run->records.sample);
    }
    return r;
}

/* Prints what the user may try next, as commands that can be pasted. Omits the prompt if it is
 * empty or would fill the screen; generate then uses the prompt of the config. */
static void print_next(const Run *run, const char *prompt)
{
    enum { LONGEST = 400 };
    const char *label = "next";
    bool shown = *prompt && strlen(prompt) <= LONGEST;
    bool own = strcmp(config_origin(run->config, "data.text"), "--set") == 0;
    char *folder = shell_quoted_path(run->folder.path), *quoted = shell_quoted(prompt);
    char *config = shell_quoted_path(run->arguments.config);
    /* "--prompt --x" would be parsed as two options; "--prompt=--x" makes it a value. */
    if (run->data.tokenizer)
        log_info("next    ./train generate %s%s%s%s", folder, shown ? " --prompt" : "",
                 !shown                          ? ""
                 : strncmp(prompt, "--", 2) == 0 ? "="
                                                 : " ",
                 shown ? quoted : "");
    else if (run->data.val.n_files > 0)
        log_info("next    ./train eval %s", folder);
    if (run->data.tokenizer || run->data.val.n_files > 0) label = "";
    if (run->arguments.run != NULL || !config_stays(run)) {
        /* prints no command: a new run would need a config file */
    } else if (own) {
        log_info("%-8s./train report %s > report.html   # its curves and samples", label, folder);
    } else {
        log_info("%-8s./train %s --set data.text=my.txt   # your own text", label, config);
    }
    free(config);
    free(quoted);
    free(folder);
}

/* If the validation loss was lower at an earlier step, prints that step. Also prints the step of
 * the best checkpoint, if that is another one. */
static void print_best(const Run *run, const RunResult *r)
{
    const CheckpointBest *kept = &run->best.kept;
    char other[96] = "";
    if (r->best_step == 0) return;
    if (kept->step > 0 && kept->step != r->best_step)
        snprintf(other, sizeof other, "; the best checkpoint is that of step %lld (%.4f)",
                 (long long)kept->step, kept->val_loss);
    log_field("best", "validation was best at step %lld (%.4f) and has risen since%s",
              (long long)r->best_step, r->best_val_loss, other);
}

static void print_set(const SetResult *set)
{
    char bits[64] = "";
    if (!isnan(set->bits_per_byte))
        snprintf(bits, sizeof bits, ", %.4f bits per byte", set->bits_per_byte);
    log_field("", "%s: loss %.4f nats a token%s", set->name, set->loss, bits);
}

/* Prints the last lines of a run: its figures, its sample, and what to try next. */
static void print_result(const Run *run, const RunResult *r, bool with_sample)
{
    const char *given = r->prompt ? r->prompt : "";
    char loss[64] = "", bits[64] = "", part[96] = "";
    if (!isnan(r->bits_per_byte))
        snprintf(bits, sizeof bits, ", %.4f bits per byte", r->bits_per_byte);
    if (!isnan(r->loss)) snprintf(loss, sizeof loss, ", training loss %.4f", r->loss);
    if (with_sample && r->sample && log_level() <= LOG_INFO) {
        Console console; /* prints the sample in the same form as a running training */
        console_open(&console, &(MetricsOptions){0});
        console_sample(&console, given, r->sample);
    }
    log_info("done    %s, %s tokens%s", figure_of(r->steps, "step").text,
             figure_short((double)r->tokens).text, loss);
    if (r->batches < r->all_batches)
        snprintf(part, sizeof part, ", on %s of %s micro-batches",
                 figure_count((double)r->batches).text, figure_count((double)r->all_batches).text);
    if (!isnan(r->val_loss))
        log_field("val", "loss %.4f nats a token%s%s", r->val_loss, bits, part);
    for (int i = 0; i < r->n_sets; i++)
        print_set(&r->set[i]);
    print_best(run, r);
    if (r->patience > 0)
        log_field("ended", "before step %lld: %s in a row gained nothing (eval.patience)",
                  (long long)run->config->train_steps, figure_of(r->patience, "evaluation").text);
    print_next(run, given);
}

/* Prints that the run was already finished, and how to make it longer or to start another one. */
static void print_finished(const Run *run)
{
    char *folder = shell_quoted_path(run->folder.path);
    char *longer =
        run->folder.result.patience > 0
            ? must_strdup("eval.patience=0 goes on")
            : text_format("train_steps=N%s makes it longer", identity_length_option(run->config));
    if (run->arguments.run)
        log_info("run     %s is finished; --set %s", run->folder.path, longer);
    else
        log_info("run     %s is finished; %s starts another", run->folder.path,
                 run->arguments.out ? "another --out" : "--resume never");
    if (run->arguments.run == NULL) log_info("        ./train %s --set %s", folder, longer);
    free(longer);
    free(folder);
}

int run_show_result(Run *run)
{
    if (run->lead) {
        print_finished(run);
        identity_warn_data_change(run->folder.path, run->data.identity);
        char ignored[512];
        checkpoint_best_read(run->folder.path, &run->best.kept, ignored, sizeof ignored);
        print_result(run, &run->folder.result, true);
    }
    trainer_close(&run->trainer);
    run_folder_close(&run->folder);
    return EXIT_OK;
}

/* Ends the run (EXIT_DIVERGED) after its last step; `why`: the reason. Keeps its checkpoints and
 * writes no result. */
static void refuse_result(Run *run, const char *why)
{
    char err[512];
    if (run->lead) {
        metrics_note(run->output.metrics, "end", run->trainer.steps, "diverged");
        metrics_flush(run->output.metrics, err, sizeof err);
    }
    control_fail(
        run->world, EXIT_DIVERGED,
        "step %lld is the last, and %s: the run has diverged and has no result. Its "
        "checkpoints stay; lower optimizer.params.lr, or start from one that was saved before "
        "with --resume %s/checkpoints/STEP --out ANOTHER",
        (long long)run->trainer.steps, why, run->folder.path);
}

/* Ends the run (EXIT_DIVERGED) if `loss` is not finite; `what` is its name in the message. */
static void check_loss(Run *run, const char *what, double loss)
{
    char why[64];
    if (isfinite(loss)) return;
    snprintf(why, sizeof why, "%s is not finite", what);
    refuse_result(run, why);
}

/* Ends the run (EXIT_DIVERGED) if no update was applied, if the last ones were skipped because
 * their gradients were not finite or the loss had a spike, or if more than half of all were
 * skipped: the final figures show none of this. Updates that are skipped while a dynamic loss scale
 * adapts are normal and only cause a warning: at the start the scale is halved until the gradients
 * fit; later it is doubled once in a while, and then up to `hysteresis` updates in a row are
 * skipped. */
static void check_updates(Run *run)
{
    const Config *c = run->config;
    const StepRecord *r = &run->records.last;
    bool dynamic = c->fp16.enabled && c->fp16.loss_scale == 0;
    int64_t in_row = dynamic ? c->fp16.hysteresis : 0;
    int64_t at_start = dynamic ? c->fp16.initial_scale_power + c->fp16.hysteresis - 1 : 0;
    char why[128];
    Figure skipped = figure_count((double)r->skipped);
    int64_t last = r->skips_in_row + r->spikes_in_row;
    if (r->skipped == 0) return;
    if (r->updates == 0)
        snprintf(why, sizeof why, "all %s updates were skipped", skipped.text);
    else if (last > 1)
        snprintf(why, sizeof why, "the last %s updates were skipped",
                 figure_count((double)last).text);
    else if (last == 1)
        snprintf(why, sizeof why, "the last update was skipped");
    else if (r->skipped > r->updates)
        snprintf(why, sizeof why, "%s of %s updates were skipped", skipped.text,
                 figure_count((double)(r->skipped + r->updates)).text);
    else
        return;
    if (r->updates == 0 || last > in_row || r->skipped - at_start > r->updates)
        refuse_result(run, why);
    if (run->lead) log_warning("%s", why);
}

/* Writes result.json and prints the result, on rank 0. This comes last, because result.json marks
 * the run as finished for the next start. */
static void write_result(Run *run)
{
    char err[2048];
    RunResult result = result_of(run);
    if (!metrics_flush(run->output.metrics, err, sizeof err) ||
        !run_folder_finish(&run->folder, &result, err, sizeof err))
        control_fail(run->world, EXIT_INPUT_OUTPUT,
                     "the run reached its goal, but its result is not written: %s", err);
    health_print(run);
    print_result(run, &result, false);
    run_result_free(&result);
}

int run_finish(Run *run)
{
    char why[1024];
    run_await_save(run);
    run_read_records(run);
    /* Save before the evaluation and the sample, so a crash in them loses no step. */
    if (run->saving.saved_step != run->trainer.steps) run_save(run);
    /* If this attempt resumed after the last step, the loss is known only if the metrics contain
     * it. */
    if (run->records.last_known) check_loss(run, "its loss", run->records.last.loss);
    check_updates(run);
    /* A run that eval.patience ends has just evaluated this step, which is not repeated. But if
     * this attempt resumed at this step, it does not have the figures of eval.sets. */
    bool evaluated = best_has_stalled(run) && run->records.eval.step == run->trainer.steps &&
                     (run->trainer.n_sets == 0 || run->records.sets != NULL);
    if (!evaluated && !run_evaluate(run, true)) return run_leave(run);
    if (evaluated) best_keep(run); /* now that the step is saved, it may be the best */
    if (run->trainer.val) check_loss(run, "the validation loss", run->records.eval.loss);
    if (run->records.last.skips_in_row == 0 && !run_is_healthy(run, why, sizeof why))
        log_warning("the run ends at step %lld while %s", (long long)run->trainer.steps, why);
    if (!run_sample(run)) return run_leave(run);
    run->saving.last_try = true;
    if (run->saving.error != EXIT_OK) run_save(run); /* the disk may have space by now */
    run_print_comms(run);
    if (run->lead)
        metrics_note(run->output.metrics, "end", run->trainer.steps,
                     run->trainer.steps < run->config->train_steps ? "eval.patience reached"
                                                                   : "train_steps reached");
    if (run->saving.error != EXIT_OK) {
        char *command = way_on(run);
        control_fail(run->world, run->saving.error,
                     "the run reached its goal, but its last checkpoint is not written (see the "
                     "warning above); when that can be done, %s",
                     way_on_unsaved(run, command, why, sizeof why));
    }
    if (run->lead) write_result(run);
    comm_barrier(run->world); /* the others wait until rank 0 has written the result */
    run_close(run);
    return EXIT_OK;
}
