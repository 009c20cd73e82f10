/* tiles.h -- the tensor and the map that the tests of tiled copies use. */
#ifndef TESTS_EMU_DEVICE_TILES_H
#define TESTS_EMU_DEVICE_TILES_H

#include "tests/emu/device/planted_tma.cuh"

#include "tests/emu/device/last_words.h"

/* The tensor of the tests: (BATCH, TOKENS, HEADS * SIZE), with LD elements between rows. */
enum { BATCH = 2, TOKENS = 21, HEADS = 3, SIZE = 128, LD = HEADS * SIZE + 8 };
enum { ELEMENTS = BATCH * TOKENS * LD, SHARED = 2 * TILE_BYTES + 2048 };

/* ---- helpers --------------------------------------------------------------------------------- */

static uint16_t element(int64_t i)
{
    return (uint16_t)(i * 31 + 7);
}

/* Returns the tensor on the device. */
static uint16_t *tensor(void)
{
    static uint16_t x[ELEMENTS];
    uint16_t *p = NULL;
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = element(i);
    CUDA_CHECK(cudaMalloc(&p, sizeof x));
    CUDA_CHECK(cudaMemcpy(p, x, sizeof x, cudaMemcpyHostToDevice));
    return p;
}

static cuuint64_t size_of_tensor[] = {SIZE, HEADS, TOKENS, BATCH};
static cuuint64_t stride_of_tensor[] = {2 * SIZE, 2 * LD, 2 * LD *TOKENS};
static cuuint32_t step_of_tile[] = {1, 1, 1, 1};

static CUtensorMap map_of(uint16_t *x, int rank = 4, cuuint32_t columns = COLUMNS,
                          CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B)
{
    CUtensorMap map;
    const cuuint32_t box_of_tile[] = {columns, 1, ROWS, 1};
    assert_int_equal(cuTensorMapEncodeTiled(
                         &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, x,
                         size_of_tensor, stride_of_tensor, box_of_tile, step_of_tile,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                     CUDA_SUCCESS);
    return map;
}

#define DIES(statements, ...)                                                                      \
    dies_saying(                                                                                   \
        #statements,                                                                               \
        [] {                                                                                       \
            uint16_t *x = tensor(), *out = x;                                                      \
            (void)out;                                                                             \
            statements;                                                                            \
            CUDA_CHECK(cudaDeviceSynchronize());                                                   \
        },                                                                                         \
        __VA_ARGS__, NULL)

#endif
