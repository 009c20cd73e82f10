/* param_rows.c -- implements param_rows.h: finds rows of the parameter table. */
#include "tests/support/model/param_rows.h"

#include <string.h>

int param_find(const ParamTable *table, const char *name)
{
    for (int i = 0; i < table->n_params; i++)
        if (strcmp(table->param[i].name, name) == 0) return i;
    return -1;
}

int param_of_element(const ParamTable *table, int64_t i, int64_t *element)
{
    int p = 0;
    while (i >= param_count(&table->param[p]))
        i -= param_count(&table->param[p++]);
    *element = i;
    return p;
}
