/* hf_configs.c -- implements hf_configs.h. */
#include "tests/support/model/hf_configs.h"

#include "model/core/check.h"

#include <cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char hf_config_gpt2[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_positions\": 1024, \"n_embd\": 768, "
    "\"n_layer\": 12, \"n_head\": 12, \"n_inner\": null, \"activation_function\": \"gelu_new\", "
    "\"layer_norm_epsilon\": 1e-5}";
const char hf_config_llama[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 2048, "
    "\"intermediate_size\": 5632, \"num_hidden_layers\": 22, \"num_attention_heads\": 32, "
    "\"num_key_value_heads\": 4, \"hidden_act\": \"silu\", \"max_position_embeddings\": 2048, "
    "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false, \"rope_theta\": 10000.0, "
    "\"rope_scaling\": null}";

/* Returns the text of the changed config. The caller frees it. */
static char *changed(const char *base, const char *changes)
{
    cJSON *json = cJSON_Parse(base);
    char *copy = must_strdup(changes);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) {
        char *value = strchr(line, '=');
        *value++ = '\0';
        cJSON_DeleteItemFromObjectCaseSensitive(json, line);
        if (strcmp(value, "-") == 0) continue;
        cJSON *item = cJSON_Parse(value);
        if (item == NULL) fail_msg("%s is not JSON", value);
        cJSON_AddItemToObject(json, line, item);
    }
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    free(copy);
    return text;
}

bool hf_config_changed(const char *base, const char *changes, Architecture *out, char *err,
                       size_t n)
{
    char *text = changed(base, changes);
    bool good = hf_config_parse(out, "config.json", text, strlen(text), err, n);
    free(text);
    return good;
}

Architecture hf_config_parsed(const char *base, const char *changes)
{
    char err[2048];
    Architecture a;
    if (!hf_config_changed(base, changes, &a, err, sizeof err)) fail_msg("%s: %s", changes, err);
    return a;
}
