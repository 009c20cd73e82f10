/* gguf.h -- writes GGUF files (version 3), which llama.cpp and programs built on it read: metadata,
 * tokenizer and weights of a model in one file. Nothing here reads them.
 *
 * All numbers are little-endian. The file is "GGUF", a version, the numbers of tensors and of keys;
 * the keys with their values; for each tensor its name, shape (innermost dimension first), type and
 * offset; then, aligned to GGUF_ALIGNMENT like each tensor, the data. */
#ifndef MODEL_WEIGHTS_GGUF_H
#define MODEL_WEIGHTS_GGUF_H

#include "data/tokenizer/tokenizer.h"
#include "model/weights/architecture.h"
#include "model/weights/sink.h"

enum { GGUF_ALIGNMENT = 32 };

typedef struct {
    const char *name; /* of the model, for people */
    const Architecture *model;
    const Tokenizer *tokenizer; /* NULL: the file says that it has none */
    int32_t bos, eos;           /* ids of the tokens that begin and end a text; -1: none */
    /* Type of the matrices: F32, F16 or BF16. Vectors and the position table are f32, because the
     * programs that read them compute with no other type. */
    DType dtype;
} GgufModel;

/* Returns whether a GGUF file can hold the model so that programs compute the same with it: its
 * architecture is gpt2, llama, qwen2 or qwen3, and what belongs to it fits. If not, sets `err` to
 * the key that is in the way and to what it would have to be. */
bool gguf_fits(const GgufModel *model, char *err, size_t n);
/* Writes the source's weights to the file `path`, atomically. The model must fit. *bytes is set to
 * the size of the file, and *overflows to the number of finite weights that became infinite.
 * `progress` may be NULL. Returns false and sets `err` on failure. */
bool gguf_write(const FsOps *fs, const char *path, const GgufModel *model, WeightSource *source,
                Progress *progress, int64_t *bytes, int64_t *overflows, char *err, size_t n);

#endif
