/* world.c -- determines the number of ranks and parallel.data: from the command line, or else from
 * parallel.data or the batch keys of the config. */
#include "configs/reader/load.h"

static const char data_key[] = "parallel.data";

/* Derives parallel.data from the number of ranks; or, if that number is not known, both from the
 * config. */
void derive_world(Load *load)
{
    Config *c = load->config;
    if (!load_given(load, data_key) || load_wrong(load, data_key)) c->parallel.data = 1;
    /* If check_grid reports an error about the tensor or pipeline size, an error about the batch or
     * about parallel.data, which depend on these sizes, would describe a grid that will not exist.
     * So nothing is derived from them then. */
    check_grid(load);
    if (load_any_wrong(
            load, (const char *const[]){data_key, "parallel.tensor", "parallel.pipeline", NULL}))
        return;
    /* This is 0 if the config implies no number of ranks; it is then valid for any number. */
    c->world = candidate_ranks(&load->candidate);
    load_follow(load, data_key, &c->parallel.data, load->candidate.value[CANDIDATE_DATA]);
}
