/* batch.c -- derives missing batch keys and reports contradictions between the three batch keys:
 * train_batch_size = micro-batch x accumulation x data-parallel ranks. world.c determines the
 * number of ranks; the rules are in candidate.c. */
#include "configs/reader/candidate_rules.h"
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

/* ---- deriving missing keys ------------------------------------------------------------------- */

void derive_batch(Load *load)
{
    Config *c = load->config;
    const Candidate k = candidate_of_load(load);
    /* `chosen`: the micro-batch is chosen here, because no key determines the batch, or because the
     * file leaves it to a trainer. Otherwise it is given or derived from the other two keys. */
    bool train = load_given(load, train_key), chosen = !train || k.automatic,
         absent = !train && !load_automatic(load, micro_key) && !load_automatic(load, train_key);
    if (batch_unusable(load)) return;
    /* load_follow never changes a given key and never sets a key to 0. If a division is not exact,
     * the product of the three differs from the batch, and check_batch suggests values that fit. */
    load_follow(load, micro_key, &c->train_micro_batch_size_per_gpu, k.value[CANDIDATE_MICRO]);
    load_follow(load, accum_key, &c->gradient_accumulation_steps, k.value[CANDIDATE_ACCUMULATION]);
    load_follow(load, train_key, &c->train_batch_size, k.value[CANDIDATE_BATCH]);
    if (load_given(load, micro_key) || !chosen) return;
    if (load->path != NULL)
        load_routine(load, load_place(load, micro_key), micro_key, "%s; %lld taken",
                     absent ? "no batch is given" : "no trainer fills it in here",
                     (long long)c->train_micro_batch_size_per_gpu);
    /* config_print prints it as "auto" again */
    load->origin[option_find(micro_key)].automatic = true;
}

/* ---- reporting contradictions ---------------------------------------------------------------- */

/* Suggests options that keep the batch: they set the accumulation to null, so that it is derived,
 * and change the micro-batch `rows` if it does not divide the share of a data-parallel rank.
 * Suggests nothing if `dp` ranks cannot share the batch evenly: then the user must choose another
 * batch. */
static void mend_batch(Load *load, int64_t batch, int64_t rows, int64_t dp)
{
    int64_t share = batch / dp;
    if (share < 1 || share * dp != batch) return;
    if (rows > 0 && share % rows == 0)
        load_remedy(load, "%s=null", accum_key);
    else
        load_remedy(load, "%s=null\n%s=%lld", accum_key, micro_key,
                    (long long)candidate_micro_batch(share));
}

/* Writes, as ", or KEY VALUE", one change with which the product of the other batch keys equals the
 * given batch: the nearest accumulation, micro-batch or number of ranks, or else a micro-batch
 * together with a new accumulation. Writes "" if there is none. */
static void other_factor(const Load *load, char *out, size_t n)
{
    enum {
        FACTORS =
            KEY_BIT(CANDIDATE_ACCUMULATION) | KEY_BIT(CANDIDATE_MICRO) | KEY_BIT(CANDIDATE_RANKS)
    };
    const Candidate *from = &load->candidate;
    unsigned others = candidate_others(from, load->broken, RULE_BATCH);
    char near[160];
    Candidate to;
    out[0] = '\0';
    if (nearest_legal(
            from, ALL_RULES & ~others,
            &(Reach){
                .key = CANDIDATE_KEYS, .with = FACTORS, .most = 1, .others = others, .far = true},
            &to)) {
        if (to.value[CANDIDATE_ACCUMULATION] != from->value[CANDIDATE_ACCUMULATION])
            snprintf(out, n, ", or %s %lld", accum_key,
                     (long long)to.value[CANDIDATE_ACCUMULATION]);
        else if (to.value[CANDIDATE_MICRO] != from->value[CANDIDATE_MICRO])
            snprintf(out, n, ", or %s %lld", micro_key, (long long)to.value[CANDIDATE_MICRO]);
        else
            snprintf(out, n, ", or --ranks %lld", (long long)to.value[CANDIDATE_RANKS]);
    } else if (near_values(load, RULE_BATCH, CANDIDATE_MICRO, KEY_BIT(CANDIDATE_ACCUMULATION), near,
                           sizeof near))
        snprintf(out, n, ", or %s %s", micro_key, near);
}

/* Reports that all three keys were given but do not multiply to the batch. Suggests the product of
 * the other keys as the batch, and one other change. */
static void refuse_three(Load *load)
{
    const Config *c = load->config;
    int64_t batch = c->train_batch_size, rows = c->train_micro_batch_size_per_gpu,
            times = c->gradient_accumulation_steps, dp = c->parallel.data;
    long long made = candidate_product(rows, times, dp);
    char own[32], other[256];
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
    other_factor(load, other, sizeof other);
    bool one = near_values(load, RULE_BATCH, CANDIDATE_BATCH, 0, own, sizeof own);
    WRONG(load, train_key, "%lld is not micro %lld x accum %lld x dp %lld = %lld; write %s%s%s%s",
          (long long)batch, (long long)rows, (long long)times, (long long)dp, made,
          one ? train_key : "", one ? " " : "", one ? own : "",
          one      ? other
          : *other ? other + strlen(", or ")
                   : "other numbers");
    mend_batch(load, batch, rows, dp);
}

/* Reports that the batch is not a multiple of the number of data-parallel ranks times the value of
 * `beside`, the key that was given with it (CANDIDATE_KEYS: none). Suggests the nearest multiples,
 * and either another value for `beside` or another number of ranks. */
static void refuse_multiple(Load *load, CandidateKey beside, int64_t value)
{
    const Config *c = load->config;
    int64_t batch = c->train_batch_size, dp = c->parallel.data,
            unit = candidate_product(value, 1, dp);
    bool several = beside < CANDIDATE_KEYS;
    char near[128], other[256] = "", what[128], multiples[160] = "other numbers";
    /* The second suggestion keeps the batch. If the batch divides evenly among the ranks, it is
     * another value of `beside`; otherwise it is a number of ranks that divides the batch. */
    if (several && near_values(load, RULE_BATCH, beside, 0, near, sizeof near))
        snprintf(other, sizeof other, ", or %s %s", candidate_key_name(beside), near);
    else if (near_values(load, RULE_BATCH, CANDIDATE_RANKS, 0, near, sizeof near))
        snprintf(other, sizeof other, ", or train on %s rank%s", near,
                 strcmp(near, "1") == 0 ? "" : "s");
    snprintf(what, sizeof what, "dp %lld", (long long)dp);
    if (several)
        snprintf(what, sizeof what, "%s %lld x dp %lld = %lld",
                 beside == CANDIDATE_MICRO ? "micro" : "accum", (long long)value, (long long)dp,
                 (long long)unit);
    if (batch < unit && !several)
        snprintf(what, sizeof what, "the %lld data-parallel ranks", (long long)dp);
    if (near_values(load, RULE_BATCH, CANDIDATE_BATCH, 0, near, sizeof near))
        snprintf(multiples, sizeof multiples, "%s %s", train_key, near);
    WRONG(load, train_key, "%lld is %s %s; write %s%s", (long long)batch,
          batch >= unit ? "not a multiple of"
          : !several    ? "fewer than"
                        : "less than",
          what, multiples, other);
    if (several) mend_batch(load, batch, c->train_micro_batch_size_per_gpu, dp);
}

/* Accepts any batch in the stored config of a run that is only inspected. It takes no step, so its
 * batch need not fit the ranks; only the micro-batch is read. */
static void accept_any(Config *c)
{
    if (c->train_micro_batch_size_per_gpu < 1) c->train_micro_batch_size_per_gpu = 1;
    if (c->gradient_accumulation_steps < 1) c->gradient_accumulation_steps = 1;
}

void check_batch(Load *load)
{
    const Config *c = load->config;
    int64_t rows = c->train_micro_batch_size_per_gpu, times = c->gradient_accumulation_steps;
    bool train = load_given(load, train_key), micro = load_given(load, micro_key),
         accum = load_given(load, accum_key);
    if (load->context.stored && !batch_unusable(load)) accept_any(load->config);
    /* RULE_MOST: each factor of the batch is within its range, but the product is above the limit
     * of train_batch_size. */
    if (load_breaks(load, RULE_MOST))
        load_error(load, load_place(load, accum ? accum_key : micro_key), train_key,
                   "micro %lld x accum %lld x dp %lld is more than %.0f; lower %s", (long long)rows,
                   (long long)times, (long long)c->parallel.data,
                   option_table[option_find(train_key)].max, accum ? accum_key : micro_key);
    if (!load_breaks(load, RULE_BATCH)) return;
    /* Errors name only keys that were given, because derived ones cannot be found in the file. */
    if (train && micro && accum)
        refuse_three(load);
    else if (micro || (load_automatic(load, micro_key) && !accum))
        refuse_multiple(load, CANDIDATE_MICRO, rows);
    else
        refuse_multiple(load, accum ? CANDIDATE_ACCUMULATION : CANDIDATE_KEYS, accum ? times : 1);
}

/* ---- advice on a valid config ---------------------------------------------------------------- */

/* Writes the legal values of `key` nearest to the one in `from`, below and above it, as "2 or 4".
 * Returns false if there is none. */
static bool two_values(const Candidate *from, CandidateKey key, char *out, size_t n)
{
    Candidate low, high;
    bool below = nearest_legal(from, ALL_RULES, &(Reach){.key = key, .side = -1, .most = 1}, &low),
         above = nearest_legal(from, ALL_RULES, &(Reach){.key = key, .side = 1, .most = 1}, &high);
    if (below && above)
        snprintf(out, n, "%lld or %lld", (long long)low.value[key], (long long)high.value[key]);
    else if (below || above)
        snprintf(out, n, "%lld", (long long)(below ? low : high).value[key]);
    return below || above;
}

void config_batch_advice(const Config *config, int64_t batch, char *out, size_t n)
{
    const Origin *origin = config->provenance;
    int64_t ranks = config->world > 0 ? config->world : grid_ranks(config_grid(config, 0));
    Candidate from = candidate_of_config(config, ranks), to;
    char near[64] = "", micro[128] = "";
    bool accum = origin_given(&origin[option_find(accum_key)]);
    out[0] = '\0';
    if (origin_given(&origin[option_find(train_key)])) return;
    from.value[CANDIDATE_BATCH] = batch;
    from.fixed = (from.fixed | KEY_BIT(CANDIDATE_BATCH)) & ~KEY_BIT(CANDIDATE_ACCUMULATION);
    candidate_follow(&from);
    /* The micro-batch must divide a rank's share of the desired batch. If these ranks cannot share
     * the batch, advice that keeps their number would be refused. */
    if (candidate_legal(&from, ALL_RULES)) {
        near[0] = '\0';
    } else if (two_values(&from, CANDIDATE_MICRO, near, sizeof near)) {
        snprintf(micro, sizeof micro, " and %s %s", micro_key, near);
        near[0] = '\0';
    } else if (!two_values(&from, CANDIDATE_RANKS, near, sizeof near)) {
        const Reach both = {CANDIDATE_RANKS, .with = KEY_BIT(CANDIDATE_MICRO), .most = 2};
        if (!nearest_legal(&from, ALL_RULES, &both, &to)) return;
        snprintf(near, sizeof near, "%lld", (long long)to.value[CANDIDATE_RANKS]);
        snprintf(micro, sizeof micro, " and %s %lld", micro_key,
                 (long long)to.value[CANDIDATE_MICRO]);
    }
    size_t at = 0;
    if (*near)
        at = (size_t)snprintf(out, n, "take %s rank%s, which share %lld evenly, and ", near,
                              strcmp(near, "1") == 0 ? "" : "s", (long long)batch);
    snprintf(out + at, n - at, "write %s %lld%s%s%s%s", train_key, (long long)batch, micro,
             accum ? " and leave " : "", accum ? accum_key : "", accum ? " out" : "");
}
