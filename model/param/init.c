/* init.c -- see init.h. */
#include "model/param/init.h"

#include "model/core/rng.h"
#include "model/kernels/ops.h"

void param_init_unit(Device *dev, ParamStore *store, int unit, uint64_t seed)
{
    const ParamTable *table = store->table;
    const Unit *u = &table->unit[unit];
    for (int i = u->first; i < u->first + u->count; i++) {
        const Param *p = &table->param[i];
        Tensor all = store->weight(store, i, 1);
        Tensor rows = tensor_slice_rows(all, 0, p->dim[0]);
        switch (p->init) {
        case INIT_ZERO: op_fill(dev, all, 0.0); break;
        case INIT_ONE: op_fill(dev, rows, 1.0); break;
        case INIT_NORMAL:
            op_normal(dev, rows, seed, &(Segment){.stream = rng_stream(p->name)}, (double)p->std);
            break;
        }
        if (p->init != INIT_ZERO && p->padded[0] > p->dim[0])
            op_fill(dev, tensor_slice_rows(all, p->dim[0], p->padded[0] - p->dim[0]), 0.0);
    }
}
