/* saved_bytes.c -- adds up what the files of a checkpoint hold. */
#include "parallel/memory/saved_bytes.h"

#include "model/layers.h"
#include "optim/optimizer.h"

size_t saved_bytes_of(const Config *config, const ParamTable *table)
{
    size_t bytes = 0;
    for (int p = 0; p < table->n_params; p++) {
        const Param *row = &table->param[p];
        /* Each parameter is counted once in its full size, because files hold it once, however many
         * ranks have copies or shards. The product is checked for overflow, because a config may
         * ask for absurd sizes. */
        size_t each = dtype_size(row->dtype), own;
        for (int slot = 0; slot < SLOT_MAX; slot++)
            if (optimizer_has_slot(config, row->dtype, slot))
                each += dtype_size(dtype_compute(row->dtype));
        if (__builtin_mul_overflow((size_t)param_count(row), each, &own) ||
            __builtin_add_overflow(bytes, own, &bytes))
            return SIZE_MAX;
    }
    return bytes;
}

double saved_seconds(double bytes)
{
    static const double bytes_per_second = 200e6;
    return bytes / bytes_per_second;
}

size_t saved_bytes(const Config *config)
{
    GptShape whole = gpt_shape(config, (int)config->parallel.tensor);
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &whole, &LAYERS_WHOLE);
    size_t bytes = saved_bytes_of(config, &table);
    gpt_layers_free(&layers);
    param_table_free(&table);
    return bytes;
}
