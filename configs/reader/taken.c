/* taken.c -- lists the values used for keys that a config does not give; see advice.h. */
#include "configs/advice.h"
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

/* Keys that are listed if they are not given. Any other key that affects results is listed if it is
 * given as "auto". */
static const struct {
    const char *key, *remark;
} listed[] = {
    {"model.num_layers", ""},
    {"model.hidden_size", ""},
    {"model.num_attention_heads", ""},
    {"data.seq_length", "tokens in a sequence"},
    {"train_steps", ""},
    {"optimizer.type", ""},
    {"optimizer.weight_decay_on", "biases and norms do not decay; in DeepSpeed they do"},
    {"optimizer.params.lr", "PyTorch's and DeepSpeed's default"},
    {"optimizer.params.weight_decay", "DeepSpeed's default"},
    {"scheduler.type", "no schedule: the learning rate stays as it is"},
    {"gradient_clipping", "DeepSpeed's default since mid-2026; before: no clipping"},
    {"bf16.enabled", "fp16.enabled neither: all numbers are fp32"},
};

static const Origin *origin_of(const Config *config, const char *key)
{
    return (const Origin *)config->provenance + option_find(key);
}

static bool is_given(const Config *config, const char *key)
{
    return origin_given(origin_of(config, key));
}

static bool gives_model_size(const Config *config)
{
    return is_given(config, "model.num_layers") || is_given(config, "model.hidden_size") ||
           is_given(config, "model.num_attention_heads");
}

/* Returns whether this key of the list above has no effect, because another key decides instead. */
static bool is_moot(const Config *config, const char *key)
{
    if (strcmp(key, "train_steps") == 0) return config->train_tokens > 0;
    if (strcmp(key, "optimizer.weight_decay_on") == 0)
        return config->optimizer.params.weight_decay == 0;
    if (strcmp(key, "bf16.enabled") == 0) return config_dtype(config) != F32;
    return false;
}

/* Returns the remark about an option that is listed, or NULL if it is not. */
static const char *remark_on(const Config *config, const Option *option)
{
    const Origin *origin = origin_of(config, option->key);
    if (origin_given(origin) || !option_applies(option, config)) return NULL;
    if (origin->automatic && strcmp(option->key, "optimizer.params.lr") == 0)
        return "for \"auto\": Hugging Face's default";
    if (origin->automatic && strcmp(option->key, "train_micro_batch_size_per_gpu") == 0)
        return "the largest power of two up to 8 that divides the batch";
    if (origin->automatic && option->effect >= EFFECT_NUMBERS) return "for \"auto\"";
    if (origin->kind == ORIGIN_DERIVED && strcmp(option->key, "optimizer.params.weight_decay") == 0)
        return "PyTorch's default for its AdamW";
    for (size_t i = 0; i < sizeof listed / sizeof *listed; i++)
        if (strcmp(listed[i].key, option->key) == 0)
            return is_moot(config, option->key) ? NULL : listed[i].remark;
    return NULL;
}

/* Returns the value without the quotes of JSON; the caller frees it. */
static char *plain_value(const Option *option, const Config *config)
{
    char *text = option_text(option, config);
    size_t n = strlen(text);
    if (n < 2 || text[0] != '"') return text;
    memmove(text, text + 1, n - 2);
    text[n - 2] = '\0';
    return text;
}

int config_taken(const Config *config, ConfigTaken **out)
{
    int n = 0;
    bool size = gives_model_size(config);
    *out = must_calloc((size_t)option_count + 1, sizeof **out);
    if (!size)
        (*out)[n++] =
            (ConfigTaken){.key = "model",
                          .value = text_format("%lld layers, %lld wide, %lld heads",
                                               (long long)config->model.num_layers,
                                               (long long)config->model.hidden_size,
                                               (long long)config->model.num_attention_heads),
                          .remark = "the shape of GPT-2 124M"};
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        const char *remark = remark_on(config, option);
        if (remark == NULL || (!size && strncmp(option->key, "model.", 6) == 0)) continue;
        (*out)[n++] = (ConfigTaken){
            .key = option->key, .value = plain_value(option, config), .remark = remark};
    }
    return n;
}

void config_taken_free(ConfigTaken *taken, int n)
{
    for (int i = 0; i < n; i++)
        free(taken[i].value);
    free(taken);
}

static void add_open(const Config *config, const char *key, StringList *more)
{
    if (is_given(config, key)) return;
    char *value = option_text(&option_table[option_find(key)], config);
    char *set = text_format("%s=%s", key, value);
    string_list_add(more, set);
    free(set);
    free(value);
}

void config_add_open(const Config *config, StringList *more)
{
    if (!gives_model_size(config)) {
        add_open(config, "model.num_layers", more);
        add_open(config, "model.hidden_size", more);
        add_open(config, "model.num_attention_heads", more);
    }
    if (config->train_tokens <= 0) add_open(config, "train_steps", more);
}
