/* run_loop.c -- what happens between steps: reports, evaluations, samples, saves, and how a run
 * ends. */
#include "model/core/log.h"
#include "parallel/metrics_file.h"
#include "parallel/run.h"

#include <cJSON.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Written by the handler only; a signal has no other way to speak. */
static volatile sig_atomic_t stop_signal;

double run_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const int watched_signals[] = {SIGINT, SIGTERM, SIGUSR1};
enum { N_WATCHED = sizeof watched_signals / sizeof watched_signals[0] };

/* The first signal asks for a stop after the step and gives the default actions back. The second
 * acts at once: by default, or, when both were pending and their handlers nest, by being raised
 * again. */
static void on_signal(int number)
{
    bool second = stop_signal != 0;
    stop_signal = number;
    for (int i = 0; i < N_WATCHED; i++)
        signal(watched_signals[i], SIG_DFL);
    if (second) raise(number);
}

void run_watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (int i = 0; i < N_WATCHED; i++)
        sigaction(watched_signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

bool run_stop_asked(const Run *run)
{
    return stop_signal != 0 || run_folder_stop_asked(&run->folder);
}

static bool due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

/* Host time outside of steps does not count as speed. */
static void pause_clock(Run *run)
{
    run->window_seconds += run_now() - run->window_start;
}

static void resume_clock(Run *run)
{
    run->window_start = run_now();
}

/* Ends the run when its numbers have left it. */
static void check_divergence(Run *run, const StepRecord *r)
{
    char err[512];
    const Config *c = run->config;
    bool too_many = !c->fp16.enabled || c->fp16.loss_scale > 0;
    too_many = too_many && r->skips_in_row >= c->max_consecutive_skipped_steps;
    if (!r->stop && !too_many) return;
    char *why =
        r->stop ? text_format("gradients overflow at the smallest loss scale (%g)", r->loss_scale)
                : text_format("%lld steps in a row had gradients that are not finite",
                              (long long)r->skips_in_row);
    metrics_note(run->metrics, "end", r->step, why);
    metrics_flush(run->metrics, err, sizeof err);
    fail(EXIT_DIVERGED,
         "step %lld: %s; lower optimizer.params.lr, or start again from an older checkpoint in %s",
         (long long)r->step, why, run->folder.path);
}

/* Takes the records of the steps that have ended, or waits for all. */
static void take_records(Run *run, bool all)
{
    StepRecord record[TRAINER_HISTORY];
    int n = (all ? trainer_drain : trainer_collect)(&run->trainer, record);
    for (int i = 0; i < n; i++) {
        metrics_step(run->metrics, &record[i]);
        if (!record[i].applied)
            log_warning("step %lld: gradients are not finite, update skipped (%lld in a row)",
                        (long long)record[i].step, (long long)record[i].skips_in_row);
        check_divergence(run, &record[i]);
    }
    if (n > 0) run->last = record[n - 1];
    run->window_steps += n;
}

static void drain(Run *run)
{
    take_records(run, true);
}

/* The live line, between printed steps twice a second at most. */
static void show_live(Run *run, bool print)
{
    double now = run_now(), seconds = run->window_seconds + now - run->window_start;
    if (run->window_steps == 0 || (!print && now - run->shown_at < 0.5)) return;
    metrics_live(run->metrics, &run->last, seconds / (double)run->window_steps);
    run->shown_at = now;
}

static void report(Run *run)
{
    const Config *c = run->config;
    Trainer *t = &run->trainer;
    bool breakdown = c->wall_clock_breakdown;
    pause_clock(run);
    SpeedRecord speed = {.seconds = run->window_seconds,
                         .steps = run->window_steps,
                         .tokens = run->window_steps * c->train_batch_size * c->data.seq_length,
                         .flops_per_token =
                             gpt_flops_per_token(&t->session.layers.shape, c->data.seq_length),
                         .forward = breakdown ? t->seconds_forward : -1,
                         .backward = breakdown ? t->seconds_backward : -1,
                         .optimizer = breakdown ? t->seconds_optimizer : -1,
                         .data = breakdown ? t->feed.seconds : -1};
    metrics_report(run->metrics, &speed);
    t->seconds_forward = t->seconds_backward = t->seconds_optimizer = t->feed.seconds = 0;
    run->window_seconds = 0;
    run->window_steps = 0;
    resume_clock(run);
}

void run_report(Run *run)
{
    const Config *c = run->config;
    int64_t step = run->trainer.steps;
    bool print = due(step, c->steps_per_print) || step == c->train_steps;
    /* The device is waited for when its step is to be printed, and else only for lack of room. */
    take_records(run, print || step - run->trainer.drained == TRAINER_HISTORY);
    show_live(run, print);
    if (print && c->steps_per_print > 0) {
        report(run);
        run_tell_memory(run, "after a step");
    }
}

static void evaluate(Run *run, int64_t batches, bool final)
{
    if (run->trainer.val == NULL) return;
    drain(run); /* what the device still owes is step time */
    pause_clock(run);
    run->eval = trainer_evaluate(&run->trainer, batches);
    run->eval.final = final;
    metrics_eval(run->metrics, &run->eval);
    run_tell_memory(run, "after an evaluation");
    resume_clock(run);
}

static void sample(Run *run)
{
    const Config *c = run->config;
    drain(run);
    pause_clock(run);
    char *text = trainer_sample(&run->trainer, c->eval.sample_prompt, c->eval.sample_tokens);
    if (text) {
        metrics_sample(run->metrics, run->trainer.steps, c->eval.sample_prompt, text);
        free(run->sample);
        run->sample =
            metrics_clean_text(text); /* result.json is UTF-8, whatever the model has drawn */
        free(text);
    }
    resume_clock(run);
}

/* Commits a checkpoint; a failure is said and the run goes on. */
static void save(Run *run)
{
    char err[2048];
    drain(run);
    double start = run_now();
    pause_clock(run);
    bool ok = metrics_flush(run->metrics, err, sizeof err) &&
              trainer_save(&run->trainer, run->folder.path, run->config_text, run->machine, err,
                           sizeof err);
    run->save_failed = !ok;
    if (ok) {
        char *path = checkpoint_path(run->folder.path, run->trainer.steps);
        run->saved_step = run->trainer.steps;
        metrics_saved(run->metrics, run->trainer.steps, run_now() - start, path);
        free(path);
    } else {
        log_warning("step %lld is not saved: %s; trying again at the next interval",
                    (long long)run->trainer.steps, err);
        metrics_note(run->metrics, "warn", run->trainer.steps, err);
    }
    resume_clock(run);
}

void run_evaluate_if_due(Run *run)
{
    const Config *c = run->config;
    if (due(run->trainer.steps, c->eval.interval) && run->trainer.steps < c->train_steps)
        evaluate(run, c->eval.steps, false);
}

void run_sample_if_due(Run *run)
{
    const Config *c = run->config;
    if (due(run->trainer.steps, c->eval.sample_interval) && run->trainer.steps < c->train_steps)
        sample(run);
}

void run_save_if_due(Run *run)
{
    if (due(run->trainer.steps, run->config->checkpoint.save_interval)) save(run);
}

/* Closes what the run holds. */
static void run_close(Run *run)
{
    metrics_close(run->metrics);
    trainer_close(&run->trainer);
    run_folder_close(&run->folder);
    data_close(&run->data);
    free(run->config_text);
    free(run->machine);
    free(run->sample);
    free(run->arguments.set);
    config_free(run->config);
}

int run_leave(Run *run)
{
    char err[512];
    drain(run);
    if (run->saved_step != run->trainer.steps) save(run);
    bool saved = !run->save_failed;
    metrics_note(run->metrics, "end", run->trainer.steps,
                 saved ? "stopped on request" : "stopped, not saved");
    metrics_flush(run->metrics, err, sizeof err);
    if (saved)
        log_info("stopped after step %lld; the same command goes on from there",
                 (long long)run->trainer.steps);
    else
        log_warning("stopped after step %lld, which is not saved; the same command goes on from "
                    "the newest checkpoint there is",
                    (long long)run->trainer.steps);
    run_close(run);
    return saved ? EXIT_REQUEUE : EXIT_INPUT_OUTPUT;
}

/* The final figures as JSON, for result.json. */
static char *result_text(const Run *run)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "steps", (double)run->trainer.steps);
    cJSON_AddNumberToObject(o, "tokens", (double)run->last.tokens);
    cJSON_AddNumberToObject(o, "loss", run->last.loss);
    if (run->trainer.val) {
        cJSON_AddNumberToObject(o, "val_loss", run->eval.loss);
        cJSON_AddNumberToObject(o, "bits_per_byte", run->eval.bits_per_byte);
    }
    if (run->sample) {
        cJSON_AddStringToObject(o, "prompt", run->config->eval.sample_prompt);
        cJSON_AddStringToObject(o, "sample", run->sample);
    }
    char *text = cJSON_Print(o);
    cJSON_Delete(o);
    return text;
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* The last lines of a run: figures, sample, and what to try next. */
static void print_result(const char *folder, const char *text, const char *config, bool with_sample)
{
    cJSON *o = cJSON_Parse(text);
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(o, "prompt");
    const cJSON *sampled = cJSON_GetObjectItemCaseSensitive(o, "sample");
    const char *said = cJSON_IsString(prompt) ? prompt->valuestring : "";
    char loss[64] = "";
    if (!isnan(number_of(o, "loss"))) /* NaN: the last step was of an attempt before this one */
        snprintf(loss, sizeof loss, ", training loss %.4f", number_of(o, "loss"));
    log_info("done    %.0f steps, %.2f M tokens%s", number_of(o, "steps"),
             number_of(o, "tokens") / 1e6, loss);
    if (with_sample && cJSON_IsString(sampled))
        log_info("sample  %s%s", said, sampled->valuestring);
    if (!isnan(number_of(o, "val_loss")))
        log_info("val     loss %.4f nats a token, %.4f bits per byte", number_of(o, "val_loss"),
                 number_of(o, "bits_per_byte"));
    log_info("next    ./train generate %s --prompt \"%s\"", folder, *said ? said : "...");
    log_info("        ./train %s --set data.text=my.txt --set model.num_layers=6     your own "
             "text, another model",
             config);
    cJSON_Delete(o);
}

int run_show_result(Run *run)
{
    char *text = run_folder_result(&run->folder);
    log_info("run     %s is finished; --resume never starts another", run->folder.path);
    run_say_data_change(run);
    if (text) print_result(run->folder.path, text, run->arguments.config, true);
    free(text);
    run_folder_close(&run->folder);
    data_close(&run->data);
    config_free(run->config);
    free(run->arguments.set);
    return EXIT_OK;
}

int run_finish(Run *run)
{
    char err[2048];
    drain(run);
    evaluate(run, 0, true);
    sample(run);
    if (run->saved_step != run->trainer.steps) save(run);
    metrics_note(run->metrics, "end", run->trainer.steps, "train_steps reached");
    if (run->save_failed)
        fail(EXIT_INPUT_OUTPUT, "the run reached its goal, but its last checkpoint is not written; "
                                "make room, and the same command goes on from the one before");
    char *text = result_text(run);
    if (!metrics_flush(run->metrics, err, sizeof err) ||
        !run_folder_finish(&run->folder, text, err, sizeof err))
        fail(EXIT_INPUT_OUTPUT, "the run reached its goal, but its result is not written: %s", err);
    print_result(run->folder.path, text, run->arguments.config, false);
    free(text);
    run_close(run);
    return EXIT_OK;
}
