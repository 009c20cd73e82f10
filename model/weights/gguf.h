/* gguf.h -- writes GGUF files (version 3), which llama.cpp and programs built on it read: metadata,
 * tokenizer and weights of a model in one file. This program does not read them.
 *
 * All numbers are little-endian. The file is "GGUF", a version, the numbers of tensors and of keys;
 * the keys with their values; for each tensor its name, shape (innermost dimension first), type and
 * offset; then the data. The data and each tensor in them are aligned to GGUF_ALIGNMENT. */
#ifndef MODEL_WEIGHTS_GGUF_H
#define MODEL_WEIGHTS_GGUF_H

#include "data/tokenizer/tokenizer.h"
#include "model/weights/architecture.h"
#include "model/weights/sink.h"

enum { GGUF_ALIGNMENT = 32 };

typedef struct {
    const char *name; /* the model's name, for people */
    const Architecture *model;
    const Tokenizer *tokenizer; /* NULL: the file states that it has no tokenizer */
    int32_t bos, eos;           /* ids of the tokens that begin and end a text; -1: none */
    /* Type of the matrices: F32, F16 or BF16. Vectors and the position table are f32, because
     * programs that read the file support no other type for them. */
    DType dtype;
} GgufModel;

/* Returns whether a GGUF file can represent the model so that other programs compute the same: its
 * architecture is gpt2, llama, qwen2 or qwen3, and its other properties fit. If not, sets `err` to
 * the key that does not fit and the value that it would need. */
bool gguf_fits(const GgufModel *model, char *err, size_t n);
/* Writes the source's weights to the file `path`, atomically. The model must fit. *bytes is set to
 * the size of the file, and *overflows to the number of finite weights that became infinite.
 * `progress` may be NULL. Returns false and sets `err` on failure. */
bool gguf_write(const FsOps *fs, const char *path, const GgufModel *model, WeightSource *source,
                Progress *progress, int64_t *bytes, int64_t *overflows, char *err, size_t n);

#endif
