/* hf_config.h -- reads and writes config.json, in which Hugging Face's libraries describe a
 * model. */
#ifndef MODEL_WEIGHTS_HF_CONFIG_H
#define MODEL_WEIGHTS_HF_CONFIG_H

#include "model/weights/architecture.h"

/* Reads the text of a config.json: models of the types gpt2, llama, mistral, qwen2 and qwen3, with
 * the keys of transformers up to version 4 and from version 5 on. Every feature that this program
 * would compute differently is an error that names it. `path` is the file's name in messages.
 * Returns false and sets err to all errors, each with its line and column, joined by "; ". */
bool hf_config_parse(Architecture *out, const char *path, const char *text, size_t bytes, char *err,
                     size_t n);

/* Returns the text of a config.json for transformers, with the keys of version 5 and those of
 * version 4. `bos` or `eos` is -1 if the tokenizer has no such token. The caller frees the text. */
char *hf_config_print(const Architecture *a, DType dtype, int32_t bos, int32_t eos);

#endif
