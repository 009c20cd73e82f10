/* settle.c -- adds to a validated config what is known only when a command starts; see
 * config_settle in config.h. */
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdlib.h>

static Origin *vocab_origin(const Config *config)
{
    return (Origin *)config->provenance + option_find("model.vocab_size");
}

bool config_trains_tokenizer(const Config *config)
{
    return config->data.train.count == 0 && config->data.tokenizer == NULL;
}

/* A vocabulary size that was given must equal that of given data. A larger model would have
 * embedding rows for ids that never occur; a smaller one would be given ids that it has no row for.
 * Of a tokenizer that is trained here it is the largest size, so that a preset fits every text. */
static bool fits_vocab(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    const Origin *origin = vocab_origin(config);
    long long given = config->model.vocab_size, there = facts->vocab_size;
    if (there == 0 || !origin_given(origin) || given == there) return true;
    if (there < given && config_trains_tokenizer(config)) return true;
    return error_set(
        err, n,
        "%s: model.vocab_size: %lld, but %s has %lld tokens; write %lld, or leave the key out",
        origin->text, given, facts->vocab_of, there, there);
}

const Config *config_settle(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    if (!fits_vocab(config, facts, err, n)) return NULL;
    /* The new struct takes over all strings and lists, so no const object is written to. */
    Config *settled = must_alloc(sizeof *settled);
    *settled = *config;
    free((void *)(uintptr_t)config);
    settled->settled = true;
    if (facts->tokenizer != NULL) {
        free(settled->data.tokenizer);
        settled->data.tokenizer = must_strdup(facts->tokenizer);
    }
    /* Both keys get the size that the text gave, so the stored config describes the model. */
    if (facts->vocab_size != 0 && settled->data.tokenizer_vocab_at_most)
        settled->data.tokenizer_vocab_size = facts->vocab_size;
    /* A given size that equals the data's keeps its origin. */
    Origin *origin = vocab_origin(settled);
    if (facts->vocab_size != 0 && settled->model.vocab_size != facts->vocab_size) {
        settled->model.vocab_size = facts->vocab_size;
        free(origin->text);
        origin->kind = ORIGIN_DERIVED;
        origin->text = must_strdup("derived");
    }
    return settled;
}

int64_t config_likely_vocab(const Config *config)
{
    int64_t model = config->model.vocab_size, trained = config->data.tokenizer_vocab_size;
    if (config_trains_tokenizer(config)) return model > 0 && model < trained ? model : trained;
    return model > 0 ? model : 50257; /* size of GPT-2's vocabulary */
}

Config config_of_one_micro_batch(const Config *config, bool samples)
{
    Config one = *config;
    /* As in every config, train_batch_size must remain the product of the other batch keys. */
    one.train_batch_size /= one.gradient_accumulation_steps;
    one.gradient_accumulation_steps = 1;
    one.wall_clock_breakdown = true;
    if (!samples) one.eval.sample_tokens = 0;
    return one;
}

Config config_of_one_share(const Config *config)
{
    Config one = *config;
    int64_t rows = config->train_micro_batch_size_per_gpu, share = rows / config->world;
    if (share < 1) share = 1;
    /* Tensor-parallel ranks that cut a micro-batch must get equal parts of it. */
    while (config->parallel.sequence_parallel && share < rows &&
           share * config->data.seq_length % config->parallel.tensor != 0)
        share++;
    one.train_micro_batch_size_per_gpu = share;
    one.train_batch_size = config->train_batch_size / rows * share;
    return one;
}
