/* settle.c -- what the start of a command adds to a config that was read and validated: see
 * config_settle in config.h. */
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdlib.h>

static Origin *vocab_origin(const Config *config)
{
    return (Origin *)config->provenance + option_find("model.vocab_size");
}

/* A size of the vocabulary that was given must be that of the data. A larger model would have rows
 * for ids that never come; a smaller one would be asked for ids that it does not have. */
static bool fits_vocab(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    const Origin *origin = vocab_origin(config);
    long long given = config->model.vocab_size, there = facts->vocab_size;
    if (there == 0 || !origin_given(origin) || given == there) return true;
    return error_set(
        err, n,
        "%s: model.vocab_size: %lld, but %s has %lld tokens; write %lld, or leave the key out",
        origin->text, given, facts->vocab_of, there, there);
}

const Config *config_settle(const Config *config, const ConfigFacts *facts, char *err, size_t n)
{
    if (!fits_vocab(config, facts, err, n)) return NULL;
    /* A new struct takes over all strings and lists, so that nothing const is written. */
    Config *settled = must_alloc(sizeof *settled);
    *settled = *config;
    free((void *)(uintptr_t)config);
    settled->logging.json |= facts->json; /* the command line adds it and cannot take it back */
    if (facts->tokenizer != NULL) {
        free(settled->data.tokenizer);
        settled->data.tokenizer = must_strdup(facts->tokenizer);
    }
    /* A size that was given is that of the data, as was checked above, and keeps its origin. */
    Origin *origin = vocab_origin(settled);
    if (facts->vocab_size != 0 && !origin_given(origin)) {
        settled->model.vocab_size = facts->vocab_size;
        free(origin->text);
        origin->kind = ORIGIN_DERIVED;
        origin->text = must_strdup("derived");
    }
    return settled;
}

int64_t config_likely_vocab(const Config *config)
{
    bool trained = config->data.train.count == 0 && config->data.tokenizer == NULL;
    if (config->model.vocab_size > 0) return config->model.vocab_size;
    return trained ? config->data.tokenizer_vocab_size : 50257; /* GPT-2's */
}

Config config_of_one_micro_batch(const Config *config, bool samples)
{
    Config one = *config;
    /* The batch keys stay one another's product, as in every config. */
    one.train_batch_size /= one.gradient_accumulation_steps;
    one.gradient_accumulation_steps = 1;
    one.wall_clock_breakdown = true;
    if (!samples) one.eval.sample_tokens = 0;
    return one;
}
