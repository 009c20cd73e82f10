/* gguf_parts.h -- the metadata and the list of tensors of a GGUF file. Private to gguf*.c. */
#ifndef MODEL_WEIGHTS_GGUF_PARTS_H
#define MODEL_WEIGHTS_GGUF_PARTS_H

#include "model/weights/gguf.h"

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The types of metadata values, with their numbers in the file. */
typedef enum {
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9
} GgufType;

/* A buffer for a file's header, which grows as it is written; {0} is empty. */
typedef struct {
    unsigned char *data;
    size_t count, capacity;
    uint64_t keys; /* number of keys written */
} GgufBytes;

/* Appends the lowest `size` bytes of a number, little-endian. */
void gguf_put(GgufBytes *b, uint64_t value, size_t size);
/* Appends a string: its length and its bytes. */
void gguf_put_string(GgufBytes *b, const char *text);
/* Each of these appends a key with its value. */
void gguf_key_u32(GgufBytes *b, const char *key, int64_t value);
void gguf_key_f32(GgufBytes *b, const char *key, double value);
void gguf_key_bool(GgufBytes *b, const char *key, bool value);
void gguf_key_string(GgufBytes *b, const char *key, const char *value);
/* Appends a key whose value is an array; the caller then appends its `count` elements. */
void gguf_key_array(GgufBytes *b, const char *key, GgufType type, int64_t count);
void gguf_bytes_free(GgufBytes *b);

/* ---- the metadata ---------------------------------------------------------------------------- */

/* Appends all keys: those of the model, then those of the tokenizer. */
void gguf_keys(GgufBytes *b, const GgufModel *model);

/* ---- the tensors ----------------------------------------------------------------------------- */

enum { GGUF_NAME = 64, GGUF_MOST_PARTS = 3 };

/* A tensor of the file. It holds one of our tensors, or q, k and v one below the other. */
typedef struct {
    char name[GGUF_NAME];
    DType dtype;
    int64_t rows, cols; /* cols 0: a vector */
    int part[GGUF_MOST_PARTS], n_parts;
    /* If not 0: the number of rows per head; the two halves of each head's rows are then
     * interleaved when they are written (sink_tensor). */
    int64_t head;
    float *values; /* not NULL: a vector computed here, which has no parts */
} GgufTensor;

typedef struct {
    GgufTensor *tensor;
    int count;
} GgufTensors;

/* Lists the file's tensors. Returns false and sets `err` if the source lacks one of them, has one
 * in another shape, or has one that the architecture lacks. The caller always calls
 * gguf_tensors_free. */
bool gguf_tensors(GgufTensors *out, const GgufModel *model, const WeightSource *source, char *err,
                  size_t n);
void gguf_tensors_free(GgufTensors *tensors);

#endif
