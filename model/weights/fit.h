/* fit.h -- compares the weights of a source with the parameters of a model. */
#ifndef MODEL_WEIGHTS_FIT_H
#define MODEL_WEIGHTS_FIT_H

#include "model/param/param.h"
#include "model/weights/source.h"

#include <stdio.h>

/* Prints how a tensor of the source and the model's tensor of this name differ, with both shapes:
 * "block.0.mlp.up.weight is [8, 4] there and [16, 4] here". `dim` is the shape in the model. `t` or
 * `dim` is NULL if that side has no such tensor: "is not there and [16, 4] here", "[8, 4] there and
 * not here". */
void weights_print_misfit(FILE *to, const char *name, const SourceTensor *t, int ndim,
                          const int64_t *dim);
/* Describes the model that weights_match compares with a source. */
typedef struct {
    const char *(*name)(const void *context, int i); /* the name of tensor i of the model */
    /* Called with tensor i of the model and the source's tensor of the same name. t is NULL if only
     * the model has it, i is -1 if only the source has it. */
    void (*visit)(void *context, const SourceTensor *t, int i);
    void *context;
} WeightMatch;
/* Visits the `count` tensors of a model in order, and then the source's tensors that the model does
 * not have. */
void weights_match(const WeightSource *source, const WeightMatch *match, int count);
/* Prints a line for each tensor that is missing, has another shape than the parameter of this name,
 * or belongs to no parameter. After 40 lines, prints only how many more there are. Dtypes are not
 * compared. Returns the number of tensors that do not fit. */
int weights_misfits(const WeightSource *source, const ParamTable *table, FILE *to);

#endif
