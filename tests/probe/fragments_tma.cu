/* fragments_tma.cu -- determines where TMA puts the elements of a 2-D tile in shared memory, for
 * each swizzle mode. Every 16-bit element of the tensor is its own row * 256 + column. Lines
 * `map.tma.SWIZZLE.rowR` give, for each 16-byte chunk of line R of shared memory, the row and the
 * tile's column of its first element. `.expected` compares the whole tile with this rule: address
 * bits 4-6 (the chunk) are XORed with bits 7-9, using as many bits as the swizzle mode has.
 *
 * `tma.heads.ROWS.PLACE` is about the 4-D boxes of attention: 64 columns of one head for 16, 64 or
 * 128 tokens of one batch row, from a packed tensor with a stride between rows, by the wrappers of
 * ptx_tma.cuh. Boxes that begin before the first token, end after the last one or are wholly
 * outside must arrive with the bytes of a whole box, and be 0 where there is no token. Eight rows
 * are printed, `map.tma.heads.ROWS.PLACE.rowR`: of 16 the first ones, of a box that differs those
 * around the first that does. */
#include "tests/probe/probe.h"
#include <cuda.h>

#include "model/kernels/cuda/ptx_tma.cuh"

enum { WIDTH = 128, HEIGHT = 64, ROWS = 16, MAP_ROWS = 8, THREADS = 128, X = 64, Y = 16 };
/* bytes of shared memory, for tiles and for boxes of attention; maximum number of polls of the
 * barrier */
enum { SPACE = 4096, HEADS_SPACE = 16384, TRIES = 1 << 20 };

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

/* As tile_kernel, for the box of `rows` tokens at (c0, head, token, row) of a map of 4
 * dimensions. */
static __global__ void heads_kernel(const __grid_constant__ CUtensorMap map, uint16_t *out,
                                    int *arrived, int c0, int head, int token, int row, int rows)
{
    __shared__ __align__(1024) uint16_t space[HEADS_SPACE / 2];
    __shared__ __align__(8) uint64_t barrier;
    uint32_t done = 0;
    for (int i = (int)threadIdx.x; i < HEADS_SPACE / 2; i += THREADS)
        space[i] = 0xffff;
    if (threadIdx.x == 0) {
        mbarrier_init(&barrier, 1);
        mbarrier_init_fence();
    }
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect(&barrier, 2 * 64 * (uint32_t)rows);
        tma_load_4d(space, &map, &barrier, c0, head, token, row);
    }
    for (int i = 0; i < TRIES && !done; i++)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"((uint32_t)__cvta_generic_to_shared(&barrier))
                     : "memory");
    if (!done) *arrived = 0;
    if (done) mbarrier_wait(&barrier, 0);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < HEADS_SPACE / 2; i += THREADS)
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

/* Prints rows and columns within the tile at (x, y), or 0. */
static void print_tile(const char *name, const Swizzle *s, int x, int y, const uint16_t *got)
{
    for (int r = 0; r < MAP_ROWS; r++) {
        char text[256];
        int at = 0;
        for (int c = 0; c < s->columns; c += 8) {
            int code = got[r * s->columns + c];
            const char *place = probe_name("(%d,%d)", (code >> 8) - y, (code & 255) - x);
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%s", c ? " " : "",
                           code ? place : "0");
        }
        probe_word(probe_name("map.tma.%s%s.row%d", s->name, name, r), text);
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
    if (!failure) print_tile("", s, X, Y, got);
    failure = tile_load(session, s, edge_x, edge_y, 0, got);
    misplaced = failure ? 0 : count_misplaced(got, s, edge_x, edge_y, 0, false);
    probe_word(probe_name("tma.%s.beyond_edge", s->name),
               failure     ? failure
               : misplaced ? probe_name("differs in %d elements", misplaced)
                           : "zeros");
    if (misplaced) print_tile(".beyond_edge", s, edge_x, edge_y, got);
    if (s->mask == 0) return;
    failure = tile_load(session, s, X, Y, 128, got);
    probe_word(probe_name("tma.%s.at_128_past_1024.swizzled_by", s->name),
               failure                                          ? failure
               : count_misplaced(got, s, X, Y, 128, false) == 0 ? "address"
               : count_misplaced(got, s, X, Y, 128, true) == 0  ? "tile's own rows"
                                                                : "neither");
}

/* ---- boxes of attention ---------------------------------------------------------------------- */

/* The packed tensor (BATCH, TOKENS, HEADS * SIZE) has LD elements between rows. */
enum { BATCH = 2, TOKENS = 149, HEADS = 3, SIZE = 128, LD = HEADS * SIZE + 8 };
enum { HEADS_ELEMENTS = BATCH * TOKENS * LD };

/* The tokens of a box: those of the ring's tiles, then the two that attention uses. */
static const int BOX_ROWS[] = {16, 64, 128};

typedef struct {
    const char *name;
    int c0, head, token, row;
} Place;

static const Place PLACES[] = {{"inside", 64, 2, 3, 1},
                               {"past_last_token", 0, 1, TOKENS - 5, 0},
                               {"before_first_token", 64, 0, -5, 1},
                               {"outside", 0, 1, TOKENS + 3, 0}};

/* Returns how many elements of the box of `rows` tokens are not where the rule puts them. Sets
 * *first to the first row that has one. Element i of the tensor is i modulo 65,536. */
static int heads_misplaced(const uint16_t *got, const Place *p, int rows, int *first)
{
    int misplaced = 0;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 64; c++) {
            int token = p->token + r;
            int want = token < 0 || token >= TOKENS
                           ? 0
                           : (p->row * TOKENS + token) * LD + p->head * SIZE + p->c0 + c;
            uint32_t at = swizzled(2 * (uint32_t)(r * 64 + c), 7);
            if (got[at / 2] != (uint16_t)want && misplaced++ == 0) *first = r;
        }
    return misplaced;
}

/* Loads the box into `got`. Returns NULL, or a text that says why it failed. */
static const char *heads_load(const Session *session, const Place *p, int rows, uint16_t *got)
{
    const cuuint64_t size[4] = {SIZE, HEADS, TOKENS, BATCH};
    const cuuint64_t stride[3] = {2 * SIZE, 2 * LD, 2 * LD * TOKENS};
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)rows, 1}, step[4] = {1, 1, 1, 1};
    CUtensorMap map;
    int arrived = 1;
    CUresult result =
        session->encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, session->tensor, size, stride,
                        box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return probe_name("failed: cuTensorMapEncodeTiled: error %d", (int)result);
    cudaError_t code =
        cudaMemcpy(session->arrived, &arrived, sizeof arrived, cudaMemcpyHostToDevice);
    if (code == cudaSuccess) {
        heads_kernel<<<1, THREADS>>>(map, session->out, session->arrived, p->c0, p->head, p->token,
                                     p->row, rows);
        code = cudaGetLastError();
    }
    if (code == cudaSuccess)
        code = cudaMemcpy(got, session->out, HEADS_SPACE, cudaMemcpyDeviceToHost);
    if (code == cudaSuccess)
        code = cudaMemcpy(&arrived, session->arrived, sizeof arrived, cudaMemcpyDeviceToHost);
    if (code != cudaSuccess) return probe_name("failed: %s", cudaGetErrorString(code));
    return arrived ? NULL : "failed: timed out";
}

/* Prints the first elements of the chunks of 16 bytes of MAP_ROWS rows of the box. */
static void print_heads(const char *name, int row, const uint16_t *got)
{
    for (int r = row / MAP_ROWS * MAP_ROWS, end = r + MAP_ROWS; r < end; r++) {
        const uint16_t *x = got + r * 64;
        probe_word(probe_name("map.%s.row%d", name, r),
                   probe_name("%d %d %d %d %d %d %d %d", x[0], x[8], x[16], x[24], x[32], x[40],
                              x[48], x[56]));
    }
}

static void ask_box(const Session *session, const Place *p, int rows)
{
    static uint16_t got[HEADS_SPACE / 2];
    char name[64]; /* a copy, because probe_name reuses its buffers */
    int first = 0;
    const char *failure = heads_load(session, p, rows, got);
    int misplaced = failure ? 0 : heads_misplaced(got, p, rows, &first);
    snprintf(name, sizeof name, "tma.heads.%d.%s", rows, p->name);
    probe_word(name, failure     ? failure
                     : misplaced ? probe_name("differs in %d elements", misplaced)
                                 : "match");
    if (misplaced || (!failure && rows == BOX_ROWS[0])) print_heads(name, first, got);
}

static void ask_heads(Session session)
{
    static uint16_t tensor[HEADS_ELEMENTS];
    for (int i = 0; i < HEADS_ELEMENTS; i++)
        tensor[i] = (uint16_t)i;
    CUDA_OK(cudaMalloc(&session.tensor, sizeof tensor));
    CUDA_OK(cudaMemcpy(session.tensor, tensor, sizeof tensor, cudaMemcpyHostToDevice));
    for (int rows : BOX_ROWS)
        for (const Place &place : PLACES)
            ask_box(&session, &place, rows);
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
    CUDA_OK(cudaMalloc(&session.out, HEADS_SPACE));
    CUDA_OK(cudaMalloc(&session.arrived, sizeof(int)));
    CUDA_OK(cudaMemcpy(session.tensor, tensor, sizeof tensor, cudaMemcpyHostToDevice));
    for (size_t i = 0; i < sizeof SWIZZLES / sizeof *SWIZZLES; i++)
        ask_tile(&session, SWIZZLES + i);
    ask_heads(session);
    return 0;
}
