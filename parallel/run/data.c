/* data.c -- whether a run still has the data that its checkpoints were trained on. */
#include "data/identity.h"
#include "model/core/log.h"
#include "parallel/run/run.h"

#include <stdlib.h>

/* *data: what the newest checkpoint that can be opened says of its data; NULL without one. The
 * caller frees. False with a sentence when the checkpoints cannot be listed. */
static bool stored_identity(const char *folder, char **data, char *err, size_t n)
{
    int64_t *steps;
    int count = checkpoint_list(folder, &steps, err, n);
    *data = NULL;
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

/* *change: how the data differ from those of the run's newest checkpoint; NULL: they do not, or
 * there is none. The caller frees. False with a sentence when that cannot be told. */
static bool data_change(const Run *run, char **change, char *err, size_t n)
{
    char *was;
    *change = NULL;
    if (!stored_identity(run->folder.path, &was, err, n)) return false;
    if (was) *change = data_identity_difference(was, run->data.identity);
    free(was);
    return true;
}

void run_check_data(const Run *run)
{
    if (run->folder.state != RUN_RESUMED) return;
    char err[1024], *change;
    if (!data_change(run, &change, err, sizeof err))
        fail(EXIT_MISSING, "%s: the run would begin anew, so bring its checkpoints back first",
             err);
    if (change && !run->arguments.allow_config_change)
        fail(EXIT_CONFIG,
             "the data have changed since the newest checkpoint in %s (%s): bring the old ones "
             "back, choose another folder with --out, or go on with the new ones by "
             "--allow-config-change",
             run->folder.path, change);
    if (change) log_info("data    changed, as allowed: %s", change);
    free(change);
}

void run_check_data_of(const Run *run, const char *path, const char *was)
{
    const char *is = run->data.identity;
    char *change = data_identity_difference(was, is);
    if (change && data_identity_other_tokenizer(was, is))
        fail(EXIT_CONFIG,
             "--resume %s: its weights belong to another tokenizer than the data have now (%s); "
             "bring back the text it was trained on, or start a new run without --resume",
             path, change);
    if (change) log_info("data    other than those of %s: %s", path, change);
    free(change);
}

void run_say_data_change(const Run *run)
{
    char err[1024], *change;
    if (!data_change(run, &change, err, sizeof err)) log_warning("%s", err);
    if (change)
        log_warning("the data have changed since (%s): what follows is the result with the old "
                    "ones; --out another folder trains on the new ones",
                    change);
    free(change);
}
