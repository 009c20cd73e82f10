/* exported.c -- implements exported.h. */
#include "parallel/run/exported.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/layers.h"
#include "model/weights/fit.h"
#include "parallel/checkpoint/source.h"
#include "parallel/run/identity.h"
#include "parallel/run/run_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Opens the best checkpoint. Returns true with NULL in run->checkpoint if the newest is to be
 * opened instead. */
static bool open_best(ExportedRun *run, bool demanded, char *err, size_t n, ExitCode *code)
{
    CheckpointBest best;
    bool good = checkpoint_best_find(run->folder, &best, &run->checkpoint, err, n);
    if (good && run->checkpoint)
        snprintf(run->chosen, sizeof run->chosen, "best: step %lld, val %.4f", (long long)best.step,
                 best.val_loss);
    if (good && run->checkpoint == NULL && demanded) {
        *code = EXIT_MISSING;
        return error_set(err, n, "%s keeps no best checkpoint; leave --best out to take the newest",
                         run->folder);
    }
    if (good || demanded) return good;
    log_warning("%s; the newest checkpoint is taken instead of the best", err);
    return true;
}

static bool open_newest(ExportedRun *run, char *err, size_t n, ExitCode *code)
{
    if (!identity_newest_checkpoint(run->folder, &run->checkpoint, err, n)) return false;
    if (run->checkpoint == NULL) {
        *code = EXIT_MISSING;
        return error_set(err, n, "%s has no checkpoint that can be opened", run->folder);
    }
    snprintf(run->chosen, sizeof run->chosen, "newest: step %lld",
             (long long)checkpoint_manifest(run->checkpoint)->state.steps);
    return true;
}

static bool open_checkpoint(ExportedRun *run, const OpenedArguments *a, bool is_checkpoint,
                            char *err, size_t n, ExitCode *code)
{
    *code = EXIT_DAMAGED;
    if (is_checkpoint) {
        if (!checkpoint_open(a->run, &run->checkpoint, err, n)) return false;
        snprintf(run->chosen, sizeof run->chosen, "step %lld",
                 (long long)checkpoint_manifest(run->checkpoint)->state.steps);
        return true;
    }
    *code = EXIT_MISSING;
    if (!run_path_is_run(run->folder))
        return error_set(err, n, "%s is not the folder of a run: it has no config.json",
                         run->folder);
    *code = EXIT_DAMAGED;
    if (!a->newest && !open_best(run, a->best, err, n, code)) return false;
    return run->checkpoint != NULL || open_newest(run, err, n, code);
}

/* Reads the config in the manifest, which belongs to the weights even if the run's config has
 * changed since. */
static bool read_config(ExportedRun *run, char *err, size_t n)
{
    const char *text = checkpoint_manifest(run->checkpoint)->config;
    ConfigReport report = {0};
    run->config = config_parse(&(ConfigContext){.stored = true}, checkpoint_folder(run->checkpoint),
                               text, strlen(text), 0, NULL, &report);
    bool good =
        run->config != NULL || error_set(err, n, "its config is not understood: %s",
                                         report.n_errors > 0 ? report.error[0] : "it is empty");
    config_report_free(&report);
    return good;
}

/* Returns whether the checkpoint has exactly the tensors of its config's model. Otherwise names the
 * wrong ones on stderr and sets err. */
static bool check_tensors(const ExportedRun *run, char *err, size_t n)
{
    GptShape shape = gpt_shape(run->config, 1);
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
    int misfits = weights_misfits(run->source, &table, stderr);
    gpt_layers_free(&layers);
    param_table_free(&table);
    return misfits == 0 ||
           error_set(err, n, "%s is damaged: the tensors named above do not fit its config",
                     checkpoint_folder(run->checkpoint));
}

static bool open_source(ExportedRun *run, bool masters, char *err, size_t n)
{
    if (!(masters ? checkpoint_source_open_masters : checkpoint_source_open)(run->checkpoint,
                                                                             &run->source, err, n))
        return false;
    for (int i = 0; i < run->source->n_tensors; i++)
        run->masters |= run->source->tensor[i].dtype != config_dtype(run->config);
    return true;
}

bool exported_run_open(ExportedRun *run, const OpenedArguments *a, bool masters, char *err,
                       size_t n, ExitCode *code)
{
    bool is_checkpoint;
    *run = (ExportedRun){.folder = run_path_of(a->run, &is_checkpoint)};
    *code = EXIT_USAGE;
    bool good = true;
    if (a->best && a->newest)
        good = error_set(err, n, "--best and --newest contradict each other");
    else if (is_checkpoint && (a->best || a->newest))
        good = error_set(err, n, "%s is one checkpoint; %s chooses one of a run", a->run,
                         a->best ? "--best" : "--newest");
    good = good && open_checkpoint(run, a, is_checkpoint, err, n, code);
    if (good) *code = EXIT_DAMAGED;
    good = good && read_config(run, err, n) && open_source(run, masters, err, n) &&
           check_tensors(run, err, n);
    if (good)
        run->tokenizer = identity_tokenizer(run->folder);
    else
        exported_run_close(run);
    return good;
}

void exported_run_close(ExportedRun *run)
{
    if (run->source) run->source->close(run->source);
    checkpoint_close(run->checkpoint);
    tokenizer_free(run->tokenizer);
    config_free(run->config);
    free(run->folder);
    *run = (ExportedRun){0};
}
