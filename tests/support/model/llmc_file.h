/* llmc_file.h -- makes a small model file of llm.c for tests, knowing nothing of the code that
 * reads it. */
#ifndef TESTS_SUPPORT_MODEL_LLMC_FILE_H
#define TESTS_SUPPORT_MODEL_LLMC_FILE_H

#include "model/weights/llmc.h"

/* The model: vocabulary, padded vocabulary, context, layers, heads, channels. */
enum { LLMC_V = 5, LLMC_VP = 128, LLMC_P = 3, LLMC_L = 2, LLMC_H = 2, LLMC_C = 4 };
extern const LlmcHeader llmc_small; /* its header, in f32 */

/* llm.c's kinds of tensors in the order of its file, with the elements of one layer (or of the
 * whole model, where there is no layer). */
enum {
    WTE,
    WPE,
    LN1W,
    LN1B,
    QKVW,
    QKVB,
    ATTPROJW,
    ATTPROJB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    FCPROJW,
    FCPROJB,
    LNFW,
    LNFB,
    KINDS
};

/* Returns the bytes of a model file in which each element has other bits, but for the rows of
 * padding, which are zero; the caller frees. */
char *llmc_file(DType dtype, size_t *bytes);
/* Returns the bits of an element: `kind` is the number of its tensor in the order of the file,
 * `element` the number within the layer. */
uint32_t llmc_bits(int kind, int layer, int element);
/* Returns in how many layers there is a tensor of this kind: LLMC_L, or 1 outside of the blocks. */
int llmc_layers(int kind);
/* Stores the lowest `size` bytes, little-endian, and moves *at past them. */
void llmc_put(char **at, uint32_t bits, size_t size);

/* Opens a file, which must be good. */
WeightSource *llmc_open(const char *path, LlmcHeader *header);
/* Returns a source with the weights of `header`, random ones in `dtype`. */
WeightSource *llmc_random(const LlmcHeader *header, DType dtype);

#endif
