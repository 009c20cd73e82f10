/* param_rows.h -- rows of the parameter table, by name and by element. */
#ifndef TESTS_SUPPORT_MODEL_PARAM_ROWS_H
#define TESTS_SUPPORT_MODEL_PARAM_ROWS_H

#include "model/param/param.h"

/* The row called `name`, or -1. */
int param_find(const ParamTable *table, const char *name);
/* The row that element i of a capture (parallel/verify/capture.h) belongs to; *element: its number
 * in that row. */
int param_of_element(const ParamTable *table, int64_t i, int64_t *element);

#endif
