/* fragments_tma.cu -- determines where TMA puts the elements of a 2-D tile in shared memory, for
 * each swizzle mode. Every 16-bit element of the tensor is its own row * 256 + column. Lines
 * `map.tma.SWIZZLE.rowR` give, for each 16-byte chunk of line R of shared memory, the row and the
 * tile's column of its first element. `.expected` compares the whole tile with this rule: address
 * bits 4-6 (the chunk) are XORed with bits 7-9, using as many bits as the swizzle mode has. */
#include "tests/probe/probe.h"
#include <cuda.h>

enum { WIDTH = 128, HEIGHT = 64, ROWS = 16, MAP_ROWS = 8, THREADS = 128, X = 64, Y = 16 };
/* bytes of shared memory; maximum number of polls of the barrier */
enum { SPACE = 4096, TRIES = 1 << 20 };

typedef struct {
    const char *name;
    CUtensorMapSwizzle mode;
    int columns;   /* columns of the tile */
    uint32_t mask; /* mask of the chunk bits that are swizzled */
} Swizzle;

static const Swizzle SWIZZLES[] = {{"none", CU_TENSOR_MAP_SWIZZLE_NONE, 64, 0},
                                   {"sw32", CU_TENSOR_MAP_SWIZZLE_32B, 16, 1},
                                   {"sw64", CU_TENSOR_MAP_SWIZZLE_64B, 32, 3},
                                   {"sw128", CU_TENSOR_MAP_SWIZZLE_128B, 64, 7}};

/* Copies the tile at column x, row y to shared memory at `base` bytes after a multiple of 1024, and
 * then copies shared memory to `out`. Sets *arrived to 0 if the barrier does not complete within
 * TRIES polls. */
static __global__ void tile_kernel(const __grid_constant__ CUtensorMap map, uint16_t *out,
                                   int *arrived, int x, int y, uint32_t base, uint32_t bytes)
{
    __shared__ __align__(1024) uint16_t space[SPACE / 2];
    __shared__ __align__(8) uint64_t barrier;
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(space) + base;
    const uint32_t bar = (uint32_t)__cvta_generic_to_shared(&barrier);
    uint32_t done = 0;
    for (int i = (int)threadIdx.x; i < SPACE / 2; i += THREADS)
        space[i] = 0xffff;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("fence.proxy.async;" ::: "memory"); /* orders the fill above before the copy */
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::"
                     "bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(at),
                     "l"(&map), "r"(x), "r"(y), "r"(bar)
                     : "memory");
    }
    for (int i = 0; i < TRIES && !done; i++)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar)
                     : "memory");
    if (!done) *arrived = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SPACE / 2; i += THREADS)
        out[i] = space[i];
}

static uint32_t swizzled(uint32_t address, uint32_t mask)
{
    return address ^ (address >> 7 & mask) << 4;
}

/* Returns how many elements of the tile are not where the rule puts them; elements outside the
 * tensor must be 0. With `by_rows`, the rule is applied to offsets within the tile instead of
 * addresses. */
static int count_misplaced(const uint16_t *got, const Swizzle *s, int x, int y, uint32_t base,
                           bool by_rows)
{
    int misplaced = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < s->columns; c++) {
            uint32_t offset = 2 * (uint32_t)(r * s->columns + c);
            uint32_t at =
                by_rows ? base + swizzled(offset, s->mask) : swizzled(base + offset, s->mask);
            bool inside = x + c < WIDTH && y + r < HEIGHT;
            misplaced += got[at / 2] != (inside ? (y + r) << 8 | (x + c) : 0);
        }
    }
    return misplaced;
}

/* ---- host ------------------------------------------------------------------------------------ */

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

typedef struct {
    EncodeTiled encode;
    uint16_t *tensor, *out; /* on the device */
    int *arrived;           /* on the device */
} Session;

/* Loads the tile into `got`. Returns NULL, or a text that says why it failed. */
static const char *tile_load(const Session *session, const Swizzle *s, int x, int y, uint32_t base,
                             uint16_t *got)
{
    const cuuint64_t size[2] = {WIDTH, HEIGHT}, stride[1] = {2 * WIDTH};
    const cuuint32_t box[2] = {(cuuint32_t)s->columns, ROWS}, step[2] = {1, 1};
    CUtensorMap map;
    int arrived = 1;
    CUresult result =
        session->encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, session->tensor, size, stride, box,
                        step, CU_TENSOR_MAP_INTERLEAVE_NONE, s->mode,
                        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return probe_name("failed: cuTensorMapEncodeTiled: error %d", (int)result);
    cudaError_t code =
        cudaMemcpy(session->arrived, &arrived, sizeof arrived, cudaMemcpyHostToDevice);
    if (code == cudaSuccess) {
        tile_kernel<<<1, THREADS>>>(map, session->out, session->arrived, x, y, base,
                                    (uint32_t)(2 * s->columns * ROWS));
        code = cudaGetLastError();
    }
    if (code == cudaSuccess) code = cudaMemcpy(got, session->out, SPACE, cudaMemcpyDeviceToHost);
    if (code == cudaSuccess)
        code = cudaMemcpy(&arrived, session->arrived, sizeof arrived, cudaMemcpyDeviceToHost);
    if (code != cudaSuccess) return probe_name("failed: %s", cudaGetErrorString(code));
    return arrived ? NULL : "failed: timed out";
}

static void print_tile(const Swizzle *s, const uint16_t *got)
{
    for (int r = 0; r < MAP_ROWS; r++) {
        char text[256];
        int at = 0;
        for (int c = 0; c < s->columns; c += 8) {
            int code = got[r * s->columns + c];
            at += snprintf(text + at, sizeof text - (size_t)at, "%s(%d,%d)", c ? " " : "",
                           (code >> 8) - Y, (code & 255) - X);
        }
        probe_word(probe_name("map.tma.%s.row%d", s->name, r), text);
    }
}

static void ask_tile(const Session *session, const Swizzle *s)
{
    static uint16_t got[SPACE / 2];
    const int edge_x = WIDTH - s->columns / 2, edge_y = HEIGHT - ROWS / 2;
    const char *failure = tile_load(session, s, X, Y, 0, got);
    int misplaced = failure ? 0 : count_misplaced(got, s, X, Y, 0, false);
    probe_word(probe_name("tma.%s.expected", s->name),
               failure     ? failure
               : misplaced ? probe_name("differs in %d elements", misplaced)
                           : "match");
    if (!failure) print_tile(s, got);
    failure = tile_load(session, s, edge_x, edge_y, 0, got);
    misplaced = failure ? 0 : count_misplaced(got, s, edge_x, edge_y, 0, false);
    probe_word(probe_name("tma.%s.beyond_edge", s->name),
               failure     ? failure
               : misplaced ? probe_name("differs in %d elements", misplaced)
                           : "zeros");
    if (s->mask == 0) return;
    failure = tile_load(session, s, X, Y, 128, got);
    probe_word(probe_name("tma.%s.at_128_past_1024.swizzled_by", s->name),
               failure                                          ? failure
               : count_misplaced(got, s, X, Y, 128, false) == 0 ? "address"
               : count_misplaced(got, s, X, Y, 128, true) == 0  ? "tile's own rows"
                                                                : "neither");
}

int main(void)
{
    static uint16_t tensor[HEIGHT * WIDTH];
    cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
    Session session;
    probe_device();
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || !encode) {
        probe_word("tma", "failed: the driver has no cuTensorMapEncodeTiled");
        return 0;
    }
    session.encode = (EncodeTiled)encode;
    for (int i = 0; i < HEIGHT * WIDTH; i++)
        tensor[i] = (uint16_t)(i / WIDTH << 8 | i % WIDTH);
    CUDA_OK(cudaMalloc(&session.tensor, sizeof tensor));
    CUDA_OK(cudaMalloc(&session.out, SPACE));
    CUDA_OK(cudaMalloc(&session.arrived, sizeof(int)));
    CUDA_OK(cudaMemcpy(session.tensor, tensor, sizeof tensor, cudaMemcpyHostToDevice));
    for (size_t i = 0; i < sizeof SWIZZLES / sizeof *SWIZZLES; i++)
        ask_tile(&session, SWIZZLES + i);
    return 0;
}
