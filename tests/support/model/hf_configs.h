/* hf_configs.h -- config.json files of Hugging Face's libraries for tests: a GPT-2 and a Llama,
 * whose keys a test changes. */
#ifndef TESTS_SUPPORT_MODEL_HF_CONFIGS_H
#define TESTS_SUPPORT_MODEL_HF_CONFIGS_H

#include "model/weights/hf_config.h"

/* The four numbers of Llama 3.1's scaling of RoPE, as members of an object. */
#define HF_LLAMA3_SCALING                                                                          \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                       \
    "\"original_max_position_embeddings\": 8192"

extern const char hf_config_gpt2[], hf_config_llama[];

/* Reads the config `base` with members replaced, added or, if the value is "-", removed; each
 * change is "key=JSON", and they are separated by line feeds. The first returns what
 * hf_config_parse does; the second fails the test if the config is refused. */
bool hf_config_changed(const char *base, const char *changes, Architecture *out, char *err,
                       size_t n);
Architecture hf_config_parsed(const char *base, const char *changes);

#endif
