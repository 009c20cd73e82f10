/* health.c -- checks the rules between the keys of `health` and others. See load.h. */
#include "configs/reader/load.h"

void health_validate(Load *load)
{
    static const char key[] = "health.policy", deviations[] = "health.spike_deviations";
    const Config *c = load->config;
    if (load_any_wrong(load, (const char *const[]){key, deviations, NULL})) return;
    bool spikes_only = c->health.policy == HEALTH_SKIP || c->health.policy == HEALTH_STOP;
    if (spikes_only && c->health.spike_deviations == 0)
        load_notice(load, load_place(load, key), key,
                    "without effect: health.spike_deviations is 0, so no loss is a spike");
}
