/* remedy.c -- finds the command-line options that make a config with errors valid; see
 * config_remedy in advice.h. */
#include "configs/advice.h"
#include "model/core/check.h"
#include "model/core/shell_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An error may hide another one, so the options are tried and extended up to this many times. */
enum { ROUNDS = 4 };

typedef struct {
    StringList set;
    int64_t ranks; /* 0: not given */
} Options;

int64_t config_ranks_needed(const Config *config)
{
    int64_t least = grid_ranks(config_grid(config, 0));
    return config->world > least ? config->world : least;
}

static bool has(const StringList *list, const char *item)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->item[i], item) == 0) return true;
    return false;
}

/* Adds the options of one error's remedy. */
static void add_remedy(Options *options, const char *remedy)
{
    static const char ranks[] = "--ranks ";
    char *text = must_strdup(remedy), *rest = text;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        if (strncmp(line, ranks, sizeof ranks - 1) == 0)
            options->ranks = strtoll(line + sizeof ranks - 1, NULL, 10);
        else if (!has(&options->set, line))
            string_list_add(&options->set, line);
    }
    free(text);
}

/* Loads the config with these options. If it has errors, adds the options that mend them, and sets
 * *known to false if an error has no remedy. Returns the config, with its notices in `report`, or
 * NULL if it is not valid. */
static const Config *try_options(const char *path, const ConfigContext *context, Options *options,
                                 bool *known, ConfigReport *report)
{
    ConfigContext tried = *context;
    tried.world = options->ranks;
    const Config *config = config_load(path, options->set.count,
                                       (const char *const *)options->set.item, &tried, report);
    /* `./train CONFIG` runs one rank if the command line does not say how many, so a config for
     * more ranks needs --ranks. */
    if (config != NULL && options->ranks == 0) options->ranks = config_ranks_needed(config);
    for (int i = 0; i < report->n_errors; i++) {
        *known &= report->remedy != NULL && report->remedy[i] != NULL;
        if (*known) add_remedy(options, report->remedy[i]);
    }
    if (config == NULL) config_report_free(report);
    return config;
}

char *config_options(int n_sets, const char *const *sets, int64_t ranks)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    for (int i = 0; i < n_sets; i++) {
        char *word = shell_quoted(sets[i]);
        fprintf(to, " --set %s", word);
        free(word);
    }
    if (ranks > 1) fprintf(to, " --ranks %lld", (long long)ranks);
    fclose(to);
    return text;
}

char *config_remedy(const char *path, int n_sets, const char *const *sets,
                    const ConfigContext *context, const Config **mended, ConfigReport *report)
{
    Options options = {.ranks = context->world};
    ConfigReport notices;
    const Config *config = NULL;
    bool known = true;
    for (int i = 0; i < n_sets; i++)
        string_list_add(&options.set, sets[i]);
    for (int round = 0; round < ROUNDS && known && config == NULL; round++)
        config = try_options(path, context, &options, &known, &notices);
    const char *const *set = (const char *const *)options.set.item;
    char *words = config ? config_options(options.set.count, set, options.ranks) : NULL;
    string_list_free(&options.set);
    if (config != NULL && mended != NULL) {
        *mended = config;
        *report = notices;
    } else if (config != NULL) {
        config_free(config);
        config_report_free(&notices);
    }
    return words;
}
