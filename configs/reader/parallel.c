/* parallel.c -- derives missing values of the sections parallel and pipeline, which control how
 * ranks share a model, and reports values that do not fit, with the nearest ones that do. cut.c
 * does this for the sizes of the grid. */
#include "configs/reader/load.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tensor_key[] = "parallel.tensor", stages_key[] = "parallel.pipeline",
                  chunks_key[] = "parallel.pipeline_chunks", schedule_key[] = "parallel.schedule",
                  split_key[] = "parallel.pipeline_split",
                  sequence_key[] = "parallel.sequence_parallel", shard_key[] = "parallel.shard",
                  partition_key[] = "pipeline.partition", layers_key[] = "model.num_layers";

/* Reports an error at the position of `key`. */
#define WRONG(load, key, ...) load_error(load, load_place(load, key), key, __VA_ARGS__)
#define UNUSABLE(load, ...)   load_any_wrong(load, (const char *const[]){__VA_ARGS__, NULL})

/* ---- tensor-parallel ranks ------------------------------------------------------------------- */

/* Between matrix products, tensor-parallel ranks divide the rows of a micro-batch among themselves.
 * Checks that the number of rows divides evenly. */
static void check_sequence_parallel(Load *load)
{
    static const char micro_key[] = "train_micro_batch_size_per_gpu";
    const Config *c = load->config;
    int64_t tp = c->parallel.tensor;
    if (!c->parallel.sequence_parallel || UNUSABLE(load, sequence_key, tensor_key)) return;
    if (tp == 1) {
        load_notice(load, load_place(load, sequence_key), sequence_key,
                    "true: tensor is 1, so there is nothing to cut");
        return;
    }
    if (!load_breaks(load, RULE_SEQUENCE)) return;
    char near[160];
    bool other = near_values(load, RULE_SEQUENCE, CANDIDATE_MICRO, KEY_BIT(CANDIDATE_ACCUMULATION),
                             near, sizeof near);
    WRONG(
        load, sequence_key,
        "the rows of a micro-batch, %lld x seq_length %lld, are no multiple of tensor %lld; write "
        "%s%s%s%sfalse here",
        (long long)c->train_micro_batch_size_per_gpu, (long long)c->data.seq_length, (long long)tp,
        other ? micro_key : "", other ? " " : "", other ? near : "", other ? ", or " : "");
}

/* Checks the dtype in which sequence-parallel rows are sent: it is always the dtype of the
 * weights. */
static void check_rows_type(Load *load)
{
    static const char key[] = "seq_parallel_communication_data_type";
    static const GradDtype types[] = {[F32] = GRAD_DTYPE_F32,
                                      [F16] = GRAD_DTYPE_F16,
                                      [BF16] = GRAD_DTYPE_BF16,
                                      [F64] = GRAD_DTYPE_AUTO};
    const Config *c = load->config;
    const Option *option = &option_table[option_find(key)];
    /* f64 is not among the dtypes that this key can name, so with f64 weights only null is
     * right. */
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

/* ---- shard groups ---------------------------------------------------------------------------- */

/* DeepSpeed's names for parallel.shard. DeepSpeed reads them only at stage 3. */
static const char hpz_key[] = "zero_optimization.zero_hpz_partition_size",
                  mics_key[] = "zero_optimization.mics_shard_size";
static const char *const shard_alias[] = {hpz_key, mics_key};

static const Seen *seen_alias(const Load *load, int i)
{
    return &load->seen[option_count + known_find(shard_alias[i])];
}

static bool seen_at_all(const Seen *seen)
{
    return seen->place.set > 0 || seen->place.line > 0;
}

/* Returns the DeepSpeed name under which parallel.shard was given; NULL if it was not given under
 * one. */
static const char *shard_given_as(const Load *load)
{
    ConfigPlace own = load_place(load, shard_key);
    if (!load_given(load, shard_key)) return NULL;
    for (int i = 0; i < 2; i++) {
        const Seen *seen = seen_alias(load, i);
        if (seen_at_all(seen) && memcmp(&seen->place, &own, sizeof own) == 0) return shard_alias[i];
    }
    return NULL;
}

void read_shard_name(Load *load, const char *name)
{
    int row = option_find(shard_key);
    if (!load_given(load, shard_key)) return;
    for (int i = 0; i < 2; i++) {
        if (strcmp(name, shard_alias[i]) != 0) continue;
        load->origin[row].alias = shard_alias[i];
        load->seen[option_count + known_find(shard_alias[i])] =
            (Seen){.place = load_place(load, shard_key), .asks = true};
        load->seen[row] = (Seen){0};
    }
}

/* Reports each of DeepSpeed's names that is given without effect. Errors that these names
 * contradict each other are dropped, but not errors that one of them contradicts parallel.shard. */
static void notice_aliases(Load *load)
{
    bool own = seen_at_all(&load->seen[option_find(shard_key)]);
    for (int i = 0; i < 2; i++) {
        const Seen *seen = seen_alias(load, i);
        if (!seen->asks) continue;
        if (!own) load_forget(load, shard_alias[i]);
        load_idle(load, seen->place, shard_alias[i],
                  "accepted, without effect here (it is for stage 3; parallel.shard is for the "
                  "stages 1 to 3)");
    }
}

/* Drops a value given under one of DeepSpeed's names: parallel.shard then counts as not given. */
static void set_shard_aside(Load *load)
{
    int row = option_find(shard_key);
    load_default(load, row);
    load->origin[row] = (Origin){0};
}

void derive_shard(Load *load)
{
    const Config *c = load->config;
    const char *name = shard_given_as(load);
    long long shard = c->parallel.shard, data = c->parallel.data;
    const Candidate now = candidate_of_load(load);
    ConfigPlace place = load_place(load, shard_key);
    if (name == NULL || UNUSABLE(load, shard_key, "parallel.data", "zero_optimization.stage"))
        return;
    if (c->zero_optimization.stage != 3) {
        set_shard_aside(load);
        notice_aliases(load);
    } else if (candidate_ranks(&now) > 0 && shard >= data) {
        set_shard_aside(load);
        (shard == data ? load_routine : load_notice)(
            load, place, name, "%lld: all %lld data-parallel rank%s divide weights and gradients",
            shard, data, data == 1 ? "" : "s");
    } else if (!candidate_legal(&now, RULE_BIT(RULE_SHARD))) {
        set_shard_aside(load);
        load_notice(load, place, name,
                    "%lld does not divide the %lld data-parallel ranks, so all of them divide "
                    "weights and gradients",
                    shard, data);
    } else if (name == hpz_key)
        load_notice(load, place, name,
                    "%lld: %sgradients, too, stay in the group until the step's end, so a rank "
                    "holds a share of them by the size of the group, and not of all ranks",
                    shard, candidate_ranks(&now) > 0 ? "" : "of more data-parallel ranks, ");
}

static void check_shard(Load *load)
{
    const Config *c = load->config;
    long long shard = c->parallel.shard, data = c->parallel.data;
    bool all = shard == 0 || (c->world > 0 && shard == data);
    char near[160];
    if (UNUSABLE(load, shard_key)) return;
    if (load_breaks(load, RULE_SHARD) &&
        near_values(load, RULE_SHARD, CANDIDATE_SHARD, 0, near, sizeof near))
        WRONG(load, shard_key,
              "%lld does not divide the %lld data-parallel rank%s; write %s, or 0 for all of them",
              shard, data, data == 1 ? "" : "s", near);
    else if (!all && c->zero_optimization.stage == 0 && !UNUSABLE(load, "zero_optimization.stage"))
        load_notice(load, load_place(load, shard_key), shard_key,
                    "accepted, without effect: ZeRO stage 0 divides nothing");
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void check_schedule(Load *load)
{
    const Config *c = load->config;
    char chunks[32], other[64] = "";
    if (!load_breaks(load, RULE_SCHEDULE)) return;
    /* The possible numbers of chunks depend on the number of stages. */
    if (!UNUSABLE(load, stages_key) &&
        near_values(load, RULE_SCHEDULE, CANDIDATE_CHUNKS, 0, chunks, sizeof chunks))
        snprintf(other, sizeof other, ", or pipeline_chunks %s", chunks);
    if (c->parallel.schedule == SCHEDULE_INTERLEAVED)
        WRONG(load, schedule_key,
              "\"interleaved\" is of several runs of layers a stage, and pipeline_chunks is 1; "
              "write \"1f1b\"%s",
              other);
    else
        WRONG(
            load, schedule_key,
            "\"%s\" has one run of layers a stage, and pipeline_chunks is %lld; write "
            "\"interleaved\"%s",
            option_choice_name(&option_table[option_find(schedule_key)], (int)c->parallel.schedule),
            (long long)c->parallel.pipeline_chunks, other);
}

/* Writes `split` with a different last number, so that it adds up to `blocks`. If that would leave
 * the last range without a block, writes an even split instead. */
static void mended_split(const IntegerList *split, int64_t blocks, char *out, size_t n)
{
    int64_t last = blocks;
    size_t at = 0;
    int count = split->count;
    out[0] = '\0';
    for (int i = 0; i < count - 1; i++)
        last -= split->item[i];
    /* Of more than 16 numbers, a list would not be readable in a message. */
    if (blocks < count || count > 16) return;
    for (int i = 0; i < count && at < n; i++) {
        int64_t even = blocks / count + (i < blocks % count),
                own = i == count - 1 ? last : split->item[i];
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? ", " : "; write [",
                               (long long)(last < 1 ? even : own));
    }
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
    /* A partition rule and an explicit split contradict each other, whatever their values. */
    if (load_given(load, partition_key))
        WRONG(load, partition_key, "pipeline_split cuts the layers by hand; keep one of the two");
    if (UNUSABLE(load, stages_key, chunks_key)) return;
    bool count = load_breaks(load, RULE_SPLIT);
    /* With one stage, the split may be right, and the user may have forgotten the number of
     * stages. */
    if (count && stages == 1)
        WRONG(load, split_key,
              "%d number%s for the layers of one stage, which are not cut; leave the key out, or "
              "give the stages as parallel.pipeline",
              split->count, split->count == 1 ? "" : "s");
    else if (count)
        WRONG(
            load, split_key,
            "%d number%s for pipeline %lld x pipeline_chunks %lld; write %lld numbers that add up "
            "to num_layers, or leave the key out",
            split->count, split->count == 1 ? "" : "s", (long long)stages, (long long)chunks,
            (long long)(stages * chunks));
    /* If there are fewer blocks than ranges, check_grid has reported it and no split could help. */
    else if (!load_wrong(load, layers_key) && blocks != c->model.num_layers) {
        mended_split(split, c->model.num_layers, mended, sizeof mended);
        WRONG(load, split_key, "its numbers add up to %lld, and num_layers is %lld%s",
              (long long)blocks, (long long)c->model.num_layers,
              *mended ? mended : "; write numbers of blocks that add up to it");
    }
}

/* ---- both sections --------------------------------------------------------------------------- */

void derive_parallel(Load *load)
{
    Config *c = load->config;
    /* The default partition counts as derived, although it is always the same, so that a stored
     * config with an explicit split does not print it. */
    if (!load_given(load, partition_key)) {
        c->pipeline.partition = PARTITION_BEST;
        load_derived(load, partition_key);
    }
    if (load_given(load, schedule_key)) return;
    c->parallel.schedule = c->parallel.pipeline_chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    load_derived(load, schedule_key);
}

/* Resets a key of the stored config so that it is derived again, unless a --set gave its value. */
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
    /* parallel.data describes the stored run and need not fit the ranks that open it now. */
    leave_open(load, "parallel.data");
    if (UNUSABLE(load, tensor_key, stages_key)) return;
    /* true: --set gives the number of stages, so this number is kept rather than the tensor size */
    bool asked = load_place(load, stages_key).set > 0;
    if (ranks % (*tp * (asked ? *stages : 1)) != 0) leave_open(load, tensor_key);
    if (ranks % (*tp * *stages) != 0) leave_open(load, stages_key);
    if (*stages > 1) return;
    /* These keys need several stages; with one stage they would be refused. */
    leave_open(load, chunks_key);
    leave_open(load, split_key);
    leave_open(load, schedule_key);
}

/* A run that is only read does not depend on the size of its shard groups. If the size does not
 * fit, its weights are sharded over all ranks. */
void fit_opened_shard(Load *load)
{
    const Candidate now = candidate_of_load(load);
    bool opened = load->context.alone || load->context.opened > 0;
    if (opened && !candidate_legal(&now, RULE_BIT(RULE_SHARD))) leave_open(load, shard_key);
}

void fit_opened_rows(Load *load)
{
    if (!load->context.alone && load->context.opened == 0) return;
    const Candidate now = candidate_of_load(load);
    if (!candidate_legal(&now, RULE_BIT(RULE_SEQUENCE))) leave_open(load, sequence_key);
}

void check_parallel(Load *load)
{
    check_sequence_parallel(load);
    check_rows_type(load);
    check_shard(load);
    check_schedule(load);
    check_split(load);
}
