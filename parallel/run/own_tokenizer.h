/* own_tokenizer.h -- the tokenizer of runs whose folder was created by an import. Such a folder
 * contains weights, a tokenizer, and a config that names no data. */
#ifndef PARALLEL_RUN_OWN_TOKENIZER_H
#define PARALLEL_RUN_OWN_TOKENIZER_H

#include "parallel/run/run.h"

/* Reads the config that the arguments name, as config_load does. If they name the folder of an
 * imported run, data.tokenizer becomes the run's own copy of the tokenizer that the weights were
 * trained with, unless --set names another file. Any other tokenizer, newly trained on the text or
 * now at the path in the config, might assign the same ids to different words. Returns NULL and
 * fills in the report if there are errors. */
const Config *config_load_with_own_tokenizer(const RunArguments *arguments,
                                             const ConfigContext *context, ConfigReport *report);

#endif
