/* own_tokenizer.h -- the tokenizer of runs whose folder was made by an import: they begin with
 * weights and a tokenizer, and with a config that names no data. */
#ifndef PARALLEL_RUN_OWN_TOKENIZER_H
#define PARALLEL_RUN_OWN_TOKENIZER_H

#include "parallel/run/run.h"

/* Reads the config that the arguments name, as config_load does. If they name the folder of an
 * imported run, data.tokenizer becomes the run's own copy unless --set names another file: the
 * weights belong to it. One that is trained on the text, or that lies now where the config says,
 * would give their ids to other words. Returns NULL and fills in the report if there are errors. */
const Config *config_load_with_own_tokenizer(const RunArguments *arguments,
                                             const ConfigContext *context, ConfigReport *report);

#endif
