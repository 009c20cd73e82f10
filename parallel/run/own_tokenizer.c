/* own_tokenizer.c -- reads the config of a run that was imported. See own_tokenizer.h. */
#include "parallel/run/own_tokenizer.h"

#include "model/core/check.h"
#include "parallel/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns whether the run began with the weights of an import, which it keeps as its checkpoint of
 * step 0. */
static bool is_imported(const char *run)
{
    char ignored[512], *path = checkpoint_path(run, 0);
    Checkpoint *c = NULL;
    bool is = checkpoint_open(path, &c, ignored, sizeof ignored) && checkpoint_weights_only(c);
    checkpoint_close(c);
    free(path);
    return is;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Returns whether the config would use another tokenizer than the run's, `own`, although no --set
 * names one: a tokenizer trained on the text, or a file. If the folder was moved, its config still
 * has the old path, where there may be another file now. */
static bool takes_other(const Config *config, const char *own)
{
    static const char key[] = "data.tokenizer";
    if (config_trains_tokenizer(config)) return true;
    return config->data.tokenizer != NULL && strcmp(config_origin(config, key), "--set") != 0 &&
           !same_file(config->data.tokenizer, own);
}

const Config *config_load_with_own_tokenizer(const RunArguments *a, const ConfigContext *context,
                                             ConfigReport *report)
{
    int n = a->set.count;
    const Config *config = config_load(a->config, n, a->set.item, context, report);
    if (config == NULL || a->run == NULL) return config;
    char *own = text_format("%s/tokenizer.json", a->run), *set = NULL;
    if (access(own, F_OK) == 0 && takes_other(config, own) && is_imported(a->run)) {
        const char **sets = must_calloc((size_t)n + 1, sizeof *sets);
        ConfigContext with_own = *context;
        if (n > 0) memcpy(sets, a->set.item, (size_t)n * sizeof *sets);
        sets[n] = set = text_format("data.tokenizer=%s", own);
        with_own.own_sets = 1;
        config_report_free(report);
        config_free(config);
        config = config_load(a->config, n + 1, sets, &with_own, report);
        free(sets);
    }
    free(set);
    free(own);
    return config;
}
