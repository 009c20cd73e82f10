/* gguf_written.h -- writes GGUF files for tests. */
#ifndef TESTS_SUPPORT_MODEL_GGUF_WRITTEN_H
#define TESTS_SUPPORT_MODEL_GGUF_WRITTEN_H

#include "model/weights/gguf.h"

/* Writes the file; fails the test if that fails or if a weight becomes infinite. */
void gguf_must_write(const char *path, const GgufModel *model, WeightSource *source);
/* Returns a tokenizer of 256 bytes, two merges ("th", "the") and the end of text, 258. */
Tokenizer *small_tokenizer(void);

#endif
