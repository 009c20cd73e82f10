/* advice.h -- what is taken for the keys that a config does not give, and the command-line options
 * that mend a config. */
#ifndef CONFIGS_ADVICE_H
#define CONFIGS_ADVICE_H

#include "configs/config.h"

/* A key that the config does not give, or gives as "auto", and what is taken for it. */
typedef struct {
    const char *key;
    char *value;        /* malloc'ed */
    const char *remark; /* whose default it is, or what it means; "" if there is nothing to say */
} ConfigTaken;
/* Finds the keys that change what is trained and that the config leaves open, in table order. The
 * size of the model is one row with the key "model" if the config gives none of it. Returns their
 * number; *out is malloc'ed (free it with config_taken_free). */
int config_taken(const Config *config, ConfigTaken **out);
void config_taken_free(ConfigTaken *taken, int n);

/* Adds to `more` the keys of the model's size and of the run's length that the config leaves open,
 * with what is taken for them, so that the user can change them. */
void config_add_open(const Config *config, StringList *more);

/* Returns the number of ranks that the command line of a run must give: config->world, or the ranks
 * of the smallest grid if the config is valid for any number of data-parallel ranks. */
int64_t config_ranks_needed(const Config *config);

/* Returns the options of a command line, quoted for a shell, each with a blank before it: --set for
 * each of `sets`, and --ranks if `ranks` is above 1. The caller frees. */
char *config_options(int n_sets, const char *const *sets, int64_t ranks);

/* Returns further options for a command line with which the config is valid, for a config that has
 * errors: --set and --ranks, quoted for a shell, each with a blank before it, `sets` included. They
 * do what the errors suggest, and the config has been loaded with them: it is *mended, and its
 * notices are in `report`, if the two are not NULL. NULL if an error does not say what to do, or if
 * the user must choose. The caller frees. */
char *config_remedy(const char *path, int n_sets, const char *const *sets,
                    const ConfigContext *context, const Config **mended, ConfigReport *report);

#endif
