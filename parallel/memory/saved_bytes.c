/* saved_bytes.c -- adds up the bytes in the files of a checkpoint. */
#include "parallel/memory/saved_bytes.h"

#include "model/core/check.h"
#include "model/layers.h"
#include "optim/optimizer.h"
#include "parallel/checkpoint/checkpoint.h"

#include <stdlib.h>

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
                each += dtype_size(optimizer_slot_dtype(config, row->dtype, slot));
        if (__builtin_mul_overflow((size_t)param_count(row), each, &own) ||
            __builtin_add_overflow(bytes, own, &bytes))
            return SIZE_MAX;
    }
    return bytes;
}

size_t snapshot_bytes_of(const Config *config, const ParamTable *table, int ranks, int rank)
{
    int n = 0, weights = table->n_params;
    if (saved_bytes_of(config, table) > INT64_MAX / 4) return SIZE_MAX;
    int64_t *bytes = must_calloc((size_t)weights * (SLOT_MAX + 1) + 1, sizeof *bytes);
    for (; n < weights; n++)
        bytes[n] = param_count(&table->param[n]) * (int64_t)dtype_size(table->param[n].dtype);
    for (int p = 0; p < weights; p++) {
        const Param *row = &table->param[p];
        for (int slot = 0; slot < SLOT_MAX; slot++)
            if (optimizer_has_slot(config, row->dtype, slot))
                bytes[n++] = param_count(row) *
                             (int64_t)dtype_size(optimizer_slot_dtype(config, row->dtype, slot));
    }
    CheckpointShare share =
        checkpoint_share(bytes, weights, n - weights, (int)config->checkpoint.writers, ranks, rank);
    free(bytes);
    return checkpoint_snapshot_bytes(&share);
}

bool snapshot_wanted(const Config *config)
{
    int64_t interval = config->checkpoint.save_interval;
    return config->checkpoint.async && interval > 0 && interval < config->train_steps;
}

/* Returns the largest number of bytes that the writers on one node write, if a node has
 * `ranks_of_node` ranks. */
static int64_t most_of_node(const Config *config, int64_t ranks, int64_t ranks_of_node)
{
    int rank[CHECKPOINT_MAX_WRITERS];
    GptShape whole = gpt_shape(config, (int)config->parallel.tensor);
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &whole, &LAYERS_WHOLE);
    int writers = checkpoint_writers((int)config->checkpoint.writers, (int)ranks, rank);
    int64_t most = 0, sum = 0, node = -1;
    for (int k = 0; k < writers; k++) {
        if (rank[k] / ranks_of_node != node) sum = 0;
        node = rank[k] / ranks_of_node;
        size_t bytes = snapshot_bytes_of(config, &table, (int)ranks, rank[k]);
        if (bytes > INT64_MAX / 4 || sum > INT64_MAX / 4)
            sum = INT64_MAX / 2;
        else
            sum += (int64_t)bytes;
        if (sum > most) most = sum;
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
    return most;
}

int64_t snapshot_bytes_of_node(const Config *config, int64_t ranks, int64_t ranks_of_node)
{
    return snapshot_wanted(config) ? most_of_node(config, ranks, ranks_of_node) : 0;
}

int64_t saved_bytes_of_writer(const Config *config, int64_t ranks)
{
    return most_of_node(config, ranks, 1);
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
