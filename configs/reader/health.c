/* health.c -- checks the rules between the keys of `health` and others. See load.h. */
#include "configs/reader/load.h"

void health_validate(Load *load)
{
    static const char key[] = "health.policy", deviations[] = "health.spike_deviations",
                      most[] = "health.max_rollbacks", interval[] = "checkpoint.save_interval";
    const Config *c = load->config;
    if (load_any_wrong(load, (const char *const[]){key, deviations, NULL})) return;
    bool spikes_only = c->health.policy == HEALTH_SKIP || c->health.policy == HEALTH_STOP;
    if (spikes_only && c->health.spike_deviations == 0)
        load_notice(load, load_place(load, key), key,
                    "without effect: health.spike_deviations is 0, so no loss is a spike");
    if (c->health.policy == HEALTH_ROLLBACK &&
        !load_any_wrong(load, (const char *const[]){most, NULL}) && c->health.max_rollbacks == 0) {
        load_notice(load, load_place(load, key), key,
                    "acts like \"stop\": %s is 0, so the run never goes back", most);
        return;
    }
    if (c->health.policy != HEALTH_ROLLBACK ||
        load_any_wrong(load, (const char *const[]){interval, "train_steps", NULL}))
        return;
    if (c->checkpoint.save_interval == 0 || c->checkpoint.save_interval >= c->train_steps)
        load_notice(load, load_place(load, key), key,
                    "the run has no checkpoint to go back to: %s is %lld, so only its end is saved",
                    interval, (long long)c->checkpoint.save_interval);
}
