/* scheduler.c -- keys of the section `scheduler` that depend on each other: derives missing ones
 * and checks the rules between them. */
#include "configs/reader/load.h"

#include <math.h>
#include <stdio.h>

static const char train_key[] = "train_steps", total_key[] = "scheduler.params.total_num_steps",
                  warmup_key[] = "scheduler.params.warmup_num_steps",
                  warmup_ratio_key[] = "scheduler.params.warmup_ratio",
                  decay_key[] = "scheduler.params.decay_num_steps",
                  decay_ratio_key[] = "scheduler.params.decay_ratio";

/* Ratios are decimal numbers, so 0.7 + 0.3 may come out slightly above 1. */
#define ALL_STEPS (1 + 1e-9)
/* WSD's decay if none is given, as a fraction of total_num_steps. */
#define DEFAULT_DECAY 0.2

static bool is_given(const Load *load, const char *key)
{
    return load_given(load, key) && !load_wrong(load, key);
}

/* Converts a fraction of train_steps to steps, rounded to the nearest. */
static int64_t steps_of(const Config *c, double ratio)
{
    return (int64_t)floor(ratio * (double)c->train_steps + 0.5);
}

/* Sets a number of steps that was computed from a ratio, and marks the key as derived. If the key
 * was given as "auto", it no longer counts as automatic. */
static void settle(Load *load, const char *key, int64_t *field, int64_t steps)
{
    *field = steps;
    load->origin[option_find(key)] = (Origin){.kind = ORIGIN_DERIVED};
}

/* Converts ratios to steps. If the ratios of warmup and decay add up to at most 1, their steps must
 * also fit into the run; so if the warmup was rounded up, the decay may become shorter. */
static void derive_ratios(Load *load)
{
    Config *c = load->config;
    double up = c->scheduler.params.warmup_ratio, down = c->scheduler.params.decay_ratio;
    bool warmup = is_given(load, warmup_ratio_key) && !load_given(load, warmup_key),
         decay = is_given(load, decay_ratio_key) && !load_given(load, decay_key);
    if (load_wrong(load, train_key)) return;
    /* Each ratio is rounded by itself, so that the warmup of a preset does not depend on its
     * decay. */
    if (warmup) settle(load, warmup_key, &c->scheduler.params.warmup_num_steps, steps_of(c, up));
    if (decay) settle(load, decay_key, &c->scheduler.params.decay_num_steps, steps_of(c, down));
    int64_t left = c->train_steps - c->scheduler.params.warmup_num_steps;
    /* After separate rounding, warmup and decay may together be one step longer than the run. */
    bool fits = up + (decay ? down : DEFAULT_DECAY) <= ALL_STEPS;
    if (warmup && fits && !load_given(load, decay_key) &&
        c->scheduler.params.decay_num_steps > left)
        c->scheduler.params.decay_num_steps = left;
}

void derive_scheduler(Load *load)
{
    Config *c = load->config;
    SchedulerType type = c->scheduler.type;
    if (type == SCHEDULER_WARMUP_DECAY_LR || type == SCHEDULER_WARMUP_COSINE_LR ||
        type == SCHEDULER_WSD)
        load_follow(load, total_key, &c->scheduler.params.total_num_steps, c->train_steps);
    if (type == SCHEDULER_WSD)
        load_follow(load, decay_key, &c->scheduler.params.decay_num_steps,
                    (c->scheduler.params.total_num_steps + 4) / 5);
    /* Hugging Face's trainer substitutes its own default for "auto". */
    if (load_automatic(load, warmup_key)) {
        c->scheduler.params.warmup_num_steps = 0;
        load_derived(load, warmup_key);
        load_routine(load, load_place(load, warmup_key), warmup_key,
                     "no trainer fills it in here; 0 taken, Hugging Face's default");
    }
    /* Ratios are converted after the default lengths were set, because a ratio replaces a
     * default. */
    derive_ratios(load);
    if (!load_given(load, "scheduler.params.warmup_max_lr") &&
        (type == SCHEDULER_WARMUP_LR || type == SCHEDULER_WARMUP_DECAY_LR)) {
        bool own =
            type == SCHEDULER_WARMUP_LR || load_automatic(load, "scheduler.params.warmup_max_lr");
        c->scheduler.params.warmup_max_lr = own ? c->optimizer.params.lr : 0.001;
        load_derived(load, "scheduler.params.warmup_max_lr");
    }
    if (type != SCHEDULER_ONE_CYCLE) return;
    load_follow(load, "scheduler.params.cycle_second_step_size",
                &c->scheduler.params.cycle_second_step_size,
                c->scheduler.params.cycle_first_step_size);
    if (load_given(load, "scheduler.params.cycle_second_stair_count")) return;
    c->scheduler.params.cycle_second_stair_count = c->scheduler.params.cycle_first_stair_count;
    load_derived(load, "scheduler.params.cycle_second_stair_count");
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void check_one_cycle(Load *load)
{
    const Config *c = load->config;
    const char *keys[] = {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"};
    ConfigPlace type = load_place(load, "scheduler.type");
    for (int i = 0; i < 2; i++)
        if (!load_given(load, keys[i]))
            load_error(load, type, keys[i], "OneCycle needs it; write a learning rate");
    /* A cycle_momentum that is not given is refused, too, because DeepSpeed cycles the momentum by
     * default. */
    if (!load_given(load, "scheduler.params.cycle_momentum")) {
        load_error(load, type, "scheduler.params.cycle_momentum",
                   "true is the default of OneCycle, and cycling of momentum is known, not built "
                   "yet; write false");
        load_remedy(load, "scheduler.params.cycle_momentum=false");
    }
    if (is_given(load, keys[0]) && is_given(load, keys[1]) &&
        c->scheduler.params.cycle_max_lr < c->scheduler.params.cycle_min_lr)
        load_error(load, load_place(load, keys[1]), keys[1], "below cycle_min_lr; swap the two");
}

/* Reports a length that is given both as a ratio and in steps, and ratios that add up to more than
 * 1. */
static void check_ratios(Load *load)
{
    const Config *c = load->config;
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        if (option->settles != NULL && load_given(load, option->key) &&
            load_given(load, option->settles) && option_applies(option, c))
            load_error(load, load_place(load, option->key), option->key,
                       "%s is given too; keep one of the two", option->settles);
    }
    double up = c->scheduler.params.warmup_ratio, down = c->scheduler.params.decay_ratio;
    if (is_given(load, warmup_ratio_key) && is_given(load, decay_ratio_key) &&
        up + down > ALL_STEPS && c->scheduler.type == SCHEDULER_WSD)
        load_error(load, load_place(load, decay_ratio_key), decay_ratio_key,
                   "%g and warmup_ratio %g together are more than 1; shorten one of them", down,
                   up);
}

/* WarmupLR has no total length, so a long warmup is no error: the run just never reaches its
 * learning rate. */
static void notice_long_warmup(Load *load)
{
    const Config *c = load->config;
    int64_t warmup = c->scheduler.params.warmup_num_steps;
    if (warmup > c->train_steps)
        load_notice(
            load, load_place(load, load_given(load, warmup_key) ? warmup_key : "scheduler.type"),
            warmup_key, "%lld%s, but train_steps is %lld: the run ends before the warmup does",
            (long long)warmup, load_given(load, warmup_key) ? "" : " (the default)",
            (long long)c->train_steps);
}

/* Checks that warmup and decay fit into the schedule. */
static void check_lengths(Load *load)
{
    const Config *c = load->config;
    int64_t total = c->scheduler.params.total_num_steps,
            warmup = c->scheduler.params.warmup_num_steps,
            decay = c->scheduler.type == SCHEDULER_WSD ? c->scheduler.params.decay_num_steps : 0;
    bool ratio = load_given(load, warmup_ratio_key);
    /* A run that is opened only to be read does not train. If its number of steps is derived from
     * train_tokens, it may differ on another number of ranks. */
    if (load->context.opened > 0) return;
    /* A default warmup has no position in the file. The error then points at the key that makes it
     * too long: total_num_steps if that was given, otherwise the scheduler type. */
    const char *by_default = load_given(load, warmup_key) ? "" : " (the default)";
    const char *key = ratio ? warmup_ratio_key : warmup_key, *place = load_given(load, key) ? key
                                                                      : load_given(load, total_key)
                                                                          ? total_key
                                                                          : "scheduler.type";
    /* The file contains the ratio, not the number of steps computed from it, so the error asks for
     * a smaller ratio. A ratio refers to train_steps, and total_num_steps may be smaller. */
    if (warmup > total && ratio)
        load_error(load, load_place(load, place), key,
                   "%lld steps of warmup are more than total_num_steps %lld; write a smaller share",
                   (long long)warmup, (long long)total);
    else if (warmup > total) {
        load_error(
            load, load_place(load, place), key,
            "%lld%s is more than total_num_steps %lld%s; write at most that, such as %lld, or "
            "warmup_ratio instead, a share of train_steps",
            (long long)warmup, by_default, (long long)total,
            load_given(load, total_key) ? "" : " (= train_steps)", (long long)total / 100 + 1);
        load_remedy(load, "%s=%lld", key, (long long)total / 100 + 1);
    } else if (warmup + decay > total)
        load_error(load, load_place(load, place), key,
                   "%lld%s and decay_num_steps %lld together are more than total_num_steps %lld; "
                   "shorten one of them",
                   (long long)warmup, ratio ? " steps" : by_default, (long long)decay,
                   (long long)total);
    /* This is not an error: a run may end before its schedule and be resumed later, or continue at
     * the last learning rate. */
    if (load_given(load, total_key) && total != c->train_steps)
        load_notice(load, load_place(load, total_key), total_key,
                    "%lld, but train_steps is %lld: %s", (long long)total,
                    (long long)c->train_steps,
                    total < c->train_steps ? "the last steps run at the final learning rate"
                                           : "the run ends before the schedule does");
}

void check_scheduler(Load *load)
{
    static const char *const read[] = {train_key,        total_key, warmup_key,
                                       warmup_ratio_key, decay_key, decay_ratio_key};
    if (load_wrong(load, "scheduler.type")) return;
    SchedulerType type = load->config->scheduler.type;
    if (type == SCHEDULER_ONE_CYCLE) check_one_cycle(load);
    /* If the ratios contradict each other, do not report errors about the steps computed from
     * them. */
    int before = load->n_errors;
    check_ratios(load);
    if (load->n_errors > before) return;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (load_wrong(load, read[i])) return;
    if (type == SCHEDULER_WARMUP_LR) notice_long_warmup(load);
    if (type == SCHEDULER_WARMUP_DECAY_LR || type == SCHEDULER_WARMUP_COSINE_LR ||
        type == SCHEDULER_WSD)
        check_lengths(load);
}
