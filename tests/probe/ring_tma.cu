/* ring_tma.cu -- does the skeleton of attention for Hopper work: a ring of two stages that one
 * warpgroup fills by tensor map and two empty, with barriers in shared memory, named barriers and
 * 3 x 168 registers that become 2 x 240 + 24? `ring.sums.N` is `match` if N tiles gave the right
 * sums; the last tiles are outside the tensor. `ring.tile` is the time of one tile of 2 KiB. A ring
 * that stops is ended by scripts/gpu_probe.sh. */
#include "tests/probe/probe.h"

#include "tests/probe/ring.cuh"

/* The tensor is (TOKENS, HEADS * SIZE), with LD elements between rows; the kernel reads the first
 * 64 columns of head 1. */
enum { TOKENS = 501, HEADS = 3, SIZE = 128, LD = HEADS * SIZE + 8, ELEMENTS = TOKENS * LD };
enum { SHARED = STAGES * TILE_BYTES + 2048, SUMS = CONSUMERS * GROUP, MANY = 4000 };

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static uint16_t element(int64_t i)
{
    return (uint16_t)(i * 31 + 7);
}

/* Makes the map of the tensor. Returns whether that was possible. */
static bool map_make(CUtensorMap *map, uint16_t *tensor)
{
    const cuuint64_t size[4] = {SIZE, HEADS, TOKENS, 1};
    const cuuint64_t stride[3] = {2 * SIZE, 2 * LD, (cuuint64_t)2 * LD * TOKENS};
    const cuuint32_t box[4] = {COLUMNS, 1, ROWS, 1}, step[4] = {1, 1, 1, 1};
    cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || !encode)
        return false;
    return ((EncodeTiled)encode)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, tensor, size, stride,
                                 box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Returns how many sums over `tiles` tiles are wrong. */
static int count_wrong(const unsigned *got, int tiles)
{
    int wrong = 0;
    for (int t = 0; t < SUMS; t++) {
        unsigned sum = 0;
        for (int k = t % GROUP; k < tiles * TILE; k += GROUP) {
            int r = k / COLUMNS % ROWS, token = k / TILE * ROWS + r;
            int column = (k % COLUMNS / 8 ^ r % 8) * 8 + k % 8;
            if (token < TOKENS) sum += element((int64_t)token * LD + SIZE + column);
        }
        wrong += got[t] != sum;
    }
    return wrong;
}

typedef struct {
    CUtensorMap map;
    unsigned *out; /* on the device */
    int tiles;
} Ring;

static void ring_start(void *context, cudaStream_t stream)
{
    const Ring *ring = (const Ring *)context;
    ring_kernel<RING_RIGHT><<<1, RING_THREADS, SHARED, stream>>>(ring->out, ring->map, ring->tiles);
    CUDA_OK(cudaGetLastError());
}

int main(void)
{
    static const int TILES[] = {1, 2, 3, 32, 35};
    static uint16_t x[ELEMENTS];
    static unsigned got[SUMS];
    uint16_t *tensor;
    Ring ring;
    probe_device();
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = element(i);
    CUDA_OK(cudaMalloc(&tensor, sizeof x));
    CUDA_OK(cudaMalloc(&ring.out, sizeof got));
    CUDA_OK(cudaMemcpy(tensor, x, sizeof x, cudaMemcpyHostToDevice));
    if (!map_make(&ring.map, tensor)) {
        probe_word("ring", "failed: there is no map");
        return PROBE_FAILED;
    }
    for (int tiles : TILES) {
        ring.tiles = tiles;
        ring_start(&ring, 0);
        CUDA_OK(cudaMemcpy(got, ring.out, sizeof got, cudaMemcpyDeviceToHost));
        int wrong = count_wrong(got, tiles);
        probe_word(probe_name("ring.sums.%d", tiles),
                   wrong ? probe_name("differs in %d of %d sums", wrong, (int)SUMS) : "match");
    }
    ring.tiles = MANY;
    probe_number("ring.tile", probe_seconds(ring_start, &ring, 0, 4, 7) / MANY * 1e9, "ns");
    return 0;
}
