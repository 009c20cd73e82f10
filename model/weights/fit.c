/* fit.c -- implements fit.h. */
#include "model/weights/fit.h"

#include "model/core/check.h"
#include "model/weights/safetensors.h"

#include <stdlib.h>

enum { MOST_LINES = 40 };

void weights_print_misfit(FILE *to, const char *name, const SourceTensor *t, int ndim,
                          const int64_t *dim)
{
    fprintf(to, "%s is ", name);
    if (t) safetensors_print_shape(to, t->ndim, t->dim, ", ");
    fputs(t ? " there and " : "not there and ", to);
    if (dim) safetensors_print_shape(to, ndim, dim, ", ");
    fputs(dim ? " here" : "not here", to);
}

void weights_match(const WeightSource *source, const WeightMatch *match, int count)
{
    bool *taken = must_calloc((size_t)source->n_tensors + 1, sizeof *taken);
    for (int i = 0; i < count; i++) {
        int at = weight_source_find(source, match->name(match->context, i));
        if (at >= 0) taken[at] = true;
        match->visit(match->context, at >= 0 ? &source->tensor[at] : NULL, i);
    }
    for (int i = 0; i < source->n_tensors; i++)
        if (!taken[i]) match->visit(match->context, &source->tensor[i], -1);
    free(taken);
}

typedef struct {
    const ParamTable *table;
    FILE *to;
    int count;
} Misfits;

static const char *name_of(const void *context, int i)
{
    const Misfits *m = context;
    return m->table->param[i].name;
}

static bool same_shape(const SourceTensor *t, const Param *p)
{
    return t->ndim == p->ndim && t->dim[0] == p->dim[0] && (t->ndim < 2 || t->dim[1] == p->dim[1]);
}

static void visit(void *context, const SourceTensor *t, int i)
{
    Misfits *m = context;
    const Param *p = i >= 0 ? &m->table->param[i] : NULL;
    if ((t && p && same_shape(t, p)) || m->count++ >= MOST_LINES) return;
    weights_print_misfit(m->to, p ? p->name : t->name, t, p ? p->ndim : 0, p ? p->dim : NULL);
    fputc('\n', m->to);
}

int weights_misfits(const WeightSource *source, const ParamTable *table, FILE *to)
{
    Misfits m = {.table = table, .to = to};
    weights_match(source, &(WeightMatch){.name = name_of, .visit = visit, .context = &m},
                  table->n_params);
    if (m.count > MOST_LINES) fprintf(to, "and %d more tensors\n", m.count - MOST_LINES);
    return m.count;
}
