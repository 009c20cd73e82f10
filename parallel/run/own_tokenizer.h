/* own_tokenizer.h -- the tokenizer of runs whose folder was made by an import: they begin with
 * weights and a tokenizer, and with a config that names no data. */
#ifndef PARALLEL_RUN_OWN_TOKENIZER_H
#define PARALLEL_RUN_OWN_TOKENIZER_H

#include "parallel/run/run.h"

/* Reads the config that the arguments name, as config_load does. If they name the folder of an
 * imported run and the config names no tokenizer, or one that is not there any more, data.tokenizer
 * becomes the run's own copy: the weights belong to it, and a tokenizer that is trained on the text
 * would give their ids to other words. Returns NULL and fills in the report if there are errors. */
const Config *config_load_with_own_tokenizer(const RunArguments *arguments,
                                             const ConfigContext *context, ConfigReport *report);

/* Returns the vocabulary of the run's data (0: not known), or that of its config if the run was
 * imported and its token table has more rows than its tokenizer has ids, as Qwen's models have: all
 * rows stay, so the model goes out with the shapes with which it came in. */
int64_t own_tokenizer_rows(const Run *run);

#endif
