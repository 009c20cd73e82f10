/* flipped_bit.c -- see flipped_bit.h. */
#include "tests/support/trainer/flipped_bit.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

/* Flips a bit of element i of a flat tensor in device memory. */
static void flip(Device *dev, Tensor x, int64_t i, int bit)
{
    uint8_t bytes[8];
    Tensor near = tensor_1d(bytes, x.dtype, 1), far = tensor_slice_rows(x, i, 1);
    device_synchronize(dev);
    device_copy(dev, near, far);
    device_synchronize(dev);
    bytes[bit / 8] ^= (uint8_t)(1 << (bit % 8));
    device_copy(dev, far, near);
    device_synchronize(dev);
}

bool flip_held_bit(Trainer *t, const char *param, int slot, int64_t element, int bit)
{
    Session *s = &t->session;
    SessionExtent *extents = must_calloc((size_t)s->table.n_params, sizeof *extents);
    bool flipped = false;
    session_extents(s, PURPOSE_UPDATE, extents);
    for (int p = 0; p < s->table.n_params; p++) {
        const Param *row = &s->table.param[p];
        const SessionExtent *e = &extents[p];
        if (strcmp(row->name, param) != 0) continue;
        Tensor whole = zero_whole_weights(s->store, row->unit);
        int64_t at = e->extent.offset - e->shard.offset + element;
        if (slot < 0 && tensor_present(whole)) {
            flip(&s->dev, whole, row->offset + element, bit);
            flipped = true;
        } else if (element < e->extent.count) {
            Tensor held =
                slot < 0 ? e->shard.weight : optimizer_slot_of(&t->optimizer, &e->shard, slot);
            flipped = tensor_present(held);
            if (flipped) flip(&s->dev, held, at, bit);
        }
    }
    free(extents);
    return flipped;
}
