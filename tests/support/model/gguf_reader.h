/* gguf_reader.h -- reads a GGUF file for tests, knowing nothing of the code that writes it. What is
 * malformed fails the test: bounds, alignment, order, overlaps and holes, bytes of padding that are
 * not zero, repeated names. */
#ifndef TESTS_SUPPORT_MODEL_GGUF_READER_H
#define TESTS_SUPPORT_MODEL_GGUF_READER_H

#include "model/core/dtype.h"

enum { GGUF_MOST_KEYS = 64, GGUF_MOST_TENSORS = 256 };

typedef struct {
    char name[64];
    uint32_t type, of;          /* type of the value, and of the elements if it is an array */
    uint64_t count;             /* of elements; 1 if it is no array */
    const unsigned char *value; /* the first element */
} GgufKey;

typedef struct {
    char name[65];
    uint32_t ndim;
    uint64_t dim[4]; /* as in the file: the innermost one first */
    DType dtype;
    const void *data;
} GgufInfo;

typedef struct {
    char *bytes;
    size_t size;
    GgufKey key[GGUF_MOST_KEYS];
    GgufInfo tensor[GGUF_MOST_TENSORS];
    int n_keys, n_tensors;
} GgufFile;

void gguf_read(GgufFile *f, const char *path);
void gguf_close(GgufFile *f);
/* Return the value of a key; they fail the test if there is none or if it has another type. The
 * caller frees a string. gguf_has returns whether there is the key. */
bool gguf_has(const GgufFile *f, const char *key);
uint32_t gguf_u32(const GgufFile *f, const char *key);
float gguf_f32(const GgufFile *f, const char *key);
bool gguf_bool(const GgufFile *f, const char *key);
char *gguf_string(const GgufFile *f, const char *key);
/* Return the number of elements of an array, element `i` of an array of strings, which the caller
 * frees, and of one of 32-bit numbers. */
int64_t gguf_count(const GgufFile *f, const char *key);
char *gguf_string_at(const GgufFile *f, const char *key, int64_t i);
float gguf_f32_at(const GgufFile *f, const char *key, int64_t i);
int32_t gguf_i32_at(const GgufFile *f, const char *key, int64_t i);
/* Returns a tensor; fails the test if there is none of this name. */
const GgufInfo *gguf_tensor(const GgufFile *f, const char *name);

#endif
