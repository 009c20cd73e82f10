/* init_from.c -- begins a run with the weights that checkpoint.init_from names. See init_from.h. */
#include "parallel/run/init_from.h"

#include "data/identity.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"
#include "model/core/log.h"
#include "parallel/checkpoint/source.h"
#include "parallel/grid/control.h"
#include "parallel/report/history.h"
#include "parallel/run/identity.h"
#include "parallel/run/open.h"
#include "parallel/run/run_path.h"
#include "parallel/run/run_ranks.h"
#include "parallel/trainer/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char key[] = "checkpoint.init_from";

/* Returns how messages begin: "c.json:9: checkpoint.init_from: out/demo". The caller frees it. */
static char *place_of(const Config *config)
{
    return text_format("%s: %s: %s", config_origin(config, key), key, config->checkpoint.init_from);
}

/* ---- finding --------------------------------------------------------------------------------- */

/* Opens the best checkpoint of the run in `path`, or else its newest. Ends the program if there is
 * none. */
static Checkpoint *open_of_run(RunInit *from, const char *path, const char *place)
{
    char err[2048];
    CheckpointBest best;
    Checkpoint *c = NULL;
    if (!checkpoint_best_find(path, &best, &c, err, sizeof err))
        log_warning("%s; the newest checkpoint is taken instead of the best", err);
    snprintf(from->kind, sizeof from->kind, c ? "best checkpoint" : "newest checkpoint");
    if (c) from->val_loss = best.val_loss;
    if (c == NULL && !identity_newest_checkpoint(path, &c, err, sizeof err))
        fail(error_exit_code(err, EXIT_MISSING), "%s: %s", place, err);
    if (c == NULL) fail(EXIT_MISSING, "%s: this run has no checkpoint that can be opened", place);
    return c;
}

/* Returns the validation loss that the run of the checkpoint has measured at its step; NaN if it
 * has not, or if the checkpoint is not in the folder of a run. */
static double loss_of(const char *path, int64_t step)
{
    char ignored[512];
    bool in_run;
    double loss = NAN;
    char *run = run_path_of(path, &in_run);
    History h;
    if (in_run && history_read(&h, run, ignored, sizeof ignored))
        for (int64_t i = 0; i < h.n_eval; i++)
            if (h.eval[i].step == step) loss = h.eval[i].loss;
    if (in_run) history_free(&h);
    free(run);
    return loss;
}

/* Opens what the config names; sets `from` but for same_ids. Ends the program if it is nothing that
 * has weights. */
static Checkpoint *open_named(RunInit *from, const char *named, const char *place)
{
    char err[2048], *path = path_trimmed(named);
    Checkpoint *c = NULL;
    *from = (RunInit){.kind = "checkpoint", .val_loss = NAN};
    if (run_path_has(path, "manifest.json")) {
        if (!checkpoint_open(path, &c, err, sizeof err))
            fail(error_exit_code(err, EXIT_DAMAGED), "%s: %s", place, err);
    } else if (fs_is_folder(path) && run_path_has(path, "checkpoints")) {
        c = open_of_run(from, path, place);
    } else {
        fail(EXIT_MISSING,
             "%s: there is no checkpoint; give the folder of one, such as "
             "out/demo/checkpoints/step_00000100, or the folder of a run, such as out/demo",
             place);
    }
    free(path);
    from->path = must_strdup(checkpoint_folder(c));
    from->step = checkpoint_manifest(c)->state.steps;
    if (isnan(from->val_loss)) from->val_loss = loss_of(from->path, from->step);
    return c;
}

/* ---- checking -------------------------------------------------------------------------------- */

typedef enum { TOKENIZERS_UNKNOWN, TOKENIZERS_EQUAL, TOKENIZERS_DIFFER } Tokenizers;

/* Compares the tokenizer of the checkpoint, as its run's folder or its manifest knows it, with that
 * of the run's data. */
static Tokenizers compare_tokenizers(const Run *run, const Checkpoint *c)
{
    static const char none[] = "tokenizer none", some[] = "tokenizer ";
    bool in_run;
    const char *was = checkpoint_manifest(c)->data, *is = run->data.identity;
    char *folder = run_path_of(checkpoint_folder(c), &in_run);
    Tokenizer *theirs = in_run ? identity_tokenizer(folder) : NULL, *ours = run->data.tokenizer;
    Tokenizers result = TOKENIZERS_UNKNOWN;
    if (theirs && ours)
        result =
            tokenizer_hash(theirs) == tokenizer_hash(ours) ? TOKENIZERS_EQUAL : TOKENIZERS_DIFFER;
    else if (ours && strncmp(was, some, strlen(some)) == 0 && strncmp(was, none, strlen(none)) != 0)
        result = data_identity_other_tokenizer(was, is) ? TOKENIZERS_DIFFER : TOKENIZERS_EQUAL;
    tokenizer_free(theirs);
    free(folder);
    return result;
}

/* Ends the program if the weights belong to another tokenizer than the run's, unless the config
 * allows that. Sets from->same_ids. */
static void check_tokenizer(const Run *run, RunInit *from, const Checkpoint *c, const char *place)
{
    bool any = run->config->checkpoint.init_from_tokenizer == INIT_TOKENIZER_ANY, in_run;
    Tokenizers t = compare_tokenizers(run, c);
    from->same_ids = any || t == TOKENIZERS_EQUAL;
    if (any || t == TOKENIZERS_EQUAL) return;
    if (t == TOKENIZERS_UNKNOWN) {
        log_notice("%s: whether its tokenizer is that of the data is not known", place);
        return;
    }
    char *folder = run_path_of(from->path, &in_run);
    fail(EXIT_CONFIG,
         "%s: these weights belong to another tokenizer than that of the data, which gives their "
         "ids to other words; write data.tokenizer \"%s%s\", or, if you mean it, "
         "checkpoint.init_from_tokenizer \"any\"",
         place, in_run ? folder : "RUN", "/tokenizer.json");
}

/* Says which keys of the model give the weights another meaning here than where they were trained,
 * although all shapes fit. */
static void print_model_changes(const Run *run, const Checkpoint *c)
{
    static const char *const quiet[] = {"model.vocab_size", "model.max_position_embeddings",
                                        "model.initializer_range"};
    const char *text = checkpoint_manifest(c)->config;
    ConfigReport report = {0};
    ConfigDifference *d;
    const Config *stored = config_parse(&(ConfigContext){.stored = true}, checkpoint_folder(c),
                                        text, strlen(text), 0, NULL, &report);
    config_report_free(&report);
    if (stored == NULL) return; /* of another version; the shapes decide */
    int n = config_diff(stored, run->config, &d);
    for (int i = 0; i < n; i++) {
        bool said = strncmp(d[i].key, "model.", 6) == 0 && d[i].effect >= EFFECT_NUMBERS;
        for (size_t k = 0; k < sizeof quiet / sizeof *quiet; k++)
            said = said && strcmp(d[i].key, quiet[k]) != 0;
        if (said)
            log_notice("%s was %s where the weights of %s were trained, and is %s here", d[i].key,
                       d[i].was, checkpoint_folder(c), d[i].now);
    }
    config_diff_free(d, n);
    config_free(stored);
}

/* Ends the program if names or shapes differ from those of the run's model. */
static void check_shapes(const Run *run, const RunInit *from, Checkpoint *c, const char *place)
{
    char err[4096];
    const ParamTable *table = &run->trainer.session.table;
    Piece *weights = must_calloc((size_t)table->n_params + 1, sizeof *weights);
    WeightSource *source;
    Take take = {.from = place, .same_ids = from->same_ids};
    for (int p = 0; p < table->n_params; p++)
        weights[p] = piece_of_row(table->param[p].name, &table->param[p], table->param[p].dtype);
    if (!checkpoint_source_open_masters(c, &source, err, sizeof err)) fail(EXIT_DAMAGED, "%s", err);
    if (!take_fits(source, &take, weights, table->n_params, err, sizeof err))
        fail(EXIT_CONFIG, "%s", err);
    if (take.notice[0] != '\0') log_notice("%s: %s", place, take.notice);
    source->close(source);
    free(weights);
}

/* Returns whether the run goes on from checkpoints of its own. */
static bool has_checkpoints(const Run *run)
{
    char ignored[512];
    int64_t *steps = NULL;
    RunRequest request = run_request(run);
    char *folder = run_folder_chosen(run->config, &request);
    int n = folder ? checkpoint_list(folder, &steps, ignored, sizeof ignored) : 0;
    free(steps);
    free(folder);
    return n != 0; /* if they cannot be listed, the start will say why */
}

void init_from_find(Run *run)
{
    const Config *config = run->config;
    const char *named = config->checkpoint.init_from;
    if (named == NULL || has_checkpoints(run)) return;
    char *place = place_of(config);
    if (run->arguments.resume.path != NULL)
        fail(EXIT_USAGE,
             "%s: --resume %s names other weights; leave one of the two out: --resume takes up "
             "steps and optimizer of a checkpoint, %s its weights alone",
             place, run->arguments.resume.path, key);
    Checkpoint *c = open_named(&run->init, named, place);
    check_tokenizer(run, &run->init, c, place);
    check_shapes(run, &run->init, c, place);
    print_model_changes(run, c);
    checkpoint_close(c);
    free(place);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Gives all ranks what rank 0 has found. */
static void share(Run *run)
{
    char *path = control_share_text(run->world, run->init.path);
    free(run->lead ? run->init.path : NULL);
    control_share(run->world, &run->init, sizeof run->init);
    run->init.path = path;
}

/* Returns "out/d/checkpoints/step_00000050: best checkpoint, step 50, val 4.2101". The caller frees
 * it. */
static char *describe(const RunInit *from)
{
    char loss[32] = "";
    if (!isnan(from->val_loss)) snprintf(loss, sizeof loss, ", val %.4f", from->val_loss);
    return text_format("%s: %s, step %lld%s", from->path, from->kind, (long long)from->step, loss);
}

bool init_from_take(Run *run)
{
    char err[4096];
    CheckpointIo *io = &run->trainer.io;
    Checkpoint *c = NULL;
    share(run);
    const RunInit *from = &run->init;
    if (from->path == NULL) return false;
    Take take = {.from = from->path, .same_ids = from->same_ids};
    bool good = checkpoint_open_everywhere(io, from->path, &c, err, sizeof err) &&
                trainer_begin_with(&run->trainer, c, NULL, &take, err, sizeof err);
    /* A value that the run's dtype cannot hold is no damage. */
    bool range = control_max(run->world, take.out_of_range) != 0;
    run_require(run, good, range ? EXIT_CONFIG : EXIT_DAMAGED, err, sizeof err);
    checkpoint_close(c);
    char *text = describe(from);
    log_field("weights", "%s; this run begins at step 0", text);
    free(text);
    return true;
}

bool init_from_record(const Run *run, char *err, size_t n)
{
    const RunInit *from = &run->init;
    char *text, *path = text_format("%s/init_from.json", run->folder.path);
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    fprintf(to, "{\"init_from\": ");
    json_print_string(to, run->config->checkpoint.init_from);
    fprintf(to, ", \"kind\": \"%s\", \"path\": ", from->kind);
    json_print_string(to, from->path);
    fprintf(to, ", \"step\": %lld, \"val_loss\": ", (long long)from->step);
    json_print_number(to, from->val_loss);
    fprintf(to, ", \"same_ids\": %s}\n", from->same_ids ? "true" : "false");
    fclose(to);
    bool good = file_write(&fs_system, path, text, bytes, err, n);
    free(text);
    free(path);
    text = describe(from);
    if (good) metrics_note(run->output.metrics, "weights", 0, text);
    free(text);
    return good;
}
