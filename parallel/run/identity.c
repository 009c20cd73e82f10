/* identity.c -- compares the config, tokenizer and data of a run with the stored ones. */
#include "parallel/run/identity.h"

#include "data/identity.h"
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/run/run_path.h"

#include <stdlib.h>
#include <string.h>

/* ---- config ---------------------------------------------------------------------------------- */

/* A stored and a new config, and the keys in which they differ. */
typedef struct {
    const Config *stored, *config;
    ConfigDifference *d;
    int n;
} Changes;

static bool begins_with(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static bool is_length(const char *key)
{
    return strcmp(key, "train_steps") == 0 || strcmp(key, "train_tokens") == 0;
}

/* Returns whether the value of a derived key may be computed from `key`: they are in the same
 * section and the user has given `key`, or `across` lists the pair. */
static bool depends_on(const char *derived, const char *key, bool given)
{
    static const struct {
        const char *derived, *key; /* beginnings of keys */
    } across[] = {
        {"scheduler.", "train_steps"},
        {"scheduler.", "train_tokens"},
        {"scheduler.", "optimizer."},
        {"train_steps", "train_tokens"},
        {"train_steps", "train_batch_size"},
        {"train_batch_size", "train_micro_batch_size_per_gpu"},
        {"train_batch_size", "gradient_accumulation_steps"},
    };
    const char *dot = strchr(derived, '.');
    if (given && dot && strncmp(derived, key, (size_t)(dot + 1 - derived)) == 0) return true;
    for (size_t i = 0; i < sizeof across / sizeof *across; i++)
        if (begins_with(derived, across[i].derived) && begins_with(key, across[i].key)) return true;
    return false;
}

/* Returns whether the i-th difference is only a consequence of another key that differs, and so
 * need not be reported. That other key is reported instead or, if it is itself only a consequence,
 * the key that it follows from. As `across` has no cycles, some key is always reported. If the
 * difference has a more serious effect than the other key, returns false. */
static bool follows(const Changes *c, int i)
{
    const ConfigDifference *d = &c->d[i];
    for (int k = 0; d->derived && k < c->n; k++)
        if (c->d[k].effect >= d->effect && depends_on(d->key, c->d[k].key, !c->d[k].derived))
            return true;
    return false;
}

/* Returns whether the learning rate of every step stays the same: a run of another length then
 * makes the same steps, only more or fewer. */
static bool keeps_schedule(const Changes *c)
{
    for (int i = 0; i < c->n; i++)
        if (begins_with(c->d[i].key, "scheduler.")) return false;
    return true;
}

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

const char *identity_length_option(const Config *config)
{
    /* If the schedule's number of steps is derived, the learning rates change with train_steps. */
    const char *origin = config_origin(config, "scheduler.params.total_num_steps");
    return begins_with(origin, "derived") ? " --allow-config-change" : "";
}

/* Returns whether `step`, that of the newest checkpoint in `path`, is not past the end of the run
 * that `config` describes; otherwise sets err. */
static bool is_before_end(const char *path, int64_t step, const Config *config, char *err, size_t n)
{
    if (step <= config->train_steps) return true;
    return error_set(err, n,
                     "%s: its newest checkpoint, step %lld, is past train_steps %lld; write at "
                     "least %lld, or give --resume an earlier checkpoint and --out another folder",
                     path, (long long)step, (long long)config->train_steps, (long long)step);
}

/* Returns false and sets err if the run in `folder` has trained more steps than this config asks
 * for; otherwise sets *step to the step of its newest checkpoint, or 0. */
static bool read_step(const char *folder, const Config *config, int64_t *step, char *err, size_t n)
{
    Checkpoint *newest;
    if (!identity_newest_checkpoint(folder, &newest, err, n)) return false;
    *step = newest ? checkpoint_manifest(newest)->state.steps : 0;
    checkpoint_close(newest);
    return is_before_end(folder, *step, config, err, n);
}

/* Prints a difference with which the run may resume. */
static void print_accepted(const Changes *c, const ConfigDifference *d)
{
    if (is_length(d->key) && keeps_schedule(c))
        print_difference(d, "the learning rate does not depend on it");
    else
        print_difference(d, d->effect == EFFECT_NUMBERS    ? "changes the run, as allowed"
                            : d->effect == EFFECT_ROUNDING ? "changes rounding only"
                                                           : "harmless");
}

/* The differences for which a resume is refused, in the order of keys. */
typedef struct {
    char *list; /* names all of them, so that the user can correct all at once */
    char *keep; /* the keys that make the weights unusable, each with the run's own value */
    int n, impossible, lengths;
} Refused;

static void append(char **text, const char *between, char *more)
{
    char *longer = text_format("%s%s%s", *text, between, more);
    free(*text);
    free(more);
    *text = longer;
}

static void add_refused(Refused *r, const ConfigDifference *d)
{
    bool impossible = d->effect == EFFECT_IMPOSSIBLE;
    append(&r->list, r->n++ > 0 ? "; " : "",
           text_format("%s was %s, is %s (%s)", d->key, d->was, d->now,
                       impossible ? "impossible" : "changes the run"));
    if (impossible)
        append(&r->keep, r->impossible++ > 0 ? " and " : "", text_format("%s %s", d->key, d->was));
    r->lengths += is_length(d->key);
}

/* If more than this many keys make the weights unusable, the config is of another model. Then the
 * only advice is another folder. */
#define MOST_KEPT 3

/* Sets err to the message for the refused differences. */
static void refuse(const char *folder, const Changes *c, const Refused *r, char *err, size_t n)
{
    /* If the weights have other shapes, neither the batch size nor a flag helps. */
    bool keeps = r->impossible > 0 && r->impossible <= MOST_KEPT;
    char *remedy = r->impossible > 0 ? must_strdup("") : batch_remedy(c->stored, c->config),
         *keep = keeps ? text_format(", or write %s", r->keep) : must_strdup("");
    bool flag = r->impossible == 0 || (keeps && r->n > r->impossible);
    error_set(err, n,
              "the run in %s was started with another config: %s; %schoose another folder with "
              "--out%s%s",
              folder, r->list, remedy, keep,
              !flag   ? ""
              : keeps ? " and say --allow-config-change"
                      : ", or say --allow-config-change");
    free(remedy);
    free(keep);
}

/* Returns whether data.tokenizer now names the run's own copy of its tokenizer. */
static bool is_own_tokenizer(const char *folder, const char *key, const Config *config)
{
    if (strcmp(key, "data.tokenizer") != 0 || config->data.tokenizer == NULL) return false;
    char *own = text_format("%s/tokenizer.json", folder);
    bool is = strcmp(own, config->data.tokenizer) == 0;
    free(own);
    return is;
}

/* Returns whether nothing has been trained in `folder` yet: its newest checkpoint has the weights
 * of an import, and any config that they fit may begin with them. */
static bool is_untrained(const char *folder)
{
    char ignored[512];
    Checkpoint *newest = NULL;
    bool untrained = identity_newest_checkpoint(folder, &newest, ignored, sizeof ignored) &&
                     newest != NULL && checkpoint_weights_only(newest);
    checkpoint_close(newest);
    return untrained;
}

bool identity_may_resume(const char *folder, const Config *stored, const Config *config, bool allow,
                         bool aloud, char *err, size_t n)
{
    Changes c = {.stored = stored, .config = config};
    c.n = config_diff(stored, config, &c.d);
    Refused refused = {.list = must_strdup(""), .keep = must_strdup("")};
    int64_t step = 0;
    long long was = stored->train_steps, now = config->train_steps;
    bool good = !aloud || was == now || read_step(folder, config, &step, err, n);
    bool untrained = aloud && is_untrained(folder);
    for (int i = 0; good && i < c.n; i++) {
        const ConfigDifference *d = &c.d[i];
        /* A run that the user names may become longer. If a matching run is searched for, another
         * length means another run. */
        bool harmless = aloud && is_length(d->key) && keeps_schedule(&c);
        bool matters =
            d->effect == EFFECT_IMPOSSIBLE || (d->effect == EFFECT_NUMBERS && !allow && !harmless);
        if (follows(&c, i) || untrained || is_own_tokenizer(folder, d->key, config)) continue;
        if (matters)
            add_refused(&refused, d);
        else if (aloud)
            print_accepted(&c, d);
    }
    if (refused.n > 0 && refused.n == refused.lengths && aloud)
        error_set(err, n,
                  "%s: %s than before (%lld -> %lld): --allow-config-change goes on from step %lld "
                  "with the new schedule",
                  folder, now > was ? "longer" : "shorter", was, now, (long long)step);
    else if (refused.n > 0)
        refuse(folder, &c, &refused, err, n);
    free(refused.list);
    free(refused.keep);
    config_diff_free(c.d, c.n);
    return good && refused.n == 0;
}

bool identity_is_longer(const Config *stored, const Config *config)
{
    Changes c = {.stored = stored, .config = config};
    c.n = config_diff(stored, config, &c.d);
    bool longer = config->train_steps > stored->train_steps;
    for (int i = 0; i < c.n; i++)
        longer &= c.d[i].effect < EFFECT_NUMBERS || is_length(c.d[i].key) || follows(&c, i);
    config_diff_free(c.d, c.n);
    return longer;
}

void identity_check_start_step(const char *path, int64_t step, const Config *config)
{
    char err[2048];
    if (is_before_end(path, step, config, err, sizeof err)) return;
    if (run_path_is_run(path)) fail(EXIT_CONFIG, "--resume %s", err);
    fail(EXIT_CONFIG,
         "--resume %s: its step %lld is past train_steps %lld; write train_steps of at least %lld",
         path, (long long)step, (long long)config->train_steps, (long long)step);
}

void identity_check_start_config(const char *path, const Config *stored, const Config *config)
{
    Changes c = {.stored = stored, .config = config};
    c.n = config_diff(stored, config, &c.d);
    const ConfigDifference *bad = NULL; /* if possible, a key that is not derived */
    for (int i = 0; i < c.n; i++)
        if (c.d[i].effect == EFFECT_IMPOSSIBLE && (!bad || (bad->derived && !c.d[i].derived)))
            bad = &c.d[i];
    if (bad != NULL)
        fail(EXIT_CONFIG,
             "--resume %s: %s was %s there and is %s now, which cannot go on; write %s %s", path,
             bad->key, bad->was, bad->now, bad->key, bad->was);
    for (int i = 0; i < c.n; i++)
        if (c.d[i].effect == EFFECT_NUMBERS && !follows(&c, i))
            print_difference(&c.d[i], "changes the run");
    config_diff_free(c.d, c.n);
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

bool identity_newest_checkpoint(const char *run, Checkpoint **out, char *err, size_t n)
{
    int64_t *steps;
    int count = checkpoint_list(run, &steps, err, n);
    *out = NULL;
    for (int i = 0; *out == NULL && i < count; i++) {
        char why[1024];
        char *path = checkpoint_path(run, steps[i]);
        checkpoint_open(path, out, why, sizeof why);
        free(path);
    }
    free(steps);
    return count >= 0;
}

/* Sets *change to a description of how the data `is` differ from the data of the run's newest
 * checkpoint, or to NULL if they are equal or there is no checkpoint; the caller frees it. Returns
 * false and sets err if the checkpoints cannot be listed. */
static bool data_change(const char *folder, const char *is, char **change, char *err, size_t n)
{
    Checkpoint *newest;
    *change = NULL;
    if (!identity_newest_checkpoint(folder, &newest, err, n)) return false;
    if (newest && !checkpoint_weights_only(newest))
        *change = data_identity_difference(checkpoint_manifest(newest)->data, is);
    checkpoint_close(newest);
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
