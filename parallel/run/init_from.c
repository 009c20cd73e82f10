/* init_from.c -- begins a run with the weights that checkpoint.init_from names. See init_from.h. */
#include "parallel/run/init_from.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/run/given_weights.h"
#include "parallel/run/open.h"
#include "parallel/run/run_ranks.h"
#include "parallel/trainer/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char key[] = "checkpoint.init_from";

/* Returns the beginning of messages: "c.json:9: checkpoint.init_from: out/demo". The caller frees
 * it. */
static char *place_of(const Config *config)
{
    return text_format("%s: %s: %s", config_origin(config, key), key, config->checkpoint.init_from);
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Ends the program if the weights were trained with another tokenizer than the run's, unless the
 * config allows that. Sets from->same_ids. */
static void check_tokenizer(const Run *run, RunInit *from, const GivenWeights *w, const char *place)
{
    char err[1024], *path;
    bool any = run->config->checkpoint.init_from_tokenizer == INIT_TOKENIZER_ANY;
    Tokenizers t = given_weights_tokenizer(w, from, &run->data, &path, err, sizeof err);
    from->same_ids = any || t == TOKENIZERS_EQUAL;
    if (!any && t == TOKENIZERS_UNKNOWN)
        log_notice("%s: whether these weights belong to the tokenizer of the data is not known: %s",
                   place, err);
    if (!any && t == TOKENIZERS_DIFFER)
        fail(EXIT_CONFIG,
             "%s: these weights belong to another tokenizer than that of the data, which gives "
             "their ids to other words; write data.tokenizer \"%s\", or, if you mean it, "
             "checkpoint.init_from_tokenizer \"any\"",
             place, path ? path : "FILE");
    free(path);
}

/* Prints which keys of the model differ from those with which the weights were trained, although
 * all shapes fit. */
static void print_model_changes(const Run *run, const RunInit *from, const GivenWeights *w)
{
    static const char *const quiet[] = {"model.vocab_size", "model.max_position_embeddings",
                                        "model.initializer_range"};
    ConfigReport report = {0};
    ConfigDifference *d;
    const Config *stored = config_parse(&(ConfigContext){.stored = true}, from->path, w->config,
                                        strlen(w->config), 0, NULL, &report);
    config_report_free(&report);
    if (stored == NULL) return; /* of another version: only the shapes are compared */
    int n = config_diff(stored, run->config, &d);
    for (int i = 0; i < n; i++) {
        bool said = strncmp(d[i].key, "model.", 6) == 0 && d[i].effect >= EFFECT_NUMBERS;
        for (size_t k = 0; k < sizeof quiet / sizeof *quiet; k++)
            said = said && strcmp(d[i].key, quiet[k]) != 0;
        if (said)
            log_notice("%s was %s where the weights of %s were trained, and is %s here", d[i].key,
                       d[i].was, from->path, d[i].now);
    }
    config_diff_free(d, n);
    config_free(stored);
}

/* Ends the program if the names or shapes of the weights differ from those of the run's model. */
static void check_shapes(const Run *run, const RunInit *from, const GivenWeights *w,
                         const char *place)
{
    char err[4096];
    const ParamTable *table = &run->trainer.session.table;
    Piece *weights = must_calloc((size_t)table->n_params + 1, sizeof *weights);
    Take take = {.from = place, .same_ids = from->same_ids};
    for (int p = 0; p < table->n_params; p++)
        weights[p] = piece_of_row(table->param[p].name, &table->param[p], table->param[p].dtype);
    if (!take_fits(w->source, &take, weights, table->n_params, err, sizeof err))
        fail(EXIT_CONFIG, "%s", err);
    if (take.notice[0] != '\0') log_notice("%s: %s", place, take.notice);
    free(weights);
}

/* Returns whether the run resumes from its own checkpoints. */
static bool has_checkpoints(const Run *run)
{
    char ignored[512];
    int64_t *steps = NULL;
    RunRequest request = run_request(run);
    char *folder = run_folder_chosen(run->config, &request);
    int n = folder ? checkpoint_list(folder, &steps, ignored, sizeof ignored) : 0;
    free(steps);
    free(folder);
    return n != 0; /* if they cannot be listed, the start will report why */
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
    char err[4096];
    ExitCode code;
    GivenWeights w;
    if (!given_weights_find(&run->init, named, err, sizeof err, &code) ||
        !given_weights_open(&w, &run->init, config, err, sizeof err, &code))
        fail(error_exit_code(err, code), "%s: %s", place, err);
    check_tokenizer(run, &run->init, &w, place);
    check_shapes(run, &run->init, &w, place);
    print_model_changes(run, &run->init, &w);
    given_weights_close(&w);
    free(place);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Sends to all ranks what rank 0 has found out about the weights. */
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
    char step[32] = "", loss[32] = "";
    if (!from->hf && !from->own) snprintf(step, sizeof step, ", step %lld", (long long)from->step);
    if (!isnan(from->val_loss)) snprintf(loss, sizeof loss, ", val %.4f", from->val_loss);
    return text_format("%s: %s%s%s", from->path, from->kind, step, loss);
}

void init_from_own(Run *run, const Checkpoint *beginning)
{
    free(run->init.path);
    run->init = (RunInit){.path = must_strdup(checkpoint_folder(beginning)),
                          .own = true,
                          .kind = "weights alone",
                          .val_loss = NAN,
                          .same_ids = true};
}

bool init_from_take(Run *run)
{
    char err[4096];
    ExitCode code = EXIT_DAMAGED;
    GivenWeights w = {0};
    share(run);
    const RunInit *from = &run->init;
    if (from->path == NULL) return false;
    /* Another machine may see the folder some seconds later than rank 0. */
    if (!run->lead) fs_await(from->path);
    Take take = {.from = from->path, .same_ids = from->same_ids};
    bool opened = given_weights_open(&w, from, run->config, err, sizeof err, &code);
    run_require(run, opened, code, err, sizeof err);
    bool good = trainer_begin_with(&run->trainer, w.source, &take, err, sizeof err);
    bool refused = control_max(run->world, take.refused) != 0;
    run_require(run, good, refused ? EXIT_CONFIG : EXIT_DAMAGED, err, sizeof err);
    if (from->own && take.notice[0] != '\0') log_notice("%s", take.notice);
    given_weights_close(&w);
    char *text = describe(from);
    log_field("weights", "%s; this run begins at step 0", text);
    free(text);
    return true;
}

bool init_from_record(const Run *run, char *err, size_t n)
{
    const RunInit *from = &run->init;
    char *text = describe(from);
    metrics_note(run->output.metrics, "weights", 0, text);
    free(text);
    if (from->own) return true;
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    fprintf(to, "{\"init_from\": ");
    json_print_string(to, run->config->checkpoint.init_from);
    fprintf(to, ", \"kind\": \"%s\", \"path\": ", from->kind);
    json_print_string(to, from->path);
    if (!from->hf) fprintf(to, ", \"step\": %lld, \"val_loss\": ", (long long)from->step);
    if (!from->hf) json_print_number(to, from->val_loss);
    fprintf(to, ", \"same_ids\": %s}\n", from->same_ids ? "true" : "false");
    fclose(to);
    bool good = file_write_in(&fs_system, run->folder.path, "init_from.json", text, bytes, err, n);
    free(text);
    return good;
}
