/* batch.c -- the three batch keys, where train_batch_size = micro-batch x accumulation x
 * data-parallel ranks: derives those that are missing and reports those that contradict each other.
 * world.c determines the number of ranks. */
#include "configs/reader/load.h"

#include <stdio.h>
#include <string.h>

static const char data_key[] = "parallel.data", train_key[] = "train_batch_size",
                  micro_key[] = "train_micro_batch_size_per_gpu",
                  accum_key[] = "gradient_accumulation_steps";

/* Reports an error at the position of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)

static bool batch_unusable(const Load *load)
{
    return load_any_wrong(load,
                          (const char *const[]){train_key, micro_key, accum_key, data_key, NULL});
}

/* Returns how many ranks the config's grid has if it has `dp` data-parallel ranks. */
static int64_t ranks_with(const Config *c, int64_t dp)
{
    GridPlace grid = config_grid(c, 0);
    grid.dp = 1;
    return dp * grid_ranks(grid);
}

/* Returns rows x times x dp. Each factor can be in its range and their product overflow; then it is
 * INT64_MAX. */
static int64_t product(int64_t rows, int64_t times, int64_t dp)
{
    int64_t micros = rows * times; /* each is at most 1e9 */
    return micros <= 0 || dp <= INT64_MAX / micros ? micros * dp : INT64_MAX;
}

/* ---- deriving missing keys ------------------------------------------------------------------- */

/* Chooses the micro-batch for a file that leaves it to a trainer: the largest power of two up to 8
 * (Hugging Face's default) that divides the sequences that a rank handles in a step. */
static int64_t automatic_micro_batch(int64_t sequences)
{
    int64_t micro = 8;
    while (sequences > 0 && sequences % micro != 0)
        micro /= 2;
    return micro;
}

/* Derives missing batch keys from train_batch_size = micro-batch x accumulation x data-parallel
 * ranks, as DeepSpeed does, if the division is exact. If not, check_batch reports it. */
void derive_batch(Load *load)
{
    Config *c = load->config;
    int64_t *batch = &c->train_batch_size, *rows = &c->train_micro_batch_size_per_gpu,
            *times = &c->gradient_accumulation_steps, dp = c->parallel.data;
    bool train = load_given(load, train_key), micro = load_given(load, micro_key),
         accum = load_given(load, accum_key);
    /* The micro-batch is chosen here if nothing else says what the batch is, and for files that
     * leave it to a trainer. Otherwise it is given or follows from the other two keys. */
    bool absent = !train && !load_automatic(load, micro_key) && !load_automatic(load, train_key);
    bool automatic = !train || load_automatic(load, micro_key) || load->path == NULL;
    if (batch_unusable(load)) return;
    if (!micro && automatic) {
        /* `share` limits the micro-batch. If both other keys are given, it is exactly the
         * micro-batch. If only the batch is given, the micro-batch must divide it. 0 means that
         * nothing limits it. */
        int64_t share = train ? *batch / dp / (accum ? *times : 1) : 0;
        load_follow(load, micro_key, rows,
                    train && accum && share > 0 ? share : automatic_micro_batch(share));
        if (load->path != NULL)
            load_routine(load, load_place(load, micro_key), micro_key, "%s; %lld taken",
                         absent ? "no batch is given" : "no trainer fills it in here",
                         (long long)*rows);
        /* config_print prints it as "auto" again */
        load->origin[option_find(micro_key)].automatic = true;
        micro = true; /* from here on, treat it as given */
    }
    /* load_follow never changes a given key and never sets a key to 0. If a division is not exact,
     * the product of the three differs from the batch, and check_batch suggests values that fit. */
    if (train && micro) {
        load_follow(load, accum_key, times, *batch / *rows / dp);
    } else if (train) {
        load_follow(load, accum_key, times, 1);
        load_follow(load, micro_key, rows, *batch / dp / *times);
    } else if (micro) {
        load_follow(load, accum_key, times, 1);
        load_follow(load, train_key, batch, product(*rows, *times, dp));
    }
}

/* ---- reporting contradictions ---------------------------------------------------------------- */

/* Finds the divisors of `total` nearest to x, below and above it. *high is 0 if there is none near
 * enough, or if it equals *low. */
static void nearest_divisors(int64_t total, int64_t x, int64_t *low, int64_t *high)
{
    /* *high is at most four times x: 4099 would be no useful suggestion instead of 3. */
    *low = x < total ? x : total;
    *high = x;
    /* Both searches are bounded, because a batch may have a billion sequences. */
    for (int tries = 0; *low > 1 && total % *low != 0; tries++)
        *low = tries < 100000 ? *low - 1 : 1;
    while (*high < total && *high <= 4 * x && *high < x + 100000 && total % *high != 0)
        (*high)++;
    if (*high > total || *high == *low || *high > 4 * x || total % *high != 0) *high = 0;
}

static void one_or_two(int64_t low, int64_t high, char *out, size_t n)
{
    if (high > 0)
        snprintf(out, n, "%lld or %lld", (long long)low, (long long)high);
    else
        snprintf(out, n, "%lld", (long long)low);
}

void load_nearest_divisors(int64_t total, int64_t x, char *out, size_t n)
{
    int64_t low, high;
    nearest_divisors(total, x, &low, &high);
    one_or_two(low, high, out, n);
}

/* Finds the numbers of ranks, nearest to the config's, for which `total` is a multiple of the
 * data-parallel size, and writes them as "2 or 4 ranks". Returns false if they are more than can be
 * suggested. */
static bool near_ranks(const Config *c, int64_t total, char *out, size_t n)
{
    int64_t low, high, most = load_most_ranks(ranks_with(c, c->parallel.data));
    nearest_divisors(total, c->parallel.data, &low, &high);
    low = ranks_with(c, low);
    high = ranks_with(c, high);
    if (low > most) return false;
    if (high > most) high = 0;
    one_or_two(low, high, out, n);
    if (n > strlen(out))
        snprintf(out + strlen(out), n - strlen(out), " rank%s", low + high == 1 ? "" : "s");
    return true;
}

/* Adds the remedy that keeps the batch: the accumulation, and if need be the micro-batch, follow
 * from it. If the ranks cannot share the batch, the user must choose another one. */
static void mend_batch(Load *load, int64_t batch, int64_t rows, int64_t dp)
{
    int64_t share = batch / dp;
    if (share < 1 || share * dp != batch) return;
    if (rows > 0 && share % rows == 0)
        load_remedy(load, "%s=null", accum_key);
    else
        load_remedy(load, "%s=null\n%s=%lld", accum_key, micro_key,
                    (long long)automatic_micro_batch(share));
}

/* Reports that all three keys were given but do not multiply to the batch. The message always
 * suggests the product of the other keys as the batch. If changing one other key, or the number of
 * ranks, would also fit, it suggests that too. */
static void refuse_three(Load *load)
{
    const Config *c = load->config;
    int64_t batch = c->train_batch_size, rows = c->train_micro_batch_size_per_gpu,
            times = c->gradient_accumulation_steps, dp = c->parallel.data, share = batch / dp;
    long long made = product(rows, times, dp);
    char remedy[160] = "", near[64];
    double most = option_table[option_find(train_key)].max;
    /* The product is suggested as the batch, unless that value would itself be refused. */
    if ((double)made > most) {
        WRONG(load, train_key,
              "%lld is not micro %lld x accum %lld x dp %lld, which is more than %.0f; lower %s or "
              "%s",
              (long long)batch, (long long)rows, (long long)times, (long long)dp, most, micro_key,
              accum_key);
        return;
    }
    /* Suggest one more remedy, the first of these that works: change the other factor, change both
     * factors, or change the number of ranks. */
    if (share * dp == batch && share % rows == 0)
        snprintf(remedy, sizeof remedy, ", or %s %lld", accum_key, (long long)(share / rows));
    else if (share * dp == batch && share % times == 0)
        snprintf(remedy, sizeof remedy, ", or %s %lld", micro_key, (long long)(share / times));
    else if (share * dp == batch) {
        load_nearest_divisors(share, rows, near, sizeof near);
        snprintf(remedy, sizeof remedy, ", or leave %s out with micro %s", accum_key, near);
    } else if (!load->context.launched && batch % (rows * times) == 0 &&
               !load_given(load, data_key) &&
               ranks_with(c, batch / (rows * times)) <= load_most_ranks(ranks_with(c, dp)))
        snprintf(remedy, sizeof remedy, ", or --ranks %lld",
                 (long long)ranks_with(c, batch / (rows * times)));
    WRONG(load, train_key, "%lld is not micro %lld x accum %lld x dp %lld = %lld; write %s %lld%s",
          (long long)batch, (long long)rows, (long long)times, (long long)dp, made, train_key, made,
          remedy);
    mend_batch(load, batch, rows, dp);
}

/* Reports that the batch is not a multiple of the data-parallel ranks times the value of the key
 * `beside` that was given with it (NULL: none). Suggests the nearest multiples, and another value
 * for that key or another number of ranks. */
static void refuse_multiple(Load *load, const char *beside, int64_t value)
{
    const Config *c = load->config;
    int64_t batch = c->train_batch_size, dp = c->parallel.data, unit = product(value, 1, dp),
            low = batch / unit * unit, share = batch / dp;
    char near[64], other[160] = "", what[128], multiples[64];
    /* The second suggestion keeps the batch. If the batch divides evenly among the ranks, it is
     * another value of `beside`; otherwise it is a number of ranks that divides the batch. */
    if (beside != NULL && share > 0 && share * dp == batch) {
        load_nearest_divisors(share, value, near, sizeof near);
        snprintf(other, sizeof other, ", or %s %s", beside, near);
    } else if (dp > 1 && batch % value == 0 && !load_given(load, data_key) &&
               near_ranks(c, batch / value, near, sizeof near))
        snprintf(other, sizeof other, ", or train on %s", near);
    snprintf(what, sizeof what, "dp %lld", (long long)dp);
    if (beside != NULL)
        snprintf(what, sizeof what, "%s %lld x dp %lld = %lld",
                 beside == micro_key ? "micro" : "accum", (long long)value, (long long)dp,
                 (long long)unit);
    /* If the batch is smaller than the first multiple, only that multiple can be suggested. */
    snprintf(multiples, sizeof multiples, "%lld or %lld", (long long)low, (long long)(low + unit));
    if (low == 0) snprintf(multiples, sizeof multiples, "%lld", (long long)unit);
    if (low == 0 && beside == NULL)
        snprintf(what, sizeof what, "the %lld data-parallel ranks", (long long)dp);
    WRONG(load, train_key, "%lld is %s %s; write %s %s%s", (long long)batch,
          low > 0          ? "not a multiple of"
          : beside == NULL ? "fewer than"
                           : "less than",
          what, train_key, multiples, other);
    if (beside != NULL) mend_batch(load, batch, c->train_micro_batch_size_per_gpu, dp);
}

/* A stored run that is only inspected takes no step. Its batch need not fit the ranks; only the
 * micro-batch is read. */
static void accept_any(Config *c)
{
    if (c->train_micro_batch_size_per_gpu < 1) c->train_micro_batch_size_per_gpu = 1;
    if (c->gradient_accumulation_steps < 1) c->gradient_accumulation_steps = 1;
}

void check_batch(Load *load)
{
    const Config *c = load->config;
    int64_t batch = c->train_batch_size, rows = c->train_micro_batch_size_per_gpu,
            times = c->gradient_accumulation_steps, dp = c->parallel.data;
    bool train = load_given(load, train_key), micro = load_given(load, micro_key),
         accum = load_given(load, accum_key);
    if (batch_unusable(load)) return;
    double most = option_table[option_find(train_key)].max;
    /* Each factor is within its range, but their product is above the limit. */
    if (!train && batch > 0 && (double)batch > most)
        load_error(load, load_place(load, accum ? accum_key : micro_key), train_key,
                   "micro %lld x accum %lld x dp %lld is more than %.0f; lower %s", (long long)rows,
                   (long long)times, (long long)dp, most, accum ? accum_key : micro_key);
    if (batch > 0 && batch == product(rows, times, dp)) return;
    /* Errors name only keys that were given, because derived ones cannot be found in the file. */
    if (load->context.stored)
        accept_any(load->config);
    else if (train && micro && accum)
        refuse_three(load);
    else if (micro || (load_automatic(load, micro_key) && !accum))
        refuse_multiple(load, micro_key, rows);
    else
        refuse_multiple(load, accum ? accum_key : NULL, accum ? times : 1);
}

void config_batch_advice(const Config *config, int64_t batch, char *out, size_t n)
{
    const Origin *origin = config->provenance;
    int64_t dp = config->parallel.data, rows = config->train_micro_batch_size_per_gpu,
            share = batch / dp;
    size_t at = 0;
    char near[64], micro[128] = "";
    bool accum = origin_given(&origin[option_find(accum_key)]), shared = share * dp == batch;
    out[0] = '\0';
    if (origin_given(&origin[option_find(train_key)])) return;
    /* The micro-batch must divide a rank's share of the desired batch. */
    if (shared && share % rows != 0) {
        load_nearest_divisors(share, rows, near, sizeof near);
        snprintf(micro, sizeof micro, " and %s %s", micro_key, near);
    } else if (!shared && batch % rows != 0) {
        snprintf(micro, sizeof micro, " and %s 1", micro_key);
        rows = 1;
    }
    /* This number of ranks cannot divide the batch, so advice that keeps it would be refused. */
    if (!shared && !near_ranks(config, batch / rows, near, sizeof near)) return;
    if (!shared)
        at = (size_t)snprintf(out, n, "take %s, which share %lld evenly, and ", near,
                              (long long)batch);
    snprintf(out + at, n - at, "write %s %lld%s%s%s%s", train_key, (long long)batch, micro,
             accum ? " and leave " : "", accum ? accum_key : "", accum ? " out" : "");
}
