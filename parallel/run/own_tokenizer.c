/* own_tokenizer.c -- reads the config of a run that was imported. See own_tokenizer.h. */
#include "parallel/run/own_tokenizer.h"

#include "model/core/check.h"
#include "parallel/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns whether the run began with the weights of an import, which it keeps as its step 0. */
static bool is_imported(const char *run)
{
    char ignored[512], *path = checkpoint_path(run, 0);
    Checkpoint *c = NULL;
    bool is = checkpoint_open(path, &c, ignored, sizeof ignored) && checkpoint_weights_only(c);
    checkpoint_close(c);
    free(path);
    return is;
}

/* Returns whether the config's text would be tokenized by another tokenizer than the run's, or by
 * none. */
static bool lacks_tokenizer(const Config *config)
{
    if (config_trains_tokenizer(config)) return true;
    return config->data.tokenizer != NULL && access(config->data.tokenizer, F_OK) != 0;
}

const Config *config_load_with_own_tokenizer(const RunArguments *a, const ConfigContext *context,
                                             ConfigReport *report)
{
    int n = a->set.count;
    const Config *config = config_load(a->config, n, a->set.item, context, report);
    if (config == NULL || a->run == NULL || !lacks_tokenizer(config)) return config;
    char *own = text_format("%s/tokenizer.json", a->run), *set = NULL;
    if (access(own, F_OK) == 0 && is_imported(a->run)) {
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
