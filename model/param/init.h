/* init.h -- initial weights. Each weight is a pure function of the seed, the parameter's name and
 * the element's index in the whole parameter, so it does not depend on memory layout, grid or
 * device. */
#ifndef MODEL_PARAM_INIT_H
#define MODEL_PARAM_INIT_H

#include "model/core/device.h"
#include "model/param/store.h"

/* Initialises the weights that this rank updates, sets gaps and padding rows to zero, and publishes
 * every unit to the other ranks. All ranks of the store must call it. */
void param_init(Device *dev, ParamStore *store, uint64_t seed);

#endif
