/* advice.h -- the values used for keys that a config does not give, and the command-line options
 * that make a config with errors valid. */
#ifndef CONFIGS_ADVICE_H
#define CONFIGS_ADVICE_H

#include "configs/config.h"

/* A key that the config does not give, or gives as "auto", and the value used for it. */
typedef struct {
    const char *key;
    char *value;        /* malloc'ed */
    const char *remark; /* whose default it is, or what it means; "": no remark */
} ConfigTaken;
/* Finds the keys that affect the trained model and that the config does not give, in table order.
 * If the config gives no size of the model, these keys are one row with the key "model". Returns
 * their number; *out is malloc'ed (free it with config_taken_free). */
int config_taken(const Config *config, ConfigTaken **out);
void config_taken_free(ConfigTaken *taken, int n);

/* Returns the kernels that cuda.attention "auto" selects on this device. */
AttentionKernels config_attention_auto(DeviceFacts device);

/* Adds to `more` the keys of the model's size and of the run's length that the config does not
 * give, with the values used for them, so that the user can change them. */
void config_add_open(const Config *config, StringList *more);

/* Returns the number of ranks that the command line of a run must give: config->world, or the ranks
 * of the smallest grid if the config is valid for any number of data-parallel ranks. */
int64_t config_ranks_needed(const Config *config);

/* Returns command-line options, quoted for a shell, each after a blank: --set for each of `sets`,
 * and --ranks if `ranks` is above 1. The caller frees. */
char *config_options(int n_sets, const char *const *sets, int64_t ranks);

/* For a config that has errors, returns the command-line options with which it is valid: --set
 * (including `sets`) and --ranks, quoted for a shell, each after a blank. They follow the
 * suggestions of the errors. The config loaded with them is stored in *mended and its notices in
 * *report, unless these are NULL. Returns NULL if an error has no suggestion, or if the user must
 * choose. The caller frees. */
char *config_remedy(const char *path, int n_sets, const char *const *sets,
                    const ConfigContext *context, const Config **mended, ConfigReport *report);

#endif
