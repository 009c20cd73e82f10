/* open_data.c -- opens a run's data, and adds the values to the config that are known only then. */
#include "parallel/run/open.h"

#include "model/core/figures.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/run/data_in_turn.h"
#include "parallel/run/shared_folder.h"

#include <stdlib.h>
#include <string.h>

/* Prints that the tokenizer which was trained on the text has fewer ids than the config allows. */
static void print_vocabulary(const Preparation *p, int64_t model, int64_t trained, bool at_most)
{
    if (p->vocab_size >= trained && p->vocab_size >= model) return;
    const char *why = p->vocab_size < trained ? "the text has no more pairs that occur twice"
                      : at_most               ? "a tokenizer trained here has no more"
                                              : "data.tokenizer_vocab_size says so";
    log_field("", "vocabulary of %s ids, not %s: %s", figure_count((double)p->vocab_size).text,
              figure_count((double)(model > 0 ? model : trained)).text, why);
}

static void print_preparation(const Preparation *p)
{
    log_field("", "%.2f MB text -> %s tokens train, %s val%s",
              (double)(p->train_bytes + p->val_bytes) / 1e6,
              figure_count((double)p->train_tokens).text, figure_count((double)p->val_tokens).text,
              p->cached ? "   (cached)" : "");
}

/* Returns the end of the error message about missing data. For a continued run it names a possible
 * reason: the paths of the data may be relative to another folder than the current one. */
static const char *where_data_were(const Run *run, const char *err, ExitCode code)
{
    bool missing = error_exit_code(err, code) == EXIT_MISSING;
    return run->arguments.run != NULL && missing
               ? "; this run looks for its data from the folder that its commands.txt names"
               : "";
}

/* ---- ranks that a launcher has started ------------------------------------------------------- */

/* Returns whether the ranks are connected already, as a launcher has started them. Then each rank
 * opens the data itself. */
static bool have_met(const Run *run)
{
    return run->world != NULL && machines_of(run->world).joined;
}

/* The communicator for least_facts, which as a callback of ConfigFacts gets only the config. */
static _Thread_local Comm *asking;

static DeviceFacts least_facts(const Config *config)
{
    return session_least_facts(config, asking);
}

/* Returns rank 0's result of run_folder_continued on all ranks, because other ranks may not see the
 * folder yet. */
static const Config *continued_by_rank_0(const Run *run, const RunRequest *request)
{
    ConfigReport report = {0};
    const Config *stored =
        run->world->rank == 0 ? run_folder_continued(run->config, request) : NULL;
    char *text = stored ? config_text(stored) : NULL, *first = control_share_text(run->world, text);
    if (first && !stored)
        stored = config_parse(&(ConfigContext){.stored = true}, "the run's config", first,
                              strlen(first), 0, NULL, &report);
    config_report_free(&report);
    free(first);
    free(text);
    return stored;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Adds the values to the config that depend on the device; a continued run keeps those of its
 * stored config. This is done before the ranks plan their memory, and so before the run's folder is
 * locked. If another program changes the folders in between, a difference is found when the folder
 * is locked. */
static void settle_by_device(Run *run)
{
    char err[2048];
    RunRequest request = run_request(run);
    bool met = have_met(run);
    const Config *stored =
        met ? continued_by_rank_0(run, &request) : run_folder_continued(run->config, &request);
    ConfigFacts facts = {.device = met ? least_facts : session_facts, .run = stored};
    asking = run->world;
    run->config = config_settle(run->config, &facts, err, sizeof err);
    if (run->config == NULL) fail(EXIT_CONFIG, "%s", err);
    config_free(stored);
}

/* Opens the data, or random tokens instead for a dry run. */
static void open_data(Run *run)
{
    char err[2048];
    ExitCode code = EXIT_MISSING;
    bool met = have_met(run);
    if (met && !run->arguments.dry_run) shared_folder_require(run->world, run->arguments.out);
    bool good =
        met ? data_in_turn(run->world, data_open, run->config, &run->data, err, sizeof err, &code)
            : data_open(run->config, &run->data, err, sizeof err, &code);
    if (!good) {
        /* Memory and speed do not depend on the data. So a dry run continues without them, and ends
         * with the exit code for the missing data. */
        const char *where = where_data_were(run, err, code);
        if (!run->arguments.dry_run && met) control_fail(run->world, code, "%s%s", err, where);
        if (!run->arguments.dry_run) fail(code, "%s%s", err, where);
        log_warning("%s (the dry run goes on with random tokens)", err);
        run->no_data = error_exit_code(err, code);
        data_close(&run->data);
        data_open_random(&run->data, config_likely_vocab(run->config));
    }
    if (met) data_require_same(run->world, &run->data);
}

void run_open_data(Run *run)
{
    char err[2048];
    const Config *c = run->config;
    open_data(run);
    const char *tokenizer = run->data.tokenizer_path ? run->data.tokenizer_path : run->data.title;
    ConfigFacts facts = {.vocab_size = run->data.vocab_size, .vocab_of = tokenizer};
    int64_t model = c->model.vocab_size, trained = c->data.tokenizer_vocab_size;
    run->config = config_settle(c, &facts, err, sizeof err);
    if (run->config == NULL) fail(EXIT_CONFIG, "%s", err);
    settle_by_device(run);
    if (run->data.vocab_size > 0 && run->config->model.vocab_size > run->data.vocab_size)
        log_notice("model.vocab_size is %lld and %s has %lld ids: the other %s of the token table "
                   "stand for no token",
                   (long long)run->config->model.vocab_size, tokenizer,
                   (long long)run->data.vocab_size,
                   figure_of(run->config->model.vocab_size - run->data.vocab_size, "row").text);
    /* Token files may have no tokenizer; then the config must give the vocabulary size. */
    if (run->config->model.vocab_size <= 0)
        fail(EXIT_CONFIG,
             "model.vocab_size is not known: these token files name no tokenizer; set it");
    log_field("data", "%s", run->data.title);
    if (!run->data.prepared) return;
    print_preparation(&run->data.preparation);
    data_print_notes(&run->data, "");
    if (config_trains_tokenizer(run->config))
        print_vocabulary(&run->data.preparation, model, trained,
                         run->config->data.tokenizer_vocab_at_most);
}
