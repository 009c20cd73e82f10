/* validation_sets.h -- opens the further validation sets that a config names (eval.sets), beside
 * the data of the run. */
#ifndef DATA_VALIDATION_SETS_H
#define DATA_VALIDATION_SETS_H

#include "data/dataset.h"

/* Opens config->eval.sets into data->sets, after the rest of `data`: text is prepared with its
 * tokenizer, or found in data.cache. Sets data->sets_identity. On failure it returns false and sets
 * `err`, which names the set, and *code, as data_open does. Does nothing if there are no sets. */
bool validation_sets_open(DataSet *data, const Config *config, char *err, size_t n, ExitCode *code);
/* Checks what can be checked without tokenizing, as data_check does. */
bool validation_sets_check(const Config *config, char *err, size_t n, ExitCode *code);
void validation_sets_close(DataSet *data);

#endif
