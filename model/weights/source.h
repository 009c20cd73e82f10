/* source.h -- WeightSource: an interface for reading weights from any origin: another program's
 * files, or a checkpoint. Each source presents its tensors under this program's parameter names and
 * in its layout, so code that reads weights need not know any file format. */
#ifndef MODEL_WEIGHTS_SOURCE_H
#define MODEL_WEIGHTS_SOURCE_H

#include "model/core/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A tensor of a source. Its shape is logical, as in checkpoints: without padding rows. */
typedef struct {
    char name[56];  /* this program's name, such as "block.7.attn.q.weight" */
    DType dtype;    /* as stored in the source */
    int ndim;       /* 1 or 2 */
    int64_t dim[2]; /* a matrix: (out, in); a vector: dim[1] is 1 */
} SourceTensor;

typedef struct WeightSource WeightSource;
struct WeightSource {
    SourceTensor *tensor;
    int n_tensors;
    bool damaged; /* a read has failed because of the source's contents, not because of a device */
    /* Reads `rows` rows (of a vector: elements), from row `first` on, of tensor `index` to `out`,
     * which has room for them, in the tensor's own dtype, row-major. If they cannot be read,
     * returns false and sets err, with the file and the tensor. If they can be read but are not
     * what was saved, also sets `damaged`. */
    bool (*read)(WeightSource *source, int index, int64_t first, int64_t rows, void *out, char *err,
                 size_t n);
    /* Frees the source and this struct. */
    void (*close)(WeightSource *source);
};

/* Returns the index of the tensor called `name`, or -1. */
int weight_source_find(const WeightSource *source, const char *name);
/* Returns the bytes of one row of a tensor (a vector: of one element). */
int64_t source_row_bytes(const SourceTensor *tensor);

/* Converts `count` elements between f64, f32, bf16 and f16: out = in, each rounded once, to nearest
 * even. Elements of equal types are copied bit for bit. A NaN stays a NaN. A finite value beyond
 * the range of `to` becomes infinite; returns how many did. `out` and `in` do not overlap. */
int64_t weights_convert(void *out, DType to, const void *in, DType from, int64_t count);
/* Returns how many of `count` elements, f64, f32, bf16 or f16, are NaN or infinite. */
int64_t weights_not_finite(const void *x, DType dtype, int64_t count);

/* Grows *buffer, for rows of a source, to at least `bytes` bytes; *has is its size. Its contents
 * are lost if it grows. */
void weights_reserve(void **buffer, size_t *has, size_t bytes);

#endif
