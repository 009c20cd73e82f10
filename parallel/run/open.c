/* open.c -- opens a run: reads the config, chooses the folder, and allocates a trainer that is
 * ready for its first step. */
#include "parallel/run/open.h"

#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/files.h"
#include "model/core/json_write.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "model/core/version.h"
#include "optim/step_constants.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "parallel/grid/started_by.h"
#include "parallel/run/best.h"
#include "parallel/run/between_steps.h"
#include "parallel/run/disk.h"
#include "parallel/run/identity.h"
#include "parallel/run/init_from.h"
#include "parallel/run/own_tokenizer.h"
#include "parallel/run/rollback.h"
#include "parallel/run/run_path.h"
#include "parallel/run/run_ranks.h"
#include "parallel/run/signals.h"
#include "parallel/trainer/save.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sets the number of ranks: the given one, or else that of the run that is continued, or 1. */
static void settle_ranks(RunArguments *a, const Config *config)
{
    bool given = a->ranks > 0;
    if (launch_joined()) return;
    if (!given && a->run != NULL && config->world > LAUNCH_MAX_RANKS)
        fail(EXIT_CONFIG, "%s: _world: %lld ranks are more than %d; give --ranks", a->config,
             (long long)config->world, LAUNCH_MAX_RANKS);
    if (!given) a->ranks = a->run != NULL && config->world > 0 ? config->world : 1;
    /* 0: no number of ranks is given. Then no task of a SLURM job may be idle. */
    started_by_require(given || a->ranks > 1 ? a->ranks : 0);
}

/* Returns whether the console prints JSON lines. --json applies to one start of the run and is not
 * stored in its config; logging.json is. */
static bool speaks_json(const Run *run)
{
    return run->config->logging.json || run->arguments.json;
}

/* Reads which batch job the run was started in, and prints it. */
static void read_job(BatchJob *job)
{
    char err[512];
    bool over;
    if (!job_read(job, &process_environment, &over, err, sizeof err)) fail(EXIT_USAGE, "%s", err);
    if (over) log_warning("SLURM_JOB_END_TIME is over: the end of the job is not known");
    if (job->text[0] != '\0' && job->end > 0)
        log_field("job", "%s, %s left", job->text, job_left(job).text);
    else if (job->text[0] != '\0')
        log_field("job", "%s", job->text);
}

void run_configure(Run *run, const RunArguments *a)
{
    ConfigReport report = {0};
    *run = (Run){.arguments = *a, .started = seconds_now()};
    /* The number of a launcher's ranks counts as given by the user. */
    int64_t ranks = run->arguments.ranks = launch_count(a->ranks, 0, a->kind);
    if (launch_joined() && strcmp(a->config, "-") == 0)
        fail(EXIT_USAGE, "a launcher's ranks do not share standard input: write the config to a "
                         "file that all of them can read");
    /* Checked here, because the config reader's message has no advice for a new user. */
    if (strcmp(a->config, "-") != 0 && access(a->config, R_OK) != 0) {
        if (errno != ENOENT)
            fail(EXIT_MISSING, "%s cannot be read: %s", a->config, strerror(errno));
        fail(EXIT_MISSING, "%s cannot be read: give the path of a config, e.g. configs/demo.json",
             a->config);
    }
    ConfigContext context = session_context(ranks > 0 || a->run != NULL ? ranks : 1);
    context.resumed = a->run != NULL;
    run->config = config_load_with_own_tokenizer(a, &context, &report);
    config_report_print(&report, a->verbose, run->config && !a->json ? stdout : stderr);
    int code = config_report_code(&report);
    config_report_free(&report);
    if (run->config == NULL) exit(code);
    settle_ranks(&run->arguments, run->config);
    if (speaks_json(run)) log_set_level(LOG_WARNING);
    log_info("%s", program_version());
    log_field("config", "%s", a->config);
    read_job(&run->job);
    run->world = launch_join(run->config);
}

/* Prints the sets of eval.sets, and how much of them each evaluation covers. */
static void print_sets(const Run *run)
{
    for (int i = 0; i < run->trainer.n_sets; i++) {
        int64_t all, some = loader_micro_batches(run->trainer.sets[i], &all);
        log_field(i == 0 ? "sets" : "", "%s: %s tokens, %s of %s micro-batches%s",
                  run->data.sets[i].name,
                  figure_count((double)run->data.sets[i].tokens.n_tokens).text,
                  figure_count((double)some).text, figure_count((double)all).text,
                  run->data.sets[i].cached ? "   (cached)" : "");
    }
}

/* Prints how much of the optimizer's states is in page-locked host memory. Prints nothing on a CPU.
 */
static void print_host_states(const Run *run)
{
    const HostStates *states = &run->trainer.host_states;
    if (run->plan.on_host || run->plan.offloaded == 0) return;
    log_field("states",
              "%s of optimizer states (%.0f %%) on the host, page-locked in %s; each step moves "
              "them once each way",
              figure_bytes((double)run->plan.offloaded).text,
              100 * memory_offloaded_share(&run->plan), figure_seconds(states->seconds).text);
}

void run_allocate_trainer(Run *run, const Config *config)
{
    char err[2048];
    Device *dev = &run->trainer.session.dev;
    MemoryMark before = memory_mark(dev); /* all memory allocated from here on is the run's */
    progress_again(&run->work.progress);
    progress_print(&run->work.progress, "allocating memory and initializing the weights");
    run_take_place(run);
    /* The ranks need not agree on this failure: the failing rank ends all ranks, which wait for it
     * in this function. */
    if (!trainer_allocate(&run->trainer, config, &run->data, err, sizeof err))
        fail(EXIT_DAMAGED, "%s", err);
    trainer_warm_up(&run->trainer);
    run_speak_for_all(run);
    progress_end(&run->work.progress);
    memory_measure_reserve(run->world, config, &run->plan, before, memory_mark(dev));
    memory_print_use(run->config, &run->plan, "weights, gradients and optimizer are laid out");
    log_field("device", "%s", device_describe(dev, err, sizeof err));
    print_host_states(run);
    const Loader *train = run->trainer.train;
    if (run->data.random) return;
    int64_t dropped = loader_dropped_tokens(train);
    log_field("windows", "%s of %s; %s at the end fill%s none",
              figure_count((double)loader_windows(train)).text,
              figure_of(run->config->data.seq_length, "token").text,
              figure_of(dropped, "token").text, dropped == 1 ? "s" : "");
    if (run->trainer.val == NULL) return;
    int64_t all, some = loader_micro_batches(run->trainer.val, &all);
    if (some < all)
        log_field("val", "each evaluation covers %s of %s micro-batches (eval.steps)",
                  figure_count((double)some).text, figure_count((double)all).text);
    print_sets(run);
}

/* Opens the checkpoint that --resume names, or the newest one of the run that it names, without
 * reading its data. Ends the program if there is none. */
static Checkpoint *open_resume_path(const char *path)
{
    char err[2048];
    Checkpoint *checkpoint = NULL;
    /* Every checkpoint has a manifest; without one, the path is a run folder, or unsuitable. */
    char *manifest = text_format("%s/manifest.json", path);
    bool there = access(manifest, F_OK) == 0;
    if (!there && errno == EACCES) fail(EXIT_PERMISSION, "--resume %s: %s", path, strerror(EACCES));
    free(manifest);
    if (there) {
        if (!checkpoint_open(path, &checkpoint, err, sizeof err)) fail(EXIT_DAMAGED, "%s", err);
    } else if (run_path_is_run(path)) {
        if (!identity_newest_checkpoint(path, &checkpoint, err, sizeof err))
            fail(EXIT_MISSING, "--resume %s: %s", path, err);
        if (checkpoint == NULL)
            fail(EXIT_MISSING, "--resume %s: this run has no checkpoint that can be opened", path);
    } else {
        fail(EXIT_MISSING,
             "--resume %s: no checkpoint is there; give one such as RUN/checkpoints/step_00000100 "
             "(./train ckpt list RUN), or the folder of a run, such as out/demo",
             path);
    }
    return checkpoint;
}

/* Checks the checkpoint that --resume names, before anything is written. Ends the program if it
 * cannot be used. */
static void check_resume_path(const Run *run)
{
    const char *path = run->arguments.resume.path;
    ConfigReport report = {0};
    if (path == NULL) return;
    Checkpoint *checkpoint = open_resume_path(path);
    identity_check_start_step(path, checkpoint_manifest(checkpoint)->state.steps, run->config);
    const char *text = checkpoint_manifest(checkpoint)->config;
    const Config *stored =
        config_parse(&(ConfigContext){.stored = true}, path, text, strlen(text), 0, NULL, &report);
    /* The config of a later version may not parse, but its weights may still be usable. */
    if (stored) identity_check_start_config(path, stored, run->config);
    identity_check_start_data(path, checkpoint_manifest(checkpoint)->data, run->data.identity);
    config_free(stored);
    config_report_free(&report);
    checkpoint_close(checkpoint);
}

RunRequest run_request(const Run *run)
{
    return (RunRequest){.out = run->arguments.out,
                        .never_resume = run->arguments.resume.kind == RESUME_NEVER,
                        .allow_config_change = run->arguments.allow_config_change};
}

/* Chooses, creates and locks the folder, on rank 0. */
static void choose_folder(Run *run)
{
    const Config *c = run->config;
    char err[2048];
    ExitCode code = EXIT_CANNOT_CREATE;
    if (c->dump_state && !speaks_json(run)) config_print(c, stdout);
    init_from_find(run);
    check_resume_path(run);
    RunRequest request = run_request(run);
    if (!run_folder_open(&run->folder, run->config, &request, err, sizeof err, &code))
        fail(code, "%s", err);
}

void run_choose_folder(Run *run)
{
    if (run->lead) choose_folder(run);
    run_share_folder(run);
    if (run->folder.state != RUN_FINISHED) run_open_log(run);
}

/* Opens the checkpoint to start from: the newest of a resumed run, or else the one that --resume
 * names. Returns NULL if the run starts at step 0. */
static Checkpoint *find_checkpoint(Run *run)
{
    char err[2048];
    Checkpoint *checkpoint = NULL;
    CheckpointIo *io = &run->trainer.io;
    const char *path = run->arguments.resume.path;
    bool ok = true, is_run = path && run_path_is_run(path);
    /* All ranks use rank 0's answer, because another machine may see the path later. */
    control_share(run->world, &is_run, sizeof is_run);
    /* The run's own checkpoints take precedence. After a stop the user repeats the same command
     * with its --resume, which must not start again from the other run's step. */
    if (run->folder.state == RUN_RESUMED)
        ok = checkpoint_open_newest(io, run->folder.path, &checkpoint, err, sizeof err);
    if (ok && checkpoint && path && strcmp(path, run->folder.path) != 0)
        log_warning("--resume %s is passed over: %s goes on from its own newest checkpoint", path,
                    run->folder.path);
    if (ok && checkpoint == NULL && path)
        ok = is_run ? checkpoint_open_newest(io, path, &checkpoint, err, sizeof err)
                    : checkpoint_open_everywhere(io, path, &checkpoint, err, sizeof err);
    run_require(run, ok, EXIT_DAMAGED, err, sizeof err);
    if (checkpoint && run->lead && !checkpoint_verify_indexes(checkpoint, err, sizeof err))
        log_warning("%s", err);
    return checkpoint;
}

/* Writes pending metrics when any rank ends the program, maybe while rank 0 is writing others. */
static void flush_metrics(void *metrics)
{
    metrics_end(metrics);
}

/* Returns the folder of the TensorBoard events, which the caller frees; NULL: none are written. */
static char *events_folder(const Run *run)
{
    const Config *c = run->config;
    if (!c->tensorboard.enabled) return NULL;
    if (*c->tensorboard.output_path == '\0')
        return text_format("%s/tensorboard/%s", run->folder.path, c->tensorboard.job_name);
    return text_format("%s/%s", c->tensorboard.output_path, c->tensorboard.job_name);
}

static void open_metrics(Run *run, int64_t resumed_step)
{
    char err[1024];
    const Config *c = run->config;
    char *events = events_folder(run);
    int64_t samples = resumed_step <= 0 ? resumed_step : trainer_state(&run->trainer).samples;
    MetricsOptions options = {.run_folder = run->folder.path,
                              .json = speaks_json(run),
                              .terminal = isatty(STDOUT_FILENO) && !speaks_json(run),
                              .pace = run_pace(run, c->gradient_accumulation_steps),
                              .resumed_step = resumed_step,
                              .tokens_per_step = step_tokens(c),
                              .events_folder = events,
                              .resumed_samples = samples,
                              .attempt = run->folder.attempt,
                              .flight = run->trainer.session.flight,
                              .loss_scale_shown = c->fp16.enabled};
    if (!metrics_open(&run->output.metrics, &options, err, sizeof err))
        fail(EXIT_INPUT_OUTPUT, "%s", err);
    free(events);
    /* A continued run is named after its folder; its config is always called config.json. */
    char *name = json_string(run->arguments.run ? path_name(run->arguments.run) : c->name);
    char *job = json_string(run->job.text);
    char *fields =
        text_format("\"name\":%s,\"commit\":\"%s\",%s%s%s\"machine\":%s", name, program_commit(),
                    run->job.text[0] ? "\"job\":" : "", run->job.text[0] ? job : "",
                    run->job.text[0] ? "," : "", run->origin.machine);
    free(job);
    metrics_start(run->output.metrics, fields);
    free(fields);
    free(name);
    ends_set_flush(flush_metrics, run->output.metrics);
}

/* Checks disk space, and a resumed run's tokenizer and data. On rank 0, before allocations. */
static void check_folder(const Run *run)
{
    disk_check(run->config, best_takes_disk(run->config, &run->data), run->plan.checkpoint,
               run->folder.path);
    if (run->folder.state != RUN_RESUMED) return;
    identity_check_tokenizer(run->folder.path, run->data.tokenizer);
    identity_check_data(run->folder.path, run->data.identity, run->arguments.allow_config_change);
}

/* Writes config, machine and tokenizer to the folder, and opens the metrics. Called on rank 0. */
static void describe_run(Run *run, const Checkpoint *checkpoint, bool same_run)
{
    char err[2048];
    disk_check_first_save(run->config, run->plan.checkpoint, run->folder.path, run->trainer.io.fs,
                          checkpoint);
    if (!run_folder_describe(&run->folder, run->config, run->origin.machine, err, sizeof err) ||
        !run_folder_note_command(&run->folder, run->arguments.command, run->job.text, err,
                                 sizeof err))
        fail(EXIT_INPUT_OUTPUT, "%s", err);
    if (same_run && !checkpoint_tidy(&run->trainer.io, run->folder.path, err, sizeof err))
        log_warning("%s", err);
    /* An imported tokenizer.json stays as it is. */
    bool has_tokenizer = run_path_has(run->folder.path, "tokenizer.json");
    if (run->data.tokenizer && !has_tokenizer) {
        char *path = text_format("%s/tokenizer.json", run->folder.path);
        if (!tokenizer_save(run->data.tokenizer, &fs_system, path, err, sizeof err))
            fail(EXIT_INPUT_OUTPUT, "%s", err);
        free(path);
    }
    open_metrics(run, same_run ? run->trainer.steps : run->folder.state == RUN_RESUMED ? 0 : -1);
    if (run->init.path && !init_from_record(run, err, sizeof err))
        fail(EXIT_INPUT_OUTPUT, "%s", err);
}

/* Continues the run at the step of the checkpoint. */
static void take_up(Run *run, const Checkpoint *checkpoint, bool same_run)
{
    run_take_up(run, same_run);
    log_field("resume", "step %lld from %s", (long long)run->trainer.steps,
              checkpoint_folder(checkpoint));
    if (run->lead)
        metrics_note(run->output.metrics, "resume", run->trainer.steps,
                     checkpoint_folder(checkpoint));
}

void run_open_trainer(Run *run)
{
    char err[2048];
    Progress *progress = &run->work.progress;
    progress_again(progress);
    progress_print(progress, "looking at the run folder");
    if (run->lead) check_folder(run);
    comm_barrier(run->world); /* no rank allocates before rank 0 has accepted the run */
    run_allocate_trainer(run, run->config);
    /* The folder's files do not change until the checkpoint is loaded and a save would fit. */
    progress_again(progress);
    progress_print(progress, "reading the checkpoint");
    Checkpoint *checkpoint = find_checkpoint(run);
    if (checkpoint && checkpoint_weights_only(checkpoint)) {
        init_from_own(run, checkpoint);
        checkpoint_close(checkpoint);
        checkpoint = NULL;
    }
    bool ok = checkpoint == NULL || trainer_load(&run->trainer, checkpoint, err, sizeof err);
    run_require(run, ok, EXIT_DAMAGED, err, sizeof err);
    if (checkpoint == NULL) init_from_take(run);
    bool same_run =
        checkpoint && run->folder.state == RUN_RESUMED && !checkpoint_weights_only(checkpoint);
    run->origin.config_text = config_text(run->config);
    run->origin.machine = machine_json(&run->trainer.session.dev);
    progress_print(progress, "preparing the run folder");
    if (run->lead) describe_run(run, checkpoint, same_run);
    progress_end(progress);
    if (checkpoint) take_up(run, checkpoint, same_run);
    log_field("run", "%s", run->folder.path);
    /* A checkpoint of another run does not count as saved in this folder. */
    run->saving.saved_step = same_run ? run->trainer.steps : -1;
    best_open(run, same_run ? checkpoint : NULL);
    checkpoint_close(checkpoint);
    run_begin_here(run);
    run->trainer.feed.watch = run_watch;
    run->trainer.feed.watch_context = run;
    run_take_place(run);
    run->clock.start = run->clock.shown_at = seconds_now();
    /* Signals are handled only from here on. Before, their default action ends the program at once,
     * and no training is lost. */
    run_prepare_answers(run, NULL);
    run_watch_signals(run);
}
