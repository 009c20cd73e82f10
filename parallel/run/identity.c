/* identity.c -- compares the config, tokenizer and data of a run with the stored ones. */
#include "parallel/run/identity.h"

#include "data/identity.h"
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/checkpoint/checkpoint.h"

#include <stdlib.h>

/* ---- config ---------------------------------------------------------------------------------- */

static void print_difference(const ConfigDifference *d, const char *effect)
{
    log_info("config  %s was %s, is %s: %s", d->key, d->was, d->now, effect);
}

/* Returns advice for a refused resume: how to keep the run's batch size, if it changed only because
 * the number of ranks did. Returns "" otherwise. The caller frees it. */
static char *batch_remedy(const Config *stored, const Config *config)
{
    char advice[256] = "";
    if (stored->train_batch_size != config->train_batch_size)
        config_batch_advice(config, stored->train_batch_size, advice, sizeof advice);
    if (advice[0] == '\0') return must_strdup("");
    return text_format("to go on with its batch, %s; or ", advice);
}

bool identity_may_resume(const char *folder, const Config *stored, const Config *config, bool allow,
                         bool aloud, char *err, size_t n)
{
    ConfigDifference *d;
    int count = config_diff(stored, config, &d), refused = 0;
    bool impossible = false;
    char *list = must_strdup("");
    for (int i = 0; i < count; i++) {
        bool matters =
            d[i].effect == EFFECT_IMPOSSIBLE || (d[i].effect == EFFECT_NUMBERS && !allow);
        impossible |= d[i].effect == EFFECT_IMPOSSIBLE;
        if (matters) {
            /* List all refused differences, so the user can correct them in one go. */
            char *longer = text_format(
                "%s%s%s was %s, is %s (%s)", list, refused++ ? "; " : "", d[i].key, d[i].was,
                d[i].now, d[i].effect == EFFECT_IMPOSSIBLE ? "impossible" : "changes the run");
            free(list);
            list = longer;
        } else if (aloud) {
            print_difference(&d[i], d[i].effect == EFFECT_NUMBERS    ? "changes the run, as allowed"
                                    : d[i].effect == EFFECT_ROUNDING ? "changes rounding only"
                                                                     : "harmless");
        }
    }
    /* If the weights have other shapes, neither the batch size nor a flag helps. */
    char *remedy = impossible ? must_strdup("") : batch_remedy(stored, config);
    if (refused)
        error_set(err, n, "the run in %s was started with another config: %s; %s%s", folder, list,
                  remedy,
                  impossible ? "choose another folder with --out"
                             : "choose another folder with --out, or say --allow-config-change");
    free(remedy);
    free(list);
    config_diff_free(d, count);
    return refused == 0;
}

void identity_check_start_config(const char *path, const Config *stored, const Config *config)
{
    ConfigDifference *d;
    int n = config_diff(stored, config, &d);
    for (int i = 0; i < n; i++) {
        if (d[i].effect == EFFECT_IMPOSSIBLE)
            fail(EXIT_CONFIG, "--resume %s: %s was %s there and is %s now, which cannot go on",
                 path, d[i].key, d[i].was, d[i].now);
        if (d[i].effect == EFFECT_NUMBERS) print_difference(&d[i], "changes the run");
    }
    config_diff_free(d, n);
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

Tokenizer *identity_tokenizer(const char *run)
{
    char err[1024];
    bool missing = false;
    Tokenizer *tokenizer = NULL;
    char *path = text_format("%s/tokenizer.json", run);
    if (!tokenizer_load(path, &tokenizer, &missing, err, sizeof err) &&
        (!missing || error_exit_code(err, EXIT_MISSING) == EXIT_PERMISSION))
        fail(EXIT_DAMAGED, "%s", err);
    free(path);
    return tokenizer;
}

void identity_check_tokenizer(const char *folder, const Tokenizer *tokenizer)
{
    if (tokenizer == NULL) return;
    Tokenizer *stored = identity_tokenizer(folder);
    if (stored && tokenizer_hash(stored) != tokenizer_hash(tokenizer))
        fail(EXIT_CONFIG,
             "the run in %s has another tokenizer than its data give now, so the text has changed "
             "since; bring the old text back, or choose another folder with --out",
             folder);
    tokenizer_free(stored);
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Sets *data to the data identity stored in the newest checkpoint that can be opened, or to NULL if
 * there is none; the caller frees it. Returns false and sets err if the checkpoints cannot be
 * listed. */
static bool stored_data(const char *folder, char **data, char *err, size_t n)
{
    int64_t *steps;
    int count = checkpoint_list(folder, &steps, err, n);
    *data = NULL;
    /* Skip damaged checkpoints, as the resume does. */
    for (int i = 0; *data == NULL && i < count; i++) {
        char why[1024];
        Checkpoint *c = NULL;
        char *path = checkpoint_path(folder, steps[i]);
        if (checkpoint_open(path, &c, why, sizeof why))
            *data = must_strdup(checkpoint_manifest(c)->data);
        checkpoint_close(c);
        free(path);
    }
    free(steps);
    return count >= 0;
}

/* Sets *change to text that says how the data `is` differ from those of the run's newest
 * checkpoint, or to NULL if they are equal or there is no checkpoint; the caller frees it. Returns
 * false and sets err if the checkpoints cannot be listed. */
static bool data_change(const char *folder, const char *is, char **change, char *err, size_t n)
{
    char *was;
    *change = NULL;
    if (!stored_data(folder, &was, err, n)) return false;
    if (was) *change = data_identity_difference(was, is);
    free(was);
    return true;
}

void identity_check_data(const char *folder, const char *data, bool allow)
{
    char err[1024], *change;
    if (!data_change(folder, data, &change, err, sizeof err))
        fail(EXIT_MISSING, "%s: the run would begin anew, so bring its checkpoints back first",
             err);
    if (change && !allow)
        fail(EXIT_CONFIG,
             "the data have changed since the newest checkpoint in %s (%s): bring the old ones "
             "back, choose another folder with --out, or go on with the new ones by "
             "--allow-config-change",
             folder, change);
    if (change) log_info("data    changed, as allowed: %s", change);
    free(change);
}

void identity_check_start_data(const char *path, const char *was, const char *is)
{
    char *change = data_identity_difference(was, is);
    if (change && data_identity_other_tokenizer(was, is))
        fail(EXIT_CONFIG,
             "--resume %s: its weights belong to another tokenizer than the data have now (%s); "
             "bring back the text it was trained on, or start a new run without --resume",
             path, change);
    if (change) log_info("data    other than those of %s: %s", path, change);
    free(change);
}

void identity_warn_data_change(const char *folder, const char *data)
{
    char err[1024], *change;
    if (!data_change(folder, data, &change, err, sizeof err)) log_warning("%s", err);
    if (change)
        log_warning("the data have changed since (%s): what follows is the result with the old "
                    "ones; --out another folder trains on the new ones",
                    change);
    free(change);
}
