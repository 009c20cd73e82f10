/* given_weights.c -- finds and opens the weights at a path. See given_weights.h. */
#include "parallel/run/given_weights.h"

#include "data/identity.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "model/weights/hf_files.h"
#include "model/weights/hf_source.h"
#include "parallel/checkpoint/source.h"
#include "parallel/report/history.h"
#include "parallel/run/identity.h"
#include "parallel/run/run_path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding --------------------------------------------------------------------------------- */

/* Opens the best checkpoint of the run in `path`, or else its newest. */
static bool open_of_run(RunInit *from, const char *path, Checkpoint **c, char *err, size_t n)
{
    CheckpointBest best;
    *c = NULL;
    if (!checkpoint_best_find(path, &best, c, err, n))
        log_warning("%s; the newest checkpoint is taken instead of the best", err);
    snprintf(from->kind, sizeof from->kind, *c ? "best checkpoint" : "newest checkpoint");
    if (*c) from->val_loss = best.val_loss;
    if (*c == NULL && !identity_newest_checkpoint(path, c, err, n)) return false;
    return *c != NULL || error_set(err, n, "this run has no checkpoint that can be opened");
}

/* Returns the validation loss that the checkpoint's run has measured at its step; NaN if it has
 * measured none there, or if the checkpoint is not in a run folder. */
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

static bool find_checkpoint(RunInit *from, const char *path, char *err, size_t n, ExitCode *code)
{
    Checkpoint *c = NULL;
    bool alone = run_path_has(path, "manifest.json");
    bool good = alone ? checkpoint_open(path, &c, err, n) : open_of_run(from, path, &c, err, n);
    *code = alone ? EXIT_DAMAGED : EXIT_MISSING;
    if (!good) return false;
    from->path = must_strdup(checkpoint_folder(c));
    from->step = checkpoint_manifest(c)->state.steps;
    if (isnan(from->val_loss)) from->val_loss = loss_of(from->path, from->step);
    checkpoint_close(c);
    return true;
}

/* Returns whether the folder has files of Hugging Face's libraries. A run's folder has a
 * config.json, too, so the caller must exclude it first. */
static bool is_hf(const char *path)
{
    return run_path_has(path, "config.json") || run_path_has(path, "model.safetensors") ||
           run_path_has(path, "model.safetensors.index.json");
}

bool given_weights_find(RunInit *from, const char *named, char *err, size_t n, ExitCode *code)
{
    char *path = path_trimmed(named);
    bool folder = fs_is_folder(path), good = true;
    *from = (RunInit){.kind = "checkpoint", .val_loss = NAN};
    *code = EXIT_MISSING;
    if (run_path_has(path, "manifest.json") || (folder && run_path_has(path, "checkpoints"))) {
        good = find_checkpoint(from, path, err, n, code);
    } else if (folder && is_hf(path)) {
        from->path = must_strdup(path);
        from->hf = true;
        snprintf(from->kind, sizeof from->kind, "Hugging Face folder");
    } else {
        good = error_set(err, n,
                         "no weights are there; give the folder of a checkpoint, such as "
                         "out/demo/checkpoints/step_00000100, of a run, such as out/demo, or of "
                         "Hugging Face's libraries, with config.json and model.safetensors");
    }
    free(path);
    return good;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_hf(GivenWeights *w, const char *path, const Config *config, char *err, size_t n,
                    ExitCode *code)
{
    Architecture a;
    if (!hf_folder_config(path, &a, err, n, code)) return false;
    *code = EXIT_CONFIG;
    if (!architecture_check_window(&a, config, err, n) ||
        !hf_source_open(path, &a, &w->source, err, n, code))
        return false;
    w->config = architecture_config(&a, F32, NULL);
    return true;
}

bool given_weights_open(GivenWeights *w, const RunInit *from, const Config *config, char *err,
                        size_t n, ExitCode *code)
{
    *w = (GivenWeights){0};
    if (from->hf) return open_hf(w, from->path, config, err, n, code);
    *code = EXIT_DAMAGED;
    bool good = checkpoint_open(from->path, &w->checkpoint, err, n) &&
                checkpoint_source_open_masters(w->checkpoint, &w->source, err, n);
    if (good)
        w->config = must_strdup(checkpoint_manifest(w->checkpoint)->config);
    else
        given_weights_close(w);
    return good;
}

void given_weights_close(GivenWeights *w)
{
    if (w->source) w->source->close(w->source);
    checkpoint_close(w->checkpoint);
    free(w->config);
    *w = (GivenWeights){0};
}

/* ---- tokenizers ------------------------------------------------------------------------------ */

/* Returns the folder that may have the tokenizer of the weights, NULL if there is none. */
static char *tokenizer_folder(const RunInit *from)
{
    bool in_run;
    if (from->hf) return must_strdup(from->path);
    char *run = run_path_of(from->path, &in_run);
    if (in_run) return run;
    free(run);
    return NULL;
}

/* Compares the tokenizers recorded in the checkpoint's manifest and in the data's identity. */
static Tokenizers compare_identities(const Checkpoint *c, const char *is)
{
    static const char none[] = "tokenizer none", some[] = "tokenizer ";
    const char *was = c ? checkpoint_manifest(c)->data : "";
    bool known = strncmp(was, some, strlen(some)) == 0 && strncmp(was, none, strlen(none)) != 0;
    if (!known) return TOKENIZERS_UNKNOWN;
    return data_identity_other_tokenizer(was, is) ? TOKENIZERS_DIFFER : TOKENIZERS_EQUAL;
}

Tokenizers given_weights_tokenizer(const GivenWeights *w, const RunInit *from, const DataSet *data,
                                   char **path, char *err, size_t n)
{
    Tokenizer *theirs = NULL;
    Tokenizers result;
    char *folder = tokenizer_folder(from);
    bool missing = true, compared = folder && data->tokenizer;
    error_set(err, n, "the data have no tokenizer to compare with");
    if (compared && from->hf && !hf_tokenizer_check(folder, err, n))
        missing = false; /* err names the file that cannot be read */
    else if (compared)
        tokenizer_load(folder, &theirs, &missing, err, n);
    if (folder == NULL || missing) error_set(err, n, "no tokenizer is there");
    if (data->tokenizer == NULL)
        result = TOKENIZERS_UNKNOWN;
    else if (theirs)
        result = tokenizer_hash(theirs) == tokenizer_hash(data->tokenizer) ? TOKENIZERS_EQUAL
                                                                           : TOKENIZERS_DIFFER;
    else
        result = compare_identities(w->checkpoint, data->identity);
    /* tokenizer_load reads tokenizer.json or, without it, GPT-2's two files in the folder. */
    *path = NULL;
    if (theirs && hf_file_exists(folder, "tokenizer.json"))
        *path = text_format("%s/tokenizer.json", folder);
    else if (theirs)
        *path = must_strdup(folder);
    tokenizer_free(theirs);
    free(folder);
    return result;
}
