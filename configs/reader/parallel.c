/* parallel.c -- how ranks share a model (the sections parallel and pipeline): what follows, and
 * what does not fit, each with the nearest values that would. */
#include "configs/reader/load.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tensor_key[] = "parallel.tensor", stages_key[] = "parallel.pipeline",
                  chunks_key[] = "parallel.pipeline_chunks", schedule_key[] = "parallel.schedule",
                  split_key[] = "parallel.pipeline_split",
                  sequence_key[] = "parallel.sequence_parallel",
                  partition_key[] = "pipeline.partition", layers_key[] = "model.num_layers";

/* An error at the place of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)
#define UNUSABLE(load, ...)   load_any_wrong(load, (const char *const[]){__VA_ARGS__, NULL})

/* ---- tensor-parallel ranks ------------------------------------------------------------------- */

/* What of the model so many tensor-parallel ranks cannot share, as "num_attention_heads 12"; NULL:
 * nothing. What was refused is not asked. */
static const char *uncut(const Load *load, int64_t tp, char *out, size_t n)
{
    static const char heads[] = "model.num_attention_heads", groups[] = "model.num_key_value_heads",
                      width[] = "model.intermediate_size";
    const Config *c = load->config;
    int64_t kv = c->model.num_key_value_heads;
    if (!load_wrong(load, heads) && c->model.num_attention_heads % tp != 0)
        snprintf(out, n, "num_attention_heads %lld", (long long)c->model.num_attention_heads);
    else if (!UNUSABLE(load, heads, groups) && kv % tp != 0 && tp % kv != 0)
        snprintf(out, n, "num_key_value_heads %lld", (long long)kv);
    else if (!UNUSABLE(load, "model.hidden_size", width) && c->model.intermediate_size % tp != 0)
        snprintf(out, n, "intermediate_size %lld", (long long)c->model.intermediate_size);
    else
        return NULL;
    return out;
}

/* Whether the number of ranks, where it is known, can be cut so. */
static bool cuts_world(const Load *load, int64_t cut)
{
    bool looked_at = load->context.stored && load->context.opened == 0;
    return looked_at || load->context.world == 0 || load->context.world % cut == 0;
}

/* Whether the model can be cut so, on whatever ranks. */
static bool tensor_cuts(const Load *load, int64_t tp)
{
    char what[64];
    return uncut(load, tp, what, sizeof what) == NULL;
}

static bool stages_cut(const Load *load, int64_t stages)
{
    const Config *c = load->config;
    return UNUSABLE(load, layers_key, chunks_key) ||
           stages * c->parallel.pipeline_chunks <= c->model.num_layers;
}

/* The same on these ranks, beside the other size where that can stay. */
static bool tensor_fits(const Load *load, int64_t tp)
{
    int64_t stages = load->config->parallel.pipeline;
    bool stays = !load_wrong(load, stages_key) && stages_cut(load, stages);
    return tensor_cuts(load, tp) && cuts_world(load, tp * (stays ? stages : 1));
}

static bool stages_fit(const Load *load, int64_t stages)
{
    int64_t tp = load->config->parallel.tensor;
    bool stays = !load_wrong(load, tensor_key) && tensor_cuts(load, tp);
    return stages_cut(load, stages) && cuts_world(load, stages * (stays ? tp : 1));
}

/* The values that fit nearest below and above `x`, which does not, as "2 or 4"; "1" where none
 * does. */
static void nearest(const Load *load, bool (*fits)(const Load *load, int64_t x), int64_t x,
                    char *out, size_t n)
{
    enum { FAR = 4096 }; /* no grid is so large */
    int64_t low = x <= FAR ? x - 1 : FAR, high = x + 1;
    while (low > 1 && !fits(load, low))
        low--;
    while (high < 2 * x && high < FAR && !fits(load, high))
        high++;
    bool above = high < 2 * x && high < FAR, below = low >= 1 && fits(load, low);
    size_t at = (size_t)snprintf(out, n, "%lld", (long long)(below || !above ? low : high));
    if (below && above) snprintf(out + at, n - at, " or %lld", (long long)high);
}

static void check_tensor(Load *load)
{
    int64_t tp = load->config->parallel.tensor;
    char what[64], near[64];
    if (load_wrong(load, tensor_key) || uncut(load, tp, what, sizeof what) == NULL) return;
    bool kv = strncmp(what, "num_key", 7) == 0;
    nearest(load, tensor_fits, tp, near, sizeof near);
    WRONG(load, tensor_key, "%lld %s %s; write %s", (long long)tp,
          kv ? "neither divides nor is a multiple of" : "does not divide", what, near);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Between their matrices tensor-parallel ranks share the rows of a micro-batch. */
static void check_sequence_parallel(Load *load)
{
    static const char micro_key[] = "train_micro_batch_size_per_gpu",
                      length_key[] = "data.seq_length";
    const Config *c = load->config;
    int64_t tp = c->parallel.tensor, micro = c->train_micro_batch_size_per_gpu,
            length = c->data.seq_length;
    if (!c->parallel.sequence_parallel || UNUSABLE(load, sequence_key, tensor_key)) return;
    if (tp == 1) {
        load_notice(load, load_place(load, sequence_key), sequence_key,
                    "true: tensor is 1, so there is nothing to cut");
        return;
    }
    if (UNUSABLE(load, micro_key, length_key) || micro <= 0 || micro * length % tp == 0) return;
    int64_t step = tp / common_divisor(tp, length % tp), low = micro / step * step;
    char near[64];
    snprintf(near, sizeof near, "%lld", (long long)(low + step));
    if (low > 0)
        snprintf(near, sizeof near, "%lld or %lld", (long long)low, (long long)(low + step));
    WRONG(
        load, sequence_key,
        "the rows of a micro-batch, %lld x seq_length %lld, are no multiple of tensor %lld; write "
        "%s %s, or false here",
        (long long)micro, (long long)length, (long long)tp, micro_key, near);
}

/* The type in which those rows travel is the weights'. */
static void check_rows_type(Load *load)
{
    static const char key[] = "seq_parallel_communication_data_type";
    static const GradDtype types[] = {[F32] = GRAD_DTYPE_F32,
                                      [F16] = GRAD_DTYPE_F16,
                                      [BF16] = GRAD_DTYPE_BF16,
                                      [F64] = GRAD_DTYPE_AUTO};
    const Config *c = load->config;
    const Option *option = &option_table[option_find(key)];
    GradDtype given = c->seq_parallel_communication_data_type, own = types[config_dtype(c)];
    bool wrong = UNUSABLE(load, key, sequence_key, tensor_key, "fp16.enabled", "bf16.enabled");
    if (wrong || given == GRAD_DTYPE_AUTO || given == own) return;
    if (c->parallel.sequence_parallel && c->parallel.tensor > 1)
        WRONG(load, key,
              "\"%s\" is another type than that of the weights, in which rows travel; write %s%s%s",
              option_choice_name(option, (int)given), own == GRAD_DTYPE_AUTO ? "" : "\"",
              own == GRAD_DTYPE_AUTO ? "null" : option_choice_name(option, (int)own),
              own == GRAD_DTYPE_AUTO ? "" : "\"");
    else if (given != GRAD_DTYPE_F32)
        load_notice(load, load_place(load, key), key,
                    "accepted, without effect: nothing is cut by parallel.sequence_parallel");
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Blocks of each run of layers: every run has one at least, and may have the embedding or the head
 * beside it. */
static void check_stages(Load *load)
{
    const Config *c = load->config;
    int64_t stages = c->parallel.pipeline, chunks = c->parallel.pipeline_chunks,
            blocks = c->model.num_layers;
    char near[64], other[96] = "";
    if (UNUSABLE(load, stages_key, chunks_key)) return;
    if (chunks > 1 && stages == 1) {
        WRONG(load, chunks_key,
              "%lld runs of layers a stage are for several stages, and pipeline is 1; write 1, or "
              "pipeline 2 or more",
              (long long)chunks);
        load->origin[option_find(chunks_key)].wrong = true;
        return;
    }
    if (load_wrong(load, layers_key) || stages * chunks <= blocks) return;
    if (chunks > 1 && blocks / stages > 0)
        snprintf(other, sizeof other, ", or pipeline_chunks %lld", (long long)(blocks / stages));
    nearest(load, stages_fit, stages, near, sizeof near);
    WRONG(load, stages_key,
          "%lld stages x %lld run%s of layers need a block each, and num_layers is %lld; write "
          "pipeline %s%s",
          (long long)stages, (long long)chunks, chunks == 1 ? "" : "s", (long long)blocks, near,
          other);
}

static void check_schedule(Load *load)
{
    const Config *c = load->config;
    bool several = c->parallel.pipeline_chunks > 1,
         interleaved = c->parallel.schedule == SCHEDULE_INTERLEAVED;
    if (UNUSABLE(load, schedule_key, chunks_key) || several == interleaved) return;
    if (interleaved)
        WRONG(
            load, schedule_key,
            "\"interleaved\" is of several runs of layers a stage, and pipeline_chunks is 1; write "
            "\"1f1b\", or pipeline_chunks 2");
    else
        WRONG(
            load, schedule_key,
            "\"%s\" has one run of layers a stage, and pipeline_chunks is %lld; write "
            "\"interleaved\", or pipeline_chunks 1",
            option_choice_name(&option_table[option_find(schedule_key)], (int)c->parallel.schedule),
            (long long)c->parallel.pipeline_chunks);
}

/* The same list with another last number, so that it adds up to `missing` more; "" where that
 * would leave the last run without a block. */
static void mended_split(const IntegerList *split, int64_t missing, char *out, size_t n)
{
    int64_t last = split->item[split->count - 1] + missing;
    size_t at = 0;
    out[0] = '\0';
    if (last < 1 || split->count > 16) return;
    for (int i = 0; i < split->count && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? ", " : "; write [",
                               (long long)(i == split->count - 1 ? last : split->item[i]));
    if (at < n) snprintf(out + at, n - at, "]");
}

static void check_split(Load *load)
{
    const Config *c = load->config;
    const IntegerList *split = &c->parallel.pipeline_split;
    int64_t stages = c->parallel.pipeline, chunks = c->parallel.pipeline_chunks, blocks = 0;
    char mended[192];
    if (split->count == 0 || load_wrong(load, split_key)) return;
    for (int i = 0; i < split->count; i++)
        blocks += split->item[i];
    if (load_given(load, partition_key))
        WRONG(load, partition_key, "pipeline_split cuts the layers by hand; keep one of the two");
    if (UNUSABLE(load, stages_key, chunks_key)) return;
    if (split->count != stages * chunks)
        WRONG(load, split_key,
              "%d number%s for pipeline %lld x pipeline_chunks %lld; write %lld, which add up to "
              "num_layers, or leave the key out",
              split->count, split->count == 1 ? "" : "s", (long long)stages, (long long)chunks,
              (long long)(stages * chunks));
    else if (!load_wrong(load, layers_key) && blocks != c->model.num_layers) {
        mended_split(split, c->model.num_layers - blocks, mended, sizeof mended);
        WRONG(load, split_key, "its numbers add up to %lld, and num_layers is %lld%s",
              (long long)blocks, (long long)c->model.num_layers,
              *mended ? mended : "; write numbers of blocks that add up to it");
    }
}

/* ---- all together ---------------------------------------------------------------------------- */

void derive_parallel(Load *load)
{
    Config *c = load->config;
    if (!load_given(load, partition_key)) {
        c->pipeline.partition = PARTITION_BEST;
        load_derived(load, partition_key);
    }
    if (load_given(load, schedule_key)) return;
    c->parallel.schedule = c->parallel.pipeline_chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    load_derived(load, schedule_key);
}

/* Leaves a key of the text to what follows, unless a --set asks for its value. */
static void leave_open(Load *load, const char *key)
{
    int row = option_find(key);
    if (load_place(load, key).set > 0) return;
    load_forget(load, key);
    load_default(load, row);
    load->origin[row] = (Origin){0};
}

void fit_opened(Load *load)
{
    Config *c = load->config;
    const int64_t *tp = &c->parallel.tensor, *stages = &c->parallel.pipeline;
    int64_t ranks = load->context.alone ? 1 : load->context.opened;
    if (ranks == 0) return;
    load->context.world = ranks;
    leave_open(load, "parallel.data");
    if (UNUSABLE(load, tensor_key, stages_key)) return;
    bool asked = load_place(load, stages_key).set > 0; /* the stages come first then */
    if (ranks % (*tp * (asked ? *stages : 1)) != 0) leave_open(load, tensor_key);
    if (ranks % (*tp * *stages) != 0) leave_open(load, stages_key);
    if (*stages > 1) return;
    leave_open(load, chunks_key);
    leave_open(load, split_key);
    leave_open(load, schedule_key);
}

bool check_cut(Load *load)
{
    const Config *c = load->config;
    int64_t tp = c->parallel.tensor, stages = c->parallel.pipeline, cut = tp * stages,
            world = load->context.world;
    char product[64], near[64], ranks[64], other[96] = "";
    if (cuts_world(load, cut)) return true;
    /* Of other ranks it would be refused, too. */
    if (!tensor_cuts(load, tp) || !stages_cut(load, stages)) return false;
    const char *key = tp > 1 ? tensor_key : stages_key;
    snprintf(product, sizeof product, "%lld", (long long)cut);
    if (tp > 1 && stages > 1)
        snprintf(product, sizeof product, "%lld x pipeline %lld = %lld", (long long)tp,
                 (long long)stages, (long long)cut);
    snprintf(ranks, sizeof ranks, "%lld", (long long)((world / cut + 1) * cut));
    if (world > cut)
        snprintf(ranks, sizeof ranks, "%lld or %lld", (long long)(world / cut * cut),
                 (long long)((world / cut + 1) * cut));
    /* The other size alone may be what does not go into the ranks. */
    if (world % (tp > 1 ? stages : tp) == 0) {
        nearest(load, tp > 1 ? tensor_fits : stages_fit, tp > 1 ? tp : stages, near, sizeof near);
        snprintf(other, sizeof other, ", or %s here", near);
    }
    if (load->context.alone)
        WRONG(load, key, "%s, but there is 1 rank here; write 1", product);
    else
        WRONG(load, key, "%s, but there %s %lld rank%s; write --ranks %s%s", product,
              world == 1 ? "is" : "are", (long long)world, world == 1 ? "" : "s", ranks, other);
    load->origin[option_find(key)].wrong = true; /* one mistake, one error */
    return false;
}

void check_parallel(Load *load)
{
    check_tensor(load);
    check_sequence_parallel(load);
    check_rows_type(load);
    check_stages(load);
    check_schedule(load);
    check_split(load);
}
