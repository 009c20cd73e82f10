/* init.h -- initial weights: a pure function of the seed, the parameter's name and the number of
 * the element in the whole parameter, so that they depend on no layout, grid or device. */
#ifndef MODEL_PARAM_INIT_H
#define MODEL_PARAM_INIT_H

#include "model/core/device.h"
#include "model/param/store.h"

/* Fills the weights that this rank updates, gaps and padding rows with zero, then publishes every
 * unit: all ranks of the store call it. */
void param_init(Device *dev, ParamStore *store, uint64_t seed);

#endif
