/* test_emu_maps.cc -- tests of the emulated driver's encoder of tensor maps, and of the maps that
 * the program makes with it. */
#include "tests/emu/device/tiles.h"

#include "model/kernels/cuda/tensor_map.h"

/* The arguments of the driver's encoder of tensor maps. */
typedef struct {
    CUtensorMapDataType type;
    cuuint32_t rank;
    size_t address;
    cuuint64_t size[4], stride[3];
    cuuint32_t box[4], step[4];
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapFloatOOBfill fill;
} MapArguments;

static const MapArguments RIGHT_MAP = {CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                       4,
                                       4096,
                                       {SIZE, HEADS, TOKENS, BATCH},
                                       {2 * SIZE, 2 * LD, 2 * LD *TOKENS},
                                       {COLUMNS, 1, ROWS, 1},
                                       {1, 1, 1, 1},
                                       CU_TENSOR_MAP_INTERLEAVE_NONE,
                                       CU_TENSOR_MAP_SWIZZLE_128B,
                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE};

static CUresult encode(MapArguments a, int misaligned = 0)
{
    alignas(128) char maps[2 * sizeof(CUtensorMap)];
    cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found));
    assert_int_equal(found, cudaDriverEntryPointSuccess);
    return ((decltype(cuTensorMapEncodeTiled) *)function)(
        (CUtensorMap *)(maps + misaligned), a.type, a.rank, (void *)a.address, a.size, a.stride,
        a.box, a.step, a.interleave, a.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, a.fill);
}

#define REFUSED(member, value)                                                                     \
    do {                                                                                           \
        MapArguments a = RIGHT_MAP;                                                                \
        a.member = value;                                                                          \
        assert_int_equal(encode(a), CUDA_ERROR_INVALID_VALUE);                                     \
    } while (0)

static void test_tensor_maps_that_a_real_driver_refuses_are_refused(void **)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    assert_int_equal(encode(RIGHT_MAP), CUDA_SUCCESS);
    assert_int_equal(encode(RIGHT_MAP, 32), CUDA_ERROR_INVALID_VALUE);
    REFUSED(type, (CUtensorMapDataType)15);
    REFUSED(rank, 0);
    REFUSED(rank, 6);
    REFUSED(address, 4096 + 8);
    REFUSED(address, 0);
    REFUSED(size[2], 0);
    REFUSED(size[2], ((cuuint64_t)1 << 32) + 1);
    REFUSED(stride[1], 2 * LD + 8);
    REFUSED(stride[2], (cuuint64_t)1 << 40);
    REFUSED(box[2], 0);
    REFUSED(box[2], 257);
    REFUSED(box[0], COLUMNS + 8); /* more than the swizzle's 128 bytes */
    REFUSED(box[0], 4);           /* no multiple of 16 bytes */
    REFUSED(step[1], 0);
    REFUSED(step[1], 9);
    REFUSED(swizzle, CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B);
    REFUSED(interleave, CU_TENSOR_MAP_INTERLEAVE_16B);
    REFUSED(fill, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 11080,
                                                cudaEnableDefault, &found));
    assert_true(found == cudaDriverEntryPointVersionNotSufficent && function == NULL);
    CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &found));
    assert_true(found == cudaDriverEntryPointSymbolNotFound && function == NULL);
}

/* Makes a map by tensor_map_heads. */
static CUtensorMap map_over(Tensor t, int64_t heads)
{
    CudaDevice cuda = {};
    Device dev = {};
    CUtensorMap map;
    dev.impl = &cuda;
    tensor_map_find(&cuda);
    tensor_map_heads(&dev, &map, t, heads, SIZE, ROWS);
    return map;
}

/* Makes the map of the tests in this way. */
static CUtensorMap heads_map(void *x, int64_t heads)
{
    Tensor t = tensor_3d(x, BF16, BATCH, TOKENS, HEADS * SIZE);
    t.ld = LD;
    return map_over(t, heads);
}

/* Kernels may be given a single row with any stride, which the driver would refuse. */
static void test_the_stride_of_a_single_row_does_not_change_a_tensor_map(void **)
{
    uint16_t *x = tensor();
    Tensor row = tensor_3d(x, BF16, 1, 1, HEADS * SIZE), odd = row;
    odd.ld = HEADS * SIZE + 1;
    CUtensorMap map = map_over(odd, HEADS), want = map_over(row, HEADS);
    assert_memory_equal(&map, &want, sizeof map);
    CUDA_CHECK(cudaFree(x));
}

static void test_a_tensor_map_over_heads_equals_that_of_the_packed_tensor(void **)
{
    uint16_t *x = tensor();
    CUtensorMap map = heads_map(x, HEADS), want = map_of(x);
    assert_memory_equal(&map, &want, sizeof map);
    CUDA_CHECK(cudaFree(x));
    DIES(heads_map(x + 1, HEADS), "cuTensorMapEncodeTiled refuses (error 1) a map of 3 heads");
    DIES(heads_map(x, HEADS + 1), "a map of 4 heads of 128 columns over a tensor");
    setenv("EMU_DRIVER", "no_maps", 1);
    DIES(heads_map(x, HEADS), "has no cuTensorMapEncodeTiled", "update the driver");
    unsetenv("EMU_DRIVER");
}

static __global__ void __launch_bounds__(WARP)
    map_kernel(uint16_t *out, const __grid_constant__ CUtensorMap)
{
    out[threadIdx.x] = 1;
}

static void run_map(uint16_t *out, uint16_t *x)
{
    LAUNCH(map_kernel, 1, WARP, 0, 0, out, map_of(x));
}

static void test_tensor_maps_of_memory_that_a_kernel_cannot_read_are_refused(void **)
{
    uint16_t *p = tensor();
    run_map(p, p);
    CUDA_CHECK(cudaFree(p));
    DIES(cudaFree(x); run_map(out = tensor(), x), "is no pointer into device memory");
    DIES(run_map(out, (uint16_t *)((char *)x + 256)), "is not all in device memory");
    DIES(static uint16_t host[ELEMENTS + 8];
         run_map(out, host + (8 - ((uintptr_t)host / 2) % 8)), "is no pointer into device memory");
    setenv("EMU_DEVICES", "2", 1);
    DIES(CUDA_CHECK(cudaSetDevice(1)); uint16_t *other = tensor(); CUDA_CHECK(cudaSetDevice(0));
         run_map(out, other), "is memory of device 1, to which device 0");
    unsetenv("EMU_DEVICES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_maps_that_a_real_driver_refuses_are_refused),
        cmocka_unit_test(test_the_stride_of_a_single_row_does_not_change_a_tensor_map),
        cmocka_unit_test(test_a_tensor_map_over_heads_equals_that_of_the_packed_tensor),
        cmocka_unit_test(test_tensor_maps_of_memory_that_a_kernel_cannot_read_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
