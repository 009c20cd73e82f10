/* checkpoint.c -- checks the rules between the keys of `checkpoint` and others. See load.h. */
#include "configs/reader/load.h"

#define UNUSABLE(load, ...) load_any_wrong(load, (const char *const[]){__VA_ARGS__, NULL})

static void check_writers(Load *load)
{
    static const char key[] = "checkpoint.writers";
    const Config *c = load->config;
    long long writers = c->checkpoint.writers, world = c->world;
    /* This is only a notice, because the same config may be right on more ranks. */
    if (world <= 0 || writers <= world || UNUSABLE(load, key, "parallel.data")) return;
    if (world == 1)
        load_notice(load, load_place(load, key), key,
                    "%lld, but there is 1 rank, which writes alone", writers);
    else
        load_notice(load, load_place(load, key), key,
                    "%lld, but there are %lld ranks, so %lld write", writers, world, world);
}

/* Refuses a keep_every that is not a multiple of the save interval: most of the checkpoints that
 * the user wants to keep would never be saved. */
static void check_keep_every(Load *load)
{
    static const char key[] = "checkpoint.keep_every";
    const Config *c = load->config;
    long long every = c->checkpoint.keep_every, interval = c->checkpoint.save_interval;
    if (every == 0 || UNUSABLE(load, key, "checkpoint.save_interval")) return;
    if (interval > 0 && every % interval == 0) return;
    if (interval == 0) {
        load_error(load, load_place(load, key), key,
                   "%lld, but with checkpoint.save_interval 0 the run saves only at its end; write "
                   "a save_interval that divides it",
                   every);
        load_remedy(load, "checkpoint.save_interval=%lld", every);
    } else {
        long long next = (every / interval + 1) * interval;
        load_error(load, load_place(load, key), key,
                   "%lld is no multiple of checkpoint.save_interval %lld, so the run does not save "
                   "at each of these steps; write %lld",
                   every, interval, next);
        load_remedy(load, "%s=%lld", key, next);
    }
}

/* Reports a compare_interval at which nothing is compared. This is only a notice, because the same
 * config may be used on more ranks. */
static void check_compare_interval(Load *load)
{
    static const char key[] = "checkpoint.compare_interval",
                      compare[] = "checkpoint.compare_replicas";
    const Config *c = load->config;
    if (UNUSABLE(load, key, compare, "parallel.data") || c->checkpoint.compare_interval == 0)
        return;
    if (!c->checkpoint.compare_replicas)
        load_notice(load, load_place(load, key), key,
                    "without effect: %s is false, so replicas are never compared", compare);
    else if (c->world == 1)
        load_notice(load, load_place(load, key), key,
                    "without effect: there is 1 rank, which has no replicas");
}

void checkpoint_validate(Load *load)
{
    check_writers(load);
    check_keep_every(load);
    check_compare_interval(load);
}
