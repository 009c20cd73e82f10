/* param_rows.h -- finds rows of the parameter table by name and by element. */
#ifndef TESTS_SUPPORT_MODEL_PARAM_ROWS_H
#define TESTS_SUPPORT_MODEL_PARAM_ROWS_H

#include "model/param/param.h"

/* Returns the row called `name`, or -1. */
int param_find(const ParamTable *table, const char *name);
/* Returns the row that contains element i of a capture (parallel/verify/capture.h) and sets
 * *element to the index in that row. */
int param_of_element(const ParamTable *table, int64_t i, int64_t *element);

#endif
