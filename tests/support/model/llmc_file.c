/* llmc_file.c -- makes small model files of llm.c. See llmc_file.h. */
#include "tests/support/model/llmc_file.h"

#include "model/core/check.h"
#include "tests/support/model/memory_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

const LlmcHeader llmc_small = {F32, LLMC_P, LLMC_V, LLMC_L, LLMC_H, LLMC_C, LLMC_VP};

static const struct {
    int layers, elements;
} kinds[KINDS] = {{1, LLMC_VP *LLMC_C},
                  {1, LLMC_P *LLMC_C},
                  {LLMC_L, LLMC_C},
                  {LLMC_L, LLMC_C},
                  {LLMC_L, 3 * LLMC_C *LLMC_C},
                  {LLMC_L, 3 * LLMC_C},
                  {LLMC_L, LLMC_C *LLMC_C},
                  {LLMC_L, LLMC_C},
                  {LLMC_L, LLMC_C},
                  {LLMC_L, LLMC_C},
                  {LLMC_L, 4 * LLMC_C *LLMC_C},
                  {LLMC_L, 4 * LLMC_C},
                  {LLMC_L, 4 * LLMC_C *LLMC_C},
                  {LLMC_L, LLMC_C},
                  {1, LLMC_C},
                  {1, LLMC_C}};

uint32_t llmc_bits(int kind, int layer, int element)
{
    return (uint32_t)(kind + 1) << 11 | (uint32_t)layer << 10 | (uint32_t)element;
}

void llmc_put(char **at, uint32_t bits, size_t size)
{
    for (size_t b = 0; b < size; b++)
        *(*at)++ = (char)(bits >> 8 * b);
}

char *llmc_file(DType dtype, size_t *bytes)
{
    const int32_t header[8] = {
        20240326, dtype == F32 ? 3 : 5, LLMC_P, LLMC_V, LLMC_L, LLMC_H, LLMC_C, LLMC_VP};
    size_t size = dtype_size(dtype);
    *bytes = LLMC_HEADER_BYTES;
    for (int k = 0; k < KINDS; k++)
        *bytes += (size_t)(kinds[k].layers * kinds[k].elements) * size;
    char *file = must_calloc(1, *bytes), *at = file;
    for (int i = 0; i < 8; i++)
        llmc_put(&at, (uint32_t)header[i], 4);
    at = file + LLMC_HEADER_BYTES;
    for (int k = 0; k < KINDS; k++)
        for (int l = 0; l < kinds[k].layers; l++)
            for (int e = 0; e < kinds[k].elements; e++)
                llmc_put(&at, k == WTE && e >= LLMC_V * LLMC_C ? 0 : llmc_bits(k, l, e), size);
    assert_ptr_equal(at, file + *bytes);
    return file;
}

int llmc_layers(int kind)
{
    return kinds[kind].layers;
}

WeightSource *llmc_open(const char *path, LlmcHeader *header)
{
    char err[1024], *opened;
    WeightSource *source;
    bool missing;
    if (!llmc_source_open(path, header, &source, &opened, &missing, err, sizeof err))
        fail_msg("%s", err);
    free(opened);
    return source;
}

WeightSource *llmc_random(const LlmcHeader *header, DType dtype)
{
    int count;
    LlmcPlace *place = llmc_places(header, &count);
    WeightSource *source = memory_source_new();
    for (int i = count; i-- > 0;) { /* in another order than the file's */
        const SourceTensor *t = &place[i].tensor;
        memory_source_add(source, t->name, dtype, t->dim[0], t->ndim == 2 ? t->dim[1] : 0, 7);
    }
    free(place);
    return source;
}
