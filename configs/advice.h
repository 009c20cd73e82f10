/* advice.h -- the values used for keys that a config does not give, and the command-line options
 * that make a config with errors valid. */
#ifndef CONFIGS_ADVICE_H
#define CONFIGS_ADVICE_H

#include "configs/config.h"

/* A key that the config does not give, or gives as "auto", and the value used for it. */
typedef struct {
    const char *key;
    char *value;        /* malloc'ed */
    const char *remark; /* which program's default it is, or what it means; "": no remark */
} ConfigTaken;
/* Finds the keys that affect the trained model and that the config does not give, in the order of
 * the option table. If the config gives none of the keys of the model's size, one row with the key
 * "model" stands for the whole section. Returns the number of rows; *out is malloc'ed (free it with
 * config_taken_free). */
int config_taken(const Config *config, ConfigTaken **out);
void config_taken_free(ConfigTaken *taken, int n);

/* Returns the kernels that cuda.attention "auto" selects on this device. */
AttentionKernels config_attention_auto(DeviceFacts device);

/* Adds to `more`, as "KEY=VALUE", the keys of the model's size and of the run's length that the
 * config does not give, with the values used for them, so that the user can change them. */
void config_add_open(const Config *config, StringList *more);

/* Returns the number of ranks that the command line of a run must give: config->world, or the ranks
 * of the smallest grid if the config is valid for any number of data-parallel ranks. */
int64_t config_ranks_needed(const Config *config);

/* Returns command-line options, quoted for a shell, each preceded by a blank: one --set for each of
 * `sets`, and --ranks if `ranks` is above 1. The caller frees. */
char *config_options(int n_sets, const char *const *sets, int64_t ranks);

/* For a config that has errors, returns the command-line options with which it is valid: --set
 * (including `sets`) and --ranks, quoted for a shell, each preceded by a blank. The options are
 * those that the errors suggest. Returns NULL if an error suggests none, or if the user must
 * choose. The caller frees.
 *
 * If it returns options and `mended` is not NULL, it stores the config that is loaded with them in
 * *mended, and the notices about that config in *report. */
char *config_remedy(const char *path, int n_sets, const char *const *sets,
                    const ConfigContext *context, const Config **mended, ConfigReport *report);

#endif
