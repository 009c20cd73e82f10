/* open_data.c -- opens a run's data, and adds to the config what is known only then. */
#include "parallel/run/open.h"

#include "model/core/figures.h"
#include "model/core/log.h"

#include <string.h>

/* Says that the tokenizer which was trained on the text has fewer ids than the config allows. */
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

/* Returns the end of the message that the data are missing, for a run that goes on: its paths may
 * be relative to another folder than this one. */
static const char *where_data_were(const Run *run, const char *err, ExitCode code)
{
    bool missing = error_exit_code(err, code) == EXIT_MISSING;
    return run->arguments.run != NULL && missing
               ? "; this run looks for its data from the folder that its commands.txt names"
               : "";
}

/* Adds to the config what depends on the device; a run that goes on keeps what it has. This is done
 * before ranks start and plan their memory. If another program changes the folders meanwhile, a
 * difference is found when the folder is locked. */
static void settle_by_device(Run *run)
{
    char err[2048];
    RunRequest request = run_request(run);
    const Config *stored = run_folder_continued(run->config, &request);
    ConfigFacts facts = {.device = session_facts, .run = stored};
    run->config = config_settle(run->config, &facts, err, sizeof err);
    config_free(stored);
}

void run_open_data(Run *run)
{
    char err[2048];
    ExitCode code = EXIT_MISSING;
    const Config *c = run->config;
    if (!data_open(c, &run->data, err, sizeof err, &code)) {
        /* Memory and speed do not depend on the data. So a dry run continues without them, and ends
         * with the exit code for the missing data. */
        if (!run->arguments.dry_run) fail(code, "%s%s", err, where_data_were(run, err, code));
        log_warning("%s (the dry run goes on with random tokens)", err);
        run->no_data = error_exit_code(err, code);
        data_open_random(&run->data, config_likely_vocab(c));
    }
    const char *tokenizer = run->data.tokenizer_path ? run->data.tokenizer_path : run->data.title;
    ConfigFacts facts = {.vocab_size = run->data.vocab_size, .vocab_of = tokenizer};
    int64_t model = c->model.vocab_size, trained = c->data.tokenizer_vocab_size;
    run->config = config_settle(c, &facts, err, sizeof err);
    if (run->config == NULL) fail(EXIT_CONFIG, "%s", err);
    settle_by_device(run);
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
