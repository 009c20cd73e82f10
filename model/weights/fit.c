/* fit.c -- implements fit.h. */
#include "model/weights/fit.h"

#include <string.h>

enum { MOST_LINES = 40 };

static void print_shape(FILE *to, int ndim, const int64_t *dim)
{
    fprintf(to, "[%lld", (long long)dim[0]);
    if (ndim > 1) fprintf(to, ", %lld", (long long)dim[1]);
    fputc(']', to);
}

void weights_print_misfit(FILE *to, const char *name, const SourceTensor *t, int ndim,
                          const int64_t *dim)
{
    fprintf(to, "%s is ", name);
    if (t) print_shape(to, t->ndim, t->dim);
    fputs(t ? " there and " : "not there and ", to);
    if (dim) print_shape(to, ndim, dim);
    fputs(dim ? " here" : "not here", to);
}

static const Param *find_param(const ParamTable *table, const char *name)
{
    for (int i = 0; i < table->n_params; i++)
        if (strcmp(table->param[i].name, name) == 0) return &table->param[i];
    return NULL;
}

static bool same_shape(const SourceTensor *t, const Param *p)
{
    return t->ndim == p->ndim && t->dim[0] == p->dim[0] && (t->ndim < 2 || t->dim[1] == p->dim[1]);
}

int weights_misfits(const WeightSource *source, const ParamTable *table, FILE *to)
{
    int n = 0;
    for (int i = 0; i < table->n_params; i++) {
        const Param *p = &table->param[i];
        int at = weight_source_find(source, p->name);
        const SourceTensor *t = at >= 0 ? &source->tensor[at] : NULL;
        if (t && same_shape(t, p)) continue;
        if (n++ >= MOST_LINES) continue;
        weights_print_misfit(to, p->name, t, p->ndim, p->dim);
        fputc('\n', to);
    }
    for (int i = 0; i < source->n_tensors; i++) {
        const SourceTensor *t = &source->tensor[i];
        if (find_param(table, t->name)) continue;
        if (n++ >= MOST_LINES) continue;
        weights_print_misfit(to, t->name, t, 0, NULL);
        fputc('\n', to);
    }
    if (n > MOST_LINES) fprintf(to, "and %d more tensors\n", n - MOST_LINES);
    return n;
}
