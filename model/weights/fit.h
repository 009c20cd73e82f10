/* fit.h -- compares the weights of a source with the parameters of a model. */
#ifndef MODEL_WEIGHTS_FIT_H
#define MODEL_WEIGHTS_FIT_H

#include "model/param/param.h"
#include "model/weights/source.h"

#include <stdio.h>

/* Prints how a tensor of the source does not fit the model's of this name, with both shapes:
 * "block.0.mlp.up.weight is [8, 4] there and [16, 4] here". `t` is NULL, or `dim`, the shape in the
 * model, if one side has no such tensor: "is not there and [16, 4] here", "[8, 4] there and not
 * here". */
void weights_print_misfit(FILE *to, const char *name, const SourceTensor *t, int ndim,
                          const int64_t *dim);
/* What weights_match compares a source with. */
typedef struct {
    const char *(*name)(const void *context, int i); /* of tensor i of the model */
    /* Tensor i of the model and the source's of its name: NULL or -1 if one side has none. */
    void (*visit)(void *context, const SourceTensor *t, int i);
    void *context;
} WeightMatch;
/* Visits the `count` tensors of a model in order, and then what else the source has. */
void weights_match(const WeightSource *source, const WeightMatch *match, int count);
/* Prints a line for each tensor that is missing, has another shape than the parameter of its name,
 * or belongs to no parameter. At most 40 lines, the last of which then counts the others. Types are
 * not compared. Returns how many tensors do not fit. */
int weights_misfits(const WeightSource *source, const ParamTable *table, FILE *to);

#endif
