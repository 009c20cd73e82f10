/* world.c -- determines the number of ranks and parallel.data: from the command line, or else from
 * parallel.data or the batch keys of the config. */
#include "configs/reader/load.h"

#include <stdio.h>

static const char data_key[] = "parallel.data", train_key[] = "train_batch_size",
                  micro_key[] = "train_micro_batch_size_per_gpu",
                  accum_key[] = "gradient_accumulation_steps";

/* If all three batch keys are given, returns the data-parallel size that they imply; otherwise, or
 * if they do not divide, returns 0. */
static int64_t data_of_batch(const Load *load)
{
    static const char *const keys[] = {train_key, micro_key, accum_key, data_key, NULL};
    const Config *c = load->config;
    if (!load_given(load, train_key) || !load_given(load, micro_key) ||
        !load_given(load, accum_key) || load_any_wrong(load, keys))
        return 0;
    int64_t micros = c->train_micro_batch_size_per_gpu * c->gradient_accumulation_steps;
    return c->train_batch_size % micros == 0 ? c->train_batch_size / micros : 0;
}

/* Reports that parallel.data was given and implies `ranks` ranks, which is not the number of ranks
 * there are. */
static void refuse_data(Load *load, int64_t ranks)
{
    const Config *c = load->config;
    int64_t world = load->context.world;
    char instead[64] = "";
    if (ranks <= load_most_ranks(world) && !load->context.launched)
        snprintf(instead, sizeof instead, "--ranks %lld, or ", (long long)ranks);
    if (load->context.alone)
        load_error(load, load_place(load, data_key), data_key,
                   "%lld, but there is 1 rank here; leave the key out",
                   (long long)c->parallel.data);
    else
        load_error(load, load_place(load, data_key), data_key,
                   "%lld, but there %s %lld rank%s; write %s%d here, or leave the key out",
                   (long long)c->parallel.data, world == 1 ? "is" : "are", (long long)world,
                   world == 1 ? "" : "s", instead, config_grid(c, world).dp);
    load->origin[option_find(data_key)].wrong = true;
}

/* Derives parallel.data from the number of ranks; or, if that number is not known, both from the
 * config. */
void derive_world(Load *load)
{
    Config *c = load->config;
    int64_t *data = &c->parallel.data, world = load->context.world;
    bool given = load_given(load, data_key);
    if (!given || load_wrong(load, data_key)) *data = 1;
    if (load_any_wrong(
            load, (const char *const[]){data_key, "parallel.tensor", "parallel.pipeline", NULL}))
        return;
    /* An error about the tensor or pipeline size has been reported or will be. Another error about
     * the batch or parallel.data, which depend on them, would describe a grid that will not
     * exist. */
    if (!check_cut(load)) {
        load->origin[option_find(data_key)].wrong = true;
        return;
    }
    GridPlace grid = config_grid(c, 0);
    if (world > 0 && given && grid_ranks(grid) != world) {
        refuse_data(load, grid_ranks(grid));
        return;
    }
    /* The number of ranks was not given, so use the number that the config itself implies. 0 means
     * that it implies none and is valid for any number. */
    if (world == 0) {
        grid.dp = 1;
        int64_t replica = grid_ranks(grid), dp = given ? *data : data_of_batch(load);
        /* In a config that has other errors, these sizes may be so large that the product
         * overflows. */
        world = dp <= INT64_MAX / replica ? dp * replica : INT64_MAX;
        grid.dp = (int)dp;
    } else {
        grid.dp = config_grid(c, world).dp;
    }
    c->world = world;
    load_follow(load, data_key, data, world > 0 ? grid.dp : 1);
}
