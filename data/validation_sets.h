/* validation_sets.h -- opens the validation sets that a config names in eval.sets, besides
 * data.val_text or data.val. */
#ifndef DATA_VALIDATION_SETS_H
#define DATA_VALIDATION_SETS_H

#include "data/dataset.h"

/* Opens config->eval.sets into data->sets, and sets data->sets_identity. The rest of `data` must be
 * open: text is tokenized with its tokenizer, or its tokens are found in data.cache. On failure it
 * returns false and sets `err`, which names the set, and *code, as data_open does. Does nothing if
 * there are no sets. */
bool validation_sets_open(DataSet *data, const Config *config, char *err, size_t n, ExitCode *code);
/* Checks everything that needs no tokenizing, as data_check does. */
bool validation_sets_check(const Config *config, char *err, size_t n, ExitCode *code);
void validation_sets_close(DataSet *data);

#endif
