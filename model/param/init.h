/* init.h -- initial weights: a pure function of the seed, the parameter's name and the number of
 * the element in the whole parameter, so that they depend on no layout, grid or device. */
#ifndef MODEL_PARAM_INIT_H
#define MODEL_PARAM_INIT_H

#include "model/core/device.h"
#include "model/param/store.h"

/* Fills the weights of every row of `unit`, which is acquired; padding rows become zero. */
void param_init_unit(Device *dev, ParamStore *store, int unit, uint64_t seed);

#endif
