/* batch.c -- the three batch keys (train_batch_size = micro-batch x accumulation x data-parallel
 * ranks): what follows from what, and what does not fit. How many ranks there are: world.c. */
#include "configs/reader/load.h"

#include <stdio.h>
#include <string.h>

static const char data_key[] = "parallel.data", train_key[] = "train_batch_size",
                  micro_key[] = "train_micro_batch_size_per_gpu",
                  accum_key[] = "gradient_accumulation_steps";

/* An error at the place of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)

static bool batch_unusable(const Load *load)
{
    return load_any_wrong(load,
                          (const char *const[]){train_key, micro_key, accum_key, data_key, NULL});
}

/* How many ranks the config's grid has with so many data-parallel ones. */
static int64_t ranks_with(const Config *c, int64_t dp)
{
    GridPlace grid = config_grid(c, 0);
    grid.dp = 1;
    return dp * grid_ranks(grid);
}

/* What the three factors make; numbers of which each is sound may make one that is beyond all. */
static int64_t product(int64_t rows, int64_t times, int64_t dp)
{
    int64_t micros = rows * times; /* 1e9 each at most */
    return micros <= 0 || dp <= INT64_MAX / micros ? micros * dp : INT64_MAX;
}

/* ---- what follows ---------------------------------------------------------------------------- */

/* The micro-batch of a file that leaves it to a trainer: the largest power of two up to 8 (Hugging
 * Face's default) that goes into what a rank has to do in a step. */
static int64_t automatic_micro_batch(int64_t sequences)
{
    int64_t micro = 8;
    while (sequences > 0 && sequences % micro != 0)
        micro /= 2;
    return micro;
}

/* train_batch_size = micro-batch x accumulation x data-parallel ranks: what is missing follows, as
 * in DeepSpeed, where it divides; check_batch speaks up where it does not. */
void derive_batch(Load *load)
{
    Config *c = load->config;
    int64_t *batch = &c->train_batch_size, *rows = &c->train_micro_batch_size_per_gpu,
            *times = &c->gradient_accumulation_steps, dp = c->parallel.data;
    bool train = load_given(load, train_key), micro = load_given(load, micro_key),
         accum = load_given(load, accum_key);
    /* Files that leave the micro-batch to a trainer get one here, and so does a run without a file;
     * elsewhere it is given, or follows from the other two keys. */
    bool automatic = load_automatic(load, micro_key) ||
                     (load_automatic(load, train_key) && !train) || load->path == NULL;
    if (batch_unusable(load)) return;
    if (!micro && automatic) {
        /* What one rank has to do in one micro-batch is settled where both other keys are given;
         * with the batch alone it is what its micro-batches have to divide; 0: open. */
        int64_t share = train ? *batch / dp / (accum ? *times : 1) : 0;
        load_follow(load, micro_key, rows,
                    train && accum && share > 0 ? share : automatic_micro_batch(share));
        if (load->path != NULL)
            load_routine(load, load_place(load, micro_key), micro_key,
                         "no trainer fills it in here; %lld taken", (long long)*rows);
        load->origin[option_find(micro_key)].automatic = true; /* printed, and read, as such */
        micro = true; /* from here on as if it had been given */
    }
    /* load_follow changes no key that was given and sets none to 0. Where something does not
     * divide, the product of the three is not the batch then, and check_batch says what would be.
     */
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

/* ---- what does not fit ----------------------------------------------------------------------- */

/* The divisors of `total` nearest to x from below and from above; 0 above: none that is near, or
 * both are the same. */
static void nearest_divisors(int64_t total, int64_t x, int64_t *low, int64_t *high)
{
    /* From above no farther than four times: "micro 3" is not mended by 4099. */
    *low = x < total ? x : total;
    *high = x;
    /* Both searches are bounded: a batch may have a billion sequences. */
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

/* The numbers of ranks nearest to the config's whose data-parallel ranks share `total` evenly, as
 * "2 or 4 ranks"; false where a run cannot have so many. */
static bool near_ranks(const Config *c, int64_t total, char *out, size_t n)
{
    int64_t low, high;
    nearest_divisors(total, c->parallel.data, &low, &high);
    low = ranks_with(c, low);
    high = ranks_with(c, high);
    if (low > CONFIG_MAX_RANKS) return false;
    if (high > CONFIG_MAX_RANKS) high = 0;
    one_or_two(low, high, out, n);
    if (n > strlen(out))
        snprintf(out + strlen(out), n - strlen(out), " rank%s", low + high == 1 ? "" : "s");
    return true;
}

/* All three were given, and are not one another's product: the batch that the other two make is
 * always a remedy; if one of the two or the number of ranks can be changed to fit the batch, that
 * is offered, too. */
static void refuse_three(Load *load)
{
    const Config *c = load->config;
    int64_t batch = c->train_batch_size, rows = c->train_micro_batch_size_per_gpu,
            times = c->gradient_accumulation_steps, dp = c->parallel.data, share = batch / dp;
    long long made = product(rows, times, dp);
    char remedy[160] = "", near[64];
    double most = option_table[option_find(train_key)].max;
    /* The product is always offered as the batch, but not where it would itself be refused. */
    if ((double)made > most) {
        WRONG(load, train_key,
              "%lld is not micro %lld x accum %lld x dp %lld, which is more than %.0f; lower %s or "
              "%s",
              (long long)batch, (long long)rows, (long long)times, (long long)dp, most, micro_key,
              accum_key);
        return;
    }
    /* One more remedy, the first that leaves most as it was written: the other of the two factors,
     * both of them, or the number of ranks. */
    if (share * dp == batch && share % rows == 0)
        snprintf(remedy, sizeof remedy, ", or %s %lld", accum_key, (long long)(share / rows));
    else if (share * dp == batch && share % times == 0)
        snprintf(remedy, sizeof remedy, ", or %s %lld", micro_key, (long long)(share / times));
    else if (share * dp == batch) {
        load_nearest_divisors(share, rows, near, sizeof near);
        snprintf(remedy, sizeof remedy, ", or leave %s out with micro %s", accum_key, near);
    } else if (batch % (rows * times) == 0 && !load_given(load, data_key) &&
               ranks_with(c, batch / (rows * times)) <= CONFIG_MAX_RANKS)
        snprintf(remedy, sizeof remedy, ", or --ranks %lld",
                 (long long)ranks_with(c, batch / (rows * times)));
    WRONG(load, train_key, "%lld is not micro %lld x accum %lld x dp %lld = %lld; write %s %lld%s",
          (long long)batch, (long long)rows, (long long)times, (long long)dp, made, train_key, made,
          remedy);
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
    /* A second remedy that keeps the batch: another value of what is beside it where each rank has
     * a whole share, else a number of ranks that all shares go into. */
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
    /* Below the first multiple there is only that one to offer. */
    snprintf(multiples, sizeof multiples, "%lld or %lld", (long long)low, (long long)(low + unit));
    if (low == 0) snprintf(multiples, sizeof multiples, "%lld", (long long)unit);
    if (low == 0 && beside == NULL)
        snprintf(what, sizeof what, "the %lld data-parallel ranks", (long long)dp);
    WRONG(load, train_key, "%lld is %s %s; write %s %s%s", (long long)batch,
          low > 0          ? "not a multiple of"
          : beside == NULL ? "fewer than"
                           : "less than",
          what, train_key, multiples, other);
}

/* A run that is opened to look at takes no step: its batch need not fit any ranks, and a
 * micro-batch is all that is read of it. */
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
    /* Nothing was given that a batch could follow from; an accumulation alone is the nearest that
     * can be pointed at. */
    if (batch == 0 && rows == 0) {
        load_error(load, accum ? load_place(load, accum_key) : load->root, train_key,
                   "the batch is not given; write %s or %s (two of %s, %s, %s settle the third)",
                   train_key, micro_key, train_key, micro_key, accum_key);
        return;
    }
    double most = option_table[option_find(train_key)].max;
    /* Each factor is in its own range, and their product in none. */
    if (!train && batch > 0 && (double)batch > most)
        load_error(load, load_place(load, accum ? accum_key : micro_key), train_key,
                   "micro %lld x accum %lld x dp %lld is more than %.0f; lower %s", (long long)rows,
                   (long long)times, (long long)dp, most, accum ? accum_key : micro_key);
    if (batch > 0 && batch == product(rows, times, dp)) return;
    /* What is blamed are the keys that were given: what only followed would not be found in the
     * file. */
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
    /* The micro-batch must go into a rank's share of the batch that is wanted. */
    if (shared && share % rows != 0) {
        load_nearest_divisors(share, rows, near, sizeof near);
        snprintf(micro, sizeof micro, " and %s %s", micro_key, near);
    } else if (!shared && batch % rows != 0) {
        snprintf(micro, sizeof micro, " and %s 1", micro_key);
        rows = 1;
    }
    /* These ranks cannot share it, so advice without another number of ranks would be refused. */
    if (!shared && !near_ranks(config, batch / rows, near, sizeof near)) return;
    if (!shared)
        at = (size_t)snprintf(out, n, "take %s, which share %lld evenly, and ", near,
                              (long long)batch);
    snprintf(out + at, n - at, "write %s %lld%s%s%s%s", train_key, (long long)batch, micro,
             accum ? " and leave " : "", accum ? accum_key : "", accum ? " out" : "");
}
