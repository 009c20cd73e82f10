/* lr_schedule.c -- implements lr_schedule.h.
 *
 * DeepSpeed steps its schedulers after the optimizer and counts from -1. So update k uses the
 * learning rate of iteration k - 1, and the first two updates of a warmup use the minimum. This
 * file does the same, so that a DeepSpeed config trains in the same way. */
#include "optim/lr_schedule.h"

#include "model/core/check.h"

#include <math.h>

#define PI 3.14159265358979323846

static double clamp01(double x)
{
    return x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
}

static double max_d(double a, double b)
{
    return a > b ? a : b;
}

/* Returns the number of warmup iterations; at least two, so that the logarithmic warmup does not
 * divide by log(1) = 0. */
static double warmup_steps(const Config *config)
{
    return max_d(2.0, (double)config->scheduler.params.warmup_num_steps);
}

/* Returns the fraction of the warmup that is done at iteration 0 <= it < n. */
static double warmup_share(const Config *config, double it, double n)
{
    if (config->scheduler.params.warmup_type == WARMUP_LINEAR) return it / n;
    return log(it + 1.0) / log(n);
}

/* Returns the rate of WarmupLR at iteration `it`. With `decay`, returns that of WarmupDecayLR,
 * which after the warmup falls linearly to warmup_min_lr at total_num_steps. */
static double warmup_lr(const Config *config, double it, bool decay)
{
    double lowest = config->scheduler.params.warmup_min_lr;
    double highest = config->scheduler.params.warmup_max_lr;
    if (highest < 0.0) highest = config->optimizer.params.lr;
    double n = warmup_steps(config), total = (double)config->scheduler.params.total_num_steps;
    if (it < 0.0) return lowest;
    double share = 1.0; /* without decay, the highest rate is kept until the end */
    if (it < n) {
        share = warmup_share(config, it, n);
    } else if (decay) {
        /* If the warmup is as long as the run, there is nothing to decay; dividing by at least 1
         * avoids 0 / 0. */
        share = max_d(0.0, (total - it) / max_d(1.0, total - n));
    }
    return lowest + (highest - lowest) * share;
}

/* Returns the rate of WarmupCosineLR at iteration `it`: a warmup, then half a period of a cosine
 * without restarts (Loshchilov, Hutter, arXiv:1608.03983). */
static double warmup_cosine_lr(const Config *config, double it)
{
    double lr = config->optimizer.params.lr;
    double start = config->scheduler.params.warmup_min_ratio;
    double floor_ratio = config->scheduler.params.cos_min_ratio;
    double n = warmup_steps(config), total = (double)config->scheduler.params.total_num_steps;
    if (it < 0.0) return 0.0; /* not the start ratio: DeepSpeed returns 0 here */
    if (it < n) return lr * (start + (1.0 - start) * warmup_share(config, it, n));
    /* The + 1 is DeepSpeed's. Clamp to 1, because the cosine would rise again after the total. */
    double progress = clamp01((it - n + 1.0) / max_d(1.0, total - n));
    double ratio = floor_ratio + (1.0 - floor_ratio) * (1.0 + cos(PI * progress)) / 2.0;
    return lr * max_d(0.0, ratio);
}

/* Returns the rate of LRRangeTest (Smith, arXiv:1506.01186). It counts updates from 0, without the
 * delay of one update that the warmups have. */
static double range_test_lr(const Config *config, double update)
{
    double interval = update / (double)config->scheduler.params.lr_range_test_step_size;
    if (config->scheduler.params.lr_range_test_staircase) interval = floor(interval);
    return config->scheduler.params.lr_range_test_min_lr *
           (1.0 + config->scheduler.params.lr_range_test_step_rate * interval);
}

/* Returns the height of the triangle at update k >= 0 of a cycle of first + second updates: 0 at
 * both ends, 1 at the peak. If stairs are configured, each half rises or falls in that many equal
 * steps. */
static double cycle_height(const Config *config, int64_t k, int64_t first, int64_t second)
{
    int64_t first_stairs = config->scheduler.params.cycle_first_stair_count;
    int64_t second_stairs = config->scheduler.params.cycle_second_stair_count;
    if (second_stairs < 0) second_stairs = first_stairs;
    /* The falling half is measured from its end, so that both halves use the same formula and the
     * peak belongs to only one of them. */
    bool rising = k <= first;
    double part = rising ? (double)k : (double)(first + second - k);
    double length = (double)(rising ? first : second);
    int64_t stairs = rising ? first_stairs : second_stairs;
    if (length <= 0.0) return 0.0;
    if (stairs > 0) return floor(part * (double)stairs / length) / (double)stairs;
    return part / length;
}

/* Returns the rate of OneCycle (Smith, arXiv:1803.09820): one cycle up and down, then a decay below
 * the minimum by the factor 1 / (1 + rate * intervals). */
static double one_cycle_lr(const Config *config, int64_t update)
{
    int64_t first = config->scheduler.params.cycle_first_step_size;
    int64_t second = config->scheduler.params.cycle_second_step_size;
    int64_t decay_steps = config->scheduler.params.decay_step_size;
    double lowest = config->scheduler.params.cycle_min_lr;
    double highest = config->scheduler.params.cycle_max_lr;
    if (second < 0) second = first; /* not set: a symmetric triangle */
    if (update < first + second) {
        return lowest + (highest - lowest) * cycle_height(config, update, first, second);
    }
    if (decay_steps == 0) return lowest;
    double intervals = (double)(update - first - second) / (double)decay_steps;
    return lowest / (1.0 + config->scheduler.params.decay_lr_rate * intervals);
}

/* Returns the rate of WSD: warmup, stable, decay (Hu et al., arXiv:2404.06395; the decay 1 - sqrt:
 * Haegele et al., arXiv:2405.18392). The first update already uses lr / warmup_num_steps. The decay
 * takes the last decay_num_steps of total_num_steps (of train_steps if that is 0). It reaches
 * min_lr_ratio only at the update after the last one, so that the last update is not wasted on a
 * rate of (almost) zero. */
static double wsd_lr(const Config *config, double update)
{
    double lr = config->optimizer.params.lr, ratio = config->scheduler.params.min_lr_ratio;
    double warmup = (double)config->scheduler.params.warmup_num_steps;
    double decay = (double)config->scheduler.params.decay_num_steps;
    int64_t planned = config->scheduler.params.total_num_steps;
    double total = (double)(planned > 0 ? planned : config->train_steps);
    if (update < warmup) return lr * (update + 1.0) / warmup;
    if (decay <= 0.0) return lr;
    double progress = clamp01((update - (total - decay)) / decay);
    double left = 1.0 - progress; /* linear decay, unless changed below */
    if (config->scheduler.params.decay_type == DECAY_COSINE) {
        left = (1.0 + cos(PI * progress)) / 2.0;
    } else if (config->scheduler.params.decay_type == DECAY_SQRT) {
        left = 1.0 - sqrt(progress);
    }
    return lr * (ratio + (1.0 - ratio) * left);
}

double lr_schedule(const Config *config, int64_t update)
{
    CHECK(update >= 0, "update %lld", (long long)update);
    double k = (double)update;
    switch (config->scheduler.type) {
    case SCHEDULER_CONSTANT: return config->optimizer.params.lr;
    case SCHEDULER_WARMUP_LR: return warmup_lr(config, k - 1.0, false);
    case SCHEDULER_WARMUP_DECAY_LR: return warmup_lr(config, k - 1.0, true);
    case SCHEDULER_WARMUP_COSINE_LR: return warmup_cosine_lr(config, k - 1.0);
    case SCHEDULER_LR_RANGE_TEST: return range_test_lr(config, k);
    case SCHEDULER_ONE_CYCLE: return one_cycle_lr(config, update);
    case SCHEDULER_WSD: return wsd_lr(config, k);
    }
    CHECK(false, "scheduler type %d", (int)config->scheduler.type);
    return 0.0;
}

void lr_schedule_fill(const Config *config, double *table, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        table[i] = lr_schedule(config, i);
}
