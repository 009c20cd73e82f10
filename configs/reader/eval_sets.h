/* eval_sets.h -- the option type of eval.sets: an object of validation sets by name; private to
 * configs/. */
#ifndef CONFIGS_READER_EVAL_SETS_H
#define CONFIGS_READER_EVAL_SETS_H

#include "configs/reader/load.h"

/* Reads the object at `node` into *sets, in the order of the document. Names that begin with "_"
 * are comments. If the object is not valid, reports an error at `at`, leaves *sets unchanged and
 * returns false. */
bool eval_sets_assign(Load *load, const Json *json, int node, ConfigPlace at, EvalSets *sets);
/* Returns whether `path` is a key within eval.sets, such as "eval.sets.code.text", which only --set
 * KEY=VALUE can name; then also reports an error, because such a key cannot be set. */
bool eval_sets_refuse_part(Load *load, ConfigPlace at, const char *path);
/* Returns the sets as malloc'ed JSON text, "null" if there are none. */
char *eval_sets_text(const EvalSets *sets);
void eval_sets_free(EvalSets *sets);

#endif
