/* opened_run.c -- opens a trained run's config, tokenizer, data and weights for generate and eval.
 */
#include "parallel/run/opened_run.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/shell_text.h"
#include "parallel/grid/control.h"
#include "parallel/run/data_in_turn.h"
#include "parallel/run/identity.h"
#include "parallel/run/run_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Reads the config that the run was started with, overridden by `sets`, for `ranks` ranks. Ends the
 * program if that fails. */
static const Config *read_config(const char *run, int64_t ranks, int n_sets,
                                 const char *const *sets)
{
    char *path = text_format("%s/config.json", run);
    ConfigReport report = {0};
    struct stat info;
    /* Checked before the config is read, so a wrong folder gets its own error message. */
    if (stat(path, &info) != 0 && errno == EACCES)
        fail(EXIT_PERMISSION, "cannot open %s: %s", path, strerror(EACCES));
    if (stat(path, &info) != 0)
        fail(EXIT_MISSING, "%s is not the folder of a run: it has no config.json", run);
    ConfigContext context = session_context(0);
    context.stored = true;
    context.opened = ranks;
    const Config *config = config_load(path, n_sets, sets, &context, &report);
    if (config == NULL) {
        config_report_print(&report, false, stderr);
        exit(config_report_code(&report));
    }
    config_report_free(&report);
    free(path);
    return config;
}

/* Returns the end of the error message about missing data. If the files of a set are missing and no
 * --set of this command asks for the set, it says how to leave the sets out. */
static const char *without_sets(const OpenedRun *r, const char *err, ExitCode code)
{
    bool missing =
             error_exit_code(err, code) == EXIT_MISSING && strncmp(err, "eval.sets.", 10) == 0,
         asked = strcmp(config_origin(r->config, "eval.sets"), "--set") == 0;
    return missing && !asked ? "; --set eval.sets=null leaves the sets out" : "";
}

/* Opens the data on ranks that a launcher has started: each rank opens them itself. */
static void open_in_turn(OpenedRun *r, Comm *world)
{
    char err[2048];
    ExitCode code = EXIT_DAMAGED;
    if (!data_in_turn(world, data_open_validation, r->config, &r->data, err, sizeof err, &code))
        control_fail(world, code, "%s%s", err, without_sets(r, err, code));
    data_require_same(world, &r->data);
}

/* Opens the data with the run's own tokenizer. A tokenizer trained again, on a text that has
 * changed or is split differently, would give the model's ids to other words. */
static void open_own_data(OpenedRun *r, const char *run, Comm *world)
{
    char err[2048];
    ExitCode code = EXIT_DAMAGED;
    /* Token files are tokenized already; their tokenizer is only compared below. */
    if (r->tokenizer && r->config->data.train.count == 0) {
        char *own = text_format("%s/tokenizer.json", run);
        r->config = config_settle(r->config, &(ConfigFacts){.tokenizer = own}, err, sizeof err);
        free(own);
    }
    if (world)
        open_in_turn(r, world);
    else if (!data_open_validation(r->config, &r->data, err, sizeof err, &code))
        fail(code, "%s%s", err, without_sets(r, err, code));
    data_print_notes(&r->data, "data");
    if (r->tokenizer && r->data.tokenizer &&
        tokenizer_hash(r->tokenizer) != tokenizer_hash(r->data.tokenizer))
        fail(EXIT_CONFIG, "%s is not the tokenizer that %s was trained with",
             r->data.tokenizer_path, run);
}

/* If the config asks for the attention kernels for Hopper (cuda.attention) and a device does not
 * have them, uses the portable kernels. But if a --set of this command asks for those for Hopper,
 * ends the program (EXIT_CONFIG). */
static void settle_attention(OpenedRun *r, Comm *world)
{
    char err[2048];
    if (r->config->cuda.attention != ATTENTION_HOPPER) return;
    DeviceFacts facts = world ? session_least_facts(r->config, world) : session_facts(r->config);
    const Config *settled =
        config_settle(r->config, &(ConfigFacts){.known = &facts, .opened = true}, err, sizeof err);
    if (settled == NULL) fail(EXIT_CONFIG, "%s", err);
    r->config = settled;
    if (settled->cuda.attention != ATTENTION_HOPPER && facts.capability > 0 && launch_leads())
        fprintf(stderr, "attention: by the portable kernels; training took those for Hopper, which "
                        "are not here. That changes rounding only\n");
}

void opened_run_open(OpenedRun *r, const OpenedArguments *a, bool with_data)
{
    char err[2048];
    int64_t *steps = NULL;
    int64_t ranks = launch_count(a->ranks, 1, a->kind);
    *r = (OpenedRun){.path = must_strdup(a->run), .changed = a->set.count > 0, .kind = a->kind};
    r->choice = a->best ? OPEN_BEST : a->newest ? OPEN_NEWEST : OPEN_BEST_OR_NEWEST;
    r->folder = run_path_of(a->run, &r->is_checkpoint);
    if (a->best && a->newest) fail(EXIT_USAGE, "--best and --newest contradict each other");
    if (r->is_checkpoint && r->choice != OPEN_BEST_OR_NEWEST)
        fail(EXIT_USAGE, "%s is one checkpoint; %s chooses one of a run: give %s, or leave it out",
             a->run, a->best ? "--best" : "--newest", shell_quoted_path(r->folder));
    /* generate prints only its text; it shows progress on a terminal only. */
    r->progress = with_data ? progress_begin() : progress_begin_quiet();
    r->config = read_config(r->folder, ranks, a->set.count, a->set.item);
    /* Checked before ranks start: a run without checkpoints cannot be opened. */
    int n = r->is_checkpoint ? 1 : checkpoint_list(r->folder, &steps, err, sizeof err);
    if (n < 0) fail(EXIT_MISSING, "%s", err);
    if (n == 0) fail(EXIT_MISSING, "%s has no checkpoint yet", r->folder);
    free(steps);
    Comm *world = launch_join(r->config);
    settle_attention(r, world);
    r->tokenizer = identity_tokenizer(r->folder);
    if (with_data) open_own_data(r, r->folder, world);
}

void opened_run_close(OpenedRun *r)
{
    data_close(&r->data);
    tokenizer_free(r->tokenizer);
    config_free(r->config);
    free(r->path);
    free(r->folder);
}

/* ---- a rank's part --------------------------------------------------------------------------- */

/* Ends the program (EXIT_CONFIG) if a --set asks for a model with other shapes than the
 * checkpoint's. Without this check the checkpoint would be reported as damaged. */
static void check_model_of(OpenedRank *r, const Comm *world, const Checkpoint *checkpoint)
{
    char err[1024];
    const Config *config = r->run->config;
    if (checkpoint_weights_only(checkpoint)) return; /* the read itself reports what does not fit */
    Piece *weights = must_calloc((size_t)r->session.table.n_params, sizeof *weights);
    session_weights(&r->session, PURPOSE_COUNT, weights);
    bool fits = checkpoint_fits(checkpoint, CHECKPOINT_WEIGHTS, weights, r->session.table.n_params,
                                err, sizeof err);
    free(weights);
    if (fits) return;
    /* The weights do not fit this config. If a --set changed a key that determines shapes, that is
     * the reason. Otherwise return: reading the weights will report the error. */
    const char *path = checkpoint_folder(checkpoint),
               *text = checkpoint_manifest(checkpoint)->config;
    ConfigReport report;
    ConfigDifference *d;
    const Config *stored =
        config_parse(&(ConfigContext){.stored = true}, path, text, strlen(text), 0, NULL, &report);
    config_report_free(&report);
    int n = stored ? config_diff(stored, config, &d) : 0;
    for (int i = 0; i < n; i++)
        if (d[i].effect == EFFECT_IMPOSSIBLE &&
            /* only keys that a --set has changed */
            strcmp(config_origin(config, d[i].key), "--set") == 0)
            control_fail(world, EXIT_CONFIG,
                         "--set %s=%s: %s was trained with %s, and its weights fit no other; leave "
                         "this --set out",
                         d[i].key, d[i].now, path, d[i].was);
    if (stored) config_diff_free(d, n);
    config_free(stored);
}

/* Opens the best checkpoint, unless the newest was chosen. Returns true and NULL in *out if the
 * newest is to be opened instead. */
static bool open_best(const OpenedRank *r, CheckpointIo *io, Checkpoint **out, char *err, size_t n)
{
    const OpenedRun *run = r->run;
    CheckpointBest best;
    *out = NULL;
    if (run->choice == OPEN_NEWEST) return true;
    bool good = checkpoint_best_open(io, run->folder, out, &best, err, n);
    if (*out != NULL && r->leads) {
        live_line_clear(stdout);
        fprintf(stderr, "best: step %lld, val %.4f\n", (long long)best.step, best.val_loss);
    }
    if (run->choice == OPEN_BEST && good && *out == NULL)
        control_fail(io->world, EXIT_MISSING,
                     "%s keeps no best checkpoint; leave --best out to open the newest",
                     run->folder);
    if (run->choice == OPEN_BEST || good) return good;
    if (r->leads) log_warning("%s; the newest checkpoint is opened instead of the best", err);
    return true;
}

/* Opens the checkpoint that was named or chosen; *out is NULL if the run has none. */
static bool open_chosen(const OpenedRank *r, CheckpointIo *io, Checkpoint **out, char *err,
                        size_t n)
{
    const OpenedRun *run = r->run;
    if (run->is_checkpoint) return checkpoint_open_everywhere(io, run->path, out, err, n);
    if (!open_best(r, io, out, err, n)) return false;
    if (*out != NULL) return true;
    if (!checkpoint_open_newest(io, run->folder, out, err, n)) return false;
    if (*out != NULL && r->leads) {
        live_line_clear(stdout);
        fprintf(stderr, "newest: step %lld\n", (long long)checkpoint_manifest(*out)->state.steps);
    }
    return true;
}

/* Opens a session on one rank and loads its weights from the checkpoint. On failure all ranks end
 * the program together: all have found the same error, or have agreed on it. */
static void join(OpenedRank *r, Comm *world)
{
    char err[2048];
    const OpenedRun *run = r->run;
    CheckpointIo io;
    Checkpoint *checkpoint = NULL;
    r->leads = world->rank == 0;
    r->progress = run->progress;
    progress_again(&r->progress);
    progress_print(&r->progress, "reading the checkpoint");
    if (!session_open(&r->session, run->config, world, false, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    session_allocate(&r->session);
    checkpoint_io_open(&io, &r->session.dev, world);
    if (!open_chosen(r, &io, &checkpoint, err, sizeof err))
        control_fail(world, EXIT_DAMAGED, "%s", err);
    if (checkpoint == NULL)
        control_fail(world, EXIT_MISSING, "%s has no checkpoint yet", run->folder);
    progress_print(&r->progress, "reading the weights");
    /* Checked before the weights are read: otherwise a --set of another model would be reported as
     * a damaged checkpoint. */
    if (run->changed) check_model_of(r, world, checkpoint);
    if (!session_read_weights(&r->session, &io, checkpoint, err, sizeof err))
        control_fail(world, EXIT_DAMAGED, "%s", err);
    r->step = checkpoint_manifest(checkpoint)->state.steps;
    checkpoint_close(checkpoint);
    checkpoint_io_close(&io);
    progress_end(&r->progress);
}

typedef struct {
    const OpenedRun *run;
    OpenedBody body;
    void *context;
} Opening;

static int open_rank(Comm *world, void *context)
{
    const Opening *o = context;
    OpenedRank rank = {.run = o->run};
    join(&rank, world);
    int code = o->body(&rank, o->context);
    session_close(&rank.session);
    return rank.leads ? output_checked(code) : code;
}

void opened_rank_connect(OpenedRank *rank)
{
    session_connect(&rank->session);
    session_publish_weights(&rank->session);
}

int opened_run_on(const OpenedRun *run, OpenedBody body, void *context)
{
    Opening opening = {.run = run, .body = body, .context = context};
    int ranks = (int)run->config->world;
    LaunchOptions options = session_launch(run->config, ranks, run->kind);
    return launch_ranks(ranks, &options, open_rank, &opening);
}
