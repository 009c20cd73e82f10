/* parallel.c -- how ranks share a model (the sections parallel and pipeline): what follows, and
 * what does not fit. The number of ranks itself: batch.c. */
#include "configs/reader/load.h"

void derive_parallel(Load *load)
{
    static const char key[] = "parallel.schedule";
    Config *c = load->config;
    if (load_given(load, key) && !load_automatic(load, key) && !load_wrong(load, key)) return;
    c->parallel.schedule = c->parallel.pipeline_chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    if (!load_wrong(load, key)) load_derived(load, key);
}
