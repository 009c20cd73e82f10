/* wgmma_product.cc -- checks the operands of a product of a warpgroup, reads them from shared
 * memory by their descriptors, and multiplies. The layouts are those of the PTX ISA, with the
 * 128-byte swizzle, as model/kernels/cuda/ptx_wgmma.cuh describes them. */
#include <string.h>

#include "tests/emu/device/wgmma.h"
#include "tests/emu/include/cuda_bf16.h"
#include "tests/emu/include/cuda_fp16.h"

enum {
    WARP_ROWS = 16, /* rows of A and D of a warp */
    DEPTH = 16,     /* columns of A, rows of B */
    LINE = 128,     /* bytes of a line of the 128-byte swizzle */
    CHUNK = 16,     /* bytes that the swizzle keeps together */
    LINES = 8,      /* number of lines of an atom, after which the swizzle repeats */
    ATOM = LINE * LINES,
    PANEL = LINE / 2 /* elements of a line */
};

/* ---- descriptors ----------------------------------------------------------------------------- */

typedef struct {
    uint32_t start, leading, stride;
    const unsigned char *origin; /* where address 0 of the shared window would be */
} Operand;

static Operand operand_of(uint64_t descriptor)
{
    const EmuBlock *block = emu_thread->block;
    return {(uint32_t)(descriptor & 0x3fff) * 16, (uint32_t)(descriptor >> 16 & 0x3fff) * 16,
            (uint32_t)(descriptor >> 32 & 0x3fff) * 16,
            block->shared - emu_shared_address(block->shared)};
}

/* Ends the program unless the bits of a descriptor other than address and offsets are right. */
static void check_mode(const char *what, char name, uint64_t descriptor)
{
    const uint64_t RESERVED = 0x3ff1c000c000c000u;
    if (descriptor >> 62 != 1)
        emu_die("%s: the descriptor of %c, %016lx, has the swizzle mode %d; 1, for 128 bytes, is "
                "the only one here",
                what, name, descriptor, (int)(descriptor >> 62));
    if ((descriptor & RESERVED) != 0)
        emu_die("%s: the descriptor of %c, %016lx, has bits that must be 0", what, name,
                descriptor);
    if ((descriptor >> 49 & 7) != 0)
        emu_die("%s: the descriptor of %c has a base offset of %d; 0 is the only one here", what,
                name, (int)(descriptor >> 49 & 7));
}

/* Ends the program if the descriptor is invalid for an operand of `extent` rows (A) or columns (B),
 * or if the operand is outside of shared memory or not visible to the product (proxy.cc). */
static void check_operand(const EmuWgmma *call, char name, uint64_t descriptor, bool mn_major,
                          int extent)
{
    const EmuBlock *block = emu_thread->block;
    const char *what = call->place.what;
    Operand o = operand_of(descriptor);
    check_mode(what, name, descriptor);
    uint32_t within = o.start % ATOM;
    if (mn_major ? within != 0 : within + DEPTH * 2 > LINE)
        emu_die("%s: %c starts at address %u, %u bytes after a multiple of %d; %s", what, name,
                o.start, within, ATOM,
                mn_major ? "0 is the only one possible"
                         : "at most 96 are possible, for a part of 16 within lines of 128 bytes");
    if (o.stride % ATOM != 0 || o.stride == 0)
        emu_die("%s: the stride of %c is %u bytes; it must be a multiple of %d, or the swizzle "
                "does not repeat",
                what, name, o.stride, ATOM);
    int across = mn_major ? DEPTH : extent, panels = mn_major ? extent / PANEL : 1;
    if (panels > 1 && (o.leading % ATOM != 0 || o.leading == 0))
        emu_die("%s: the leading offset of %c, from one panel of 64 to the next, is %u bytes; it "
                "must be a multiple of %d",
                what, name, o.leading, ATOM);
    uint64_t from = o.start - within;
    uint64_t end = from + (uint64_t)(panels - 1) * o.leading +
                   (uint64_t)(across / LINES - 1) * o.stride + ATOM;
    uint64_t first = emu_shared_address(block->shared), last = first + block->launch->shared;
    if (from < first || end > last)
        emu_die("%s reads %c at addresses %lu to %lu; the block's shared memory is at %lu to %lu",
                what, name, from, end, first, last);
    for (int panel = 0; panel < panels; panel++)
        for (int i = 0; i < across / LINES; i++)
            emu_proxy_check(o.origin + from + (uint32_t)panel * o.leading + (uint32_t)i * o.stride,
                            ATOM);
}

void emu_wgmma_check(const EmuWgmma *call)
{
    check_operand(call, 'B', call->b, call->b_mn, call->n);
    if (call->registers == NULL) check_operand(call, 'A', call->a, false, EMU_WGMMA_ROWS);
}

/* ---- reading operands ------------------------------------------------------------------------ */

/* Returns the 8 elements that start in this chunk of a line. */
static inline const uint16_t *chunk_at(const unsigned char *line, int number, int chunk)
{
    return (const uint16_t *)(line + (chunk ^ number % LINES) * CHUNK);
}

template <bool F16> static inline float value_of(uint16_t bits)
{
    return F16 ? __half2float(__half{bits}) : __bfloat162float(__nv_bfloat16{bits});
}

/* x (rows, 16) = rows `from` and following of an operand in K-major order. */
template <bool F16> static void rows_read(float *x, const Operand *o, int from, int rows)
{
    int chunk = (int)(o->start % LINE / CHUNK);
    for (int i = from; i < from + rows; i++) {
        const unsigned char *line = o->origin + o->start / LINE * LINE +
                                    (uint32_t)(i / LINES) * o->stride + i % LINES * LINE;
        for (int half = 0; half < 2; half++) {
            const uint16_t *element = chunk_at(line, i, chunk + half);
            for (int k = 0; k < 8; k++)
                *x++ = value_of<F16>(element[k]);
        }
    }
}

/* b (16, n) = B, which is in K-major order. */
template <bool F16> static void columns_read(float *b, const Operand *o, int n)
{
    enum { TILE = 16 };
    float x[TILE * DEPTH];
    for (int column = 0; column < n; column += TILE) {
        rows_read<F16>(x, o, column, TILE);
        for (int k = 0; k < DEPTH; k++)
            for (int i = 0; i < TILE; i++)
                b[k * n + column + i] = x[i * DEPTH + k];
    }
}

/* b (16, n) = B, which is in MN-major order. */
template <bool F16> static void panels_read(float *b, const Operand *o, int n)
{
    for (int k = 0; k < DEPTH; k++) {
        for (int panel = 0; panel < n / PANEL; panel++) {
            const unsigned char *line = o->origin + o->start + (uint32_t)(k / LINES) * o->stride +
                                        (uint32_t)panel * o->leading + k % LINES * LINE;
            for (int chunk = 0; chunk < LINES; chunk++) {
                const uint16_t *element = chunk_at(line, k, chunk);
                for (int i = 0; i < 8; i++)
                    *b++ = value_of<F16>(element[i]);
            }
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* sum (rows, n) += a (rows, 16) b (16, n), in float, in ascending order of the inner index, which
 * every width computes alike. WIDTH floats are a vector, COUNT vectors of four rows stay in
 * registers. */
template <int WIDTH, int COUNT>
static inline __attribute__((always_inline)) void add_product(float *sum, const float *a,
                                                              const float *b, int rows, int n)
{
    enum { HIGH = 4 };
    typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float)), may_alias));
    for (int row = 0; row < rows; row += HIGH) {
        for (int column = 0; column < n; column += WIDTH * COUNT) {
            Vector s[HIGH][COUNT];
            for (int r = 0; r < HIGH; r++)
                for (int c = 0; c < COUNT; c++)
                    s[r][c] = *(const Vector *)(sum + (row + r) * n + column + c * WIDTH);
            for (int k = 0; k < DEPTH; k++)
                for (int c = 0; c < COUNT; c++) {
                    Vector v = *(const Vector *)(b + k * n + column + c * WIDTH);
                    for (int r = 0; r < HIGH; r++)
                        s[r][c] += a[(row + r) * DEPTH + k] * v;
                }
            for (int r = 0; r < HIGH; r++)
                for (int c = 0; c < COUNT; c++)
                    *(Vector *)(sum + (row + r) * n + column + c * WIDTH) = s[r][c];
        }
    }
}

__attribute__((target("avx512f"))) static void add_product_512(float *sum, const float *a,
                                                               const float *b, int rows, int n)
{
    add_product<16, 4>(sum, a, b, rows, n);
}

__attribute__((target("avx2"))) static void add_product_256(float *sum, const float *a,
                                                            const float *b, int rows, int n)
{
    add_product<8, 2>(sum, a, b, rows, n);
}

static void add_product_128(float *sum, const float *a, const float *b, int rows, int n)
{
    add_product<4, 2>(sum, a, b, rows, n);
}

/* a (16, 16) = the rows of warp `warp` from the registers that its threads passed. */
template <bool F16> static void fragments_read(float *a, const uint32_t (*word)[4], int warp)
{
    for (int lane = 0; lane < EMU_WARP; lane++) {
        const uint32_t *own = word[warp * EMU_WARP + lane];
        float *at = a + lane / 4 * DEPTH + lane % 4 * 2;
        for (int i = 0; i < 4; i++)
            for (int half = 0; half < 2; half++)
                at[i % 2 * 8 * DEPTH + i / 2 * 8 + half] =
                    value_of<F16>((uint16_t)(own[i] >> half * 16));
    }
}

template <bool F16>
static void multiply_as(const EmuWgmma *call, float *sum, const uint32_t (*word)[4], int first,
                        int warps)
{
    alignas(64) float a[EMU_WGMMA_ROWS * DEPTH], b[DEPTH * EMU_WGMMA_COLUMNS];
    Operand operand = operand_of(call->b);
    int rows = warps * WARP_ROWS;
    sum += first * WARP_ROWS * call->n;
    if (call->b_mn)
        panels_read<F16>(b, &operand, call->n);
    else
        columns_read<F16>(b, &operand, call->n);
    if (call->registers != NULL) {
        for (int i = 0; i < warps; i++)
            fragments_read<F16>(a + i * WARP_ROWS * DEPTH, word, first + i);
    } else {
        operand = operand_of(call->a);
        rows_read<F16>(a, &operand, first * WARP_ROWS, rows);
    }
    if (!call->accumulate) memset(sum, 0, (size_t)(rows * call->n) * sizeof *sum);
    if (__builtin_cpu_supports("avx512f"))
        add_product_512(sum, a, b, rows, call->n);
    else if (__builtin_cpu_supports("avx2"))
        add_product_256(sum, a, b, rows, call->n);
    else
        add_product_128(sum, a, b, rows, call->n);
}

void emu_wgmma_multiply(const EmuWgmma *call, float *sum, const uint32_t (*word)[4], int first,
                        int warps)
{
    if (call->f16)
        multiply_as<true>(call, sum, word, first, warps);
    else
        multiply_as<false>(call, sum, word, first, warps);
}

uint64_t emu_wgmma_sum_of_a(const EmuWgmma *call)
{
    Operand o = operand_of(call->a);
    int chunk = (int)(o.start % LINE / CHUNK);
    uint64_t sum = 0;
    for (int i = 0; i < EMU_WGMMA_ROWS; i++) {
        const unsigned char *line =
            o.origin + o.start / LINE * LINE + (uint32_t)(i / LINES) * o.stride + i % LINES * LINE;
        for (int half = 0; half < 2; half++) {
            uint64_t word[2];
            memcpy(word, chunk_at(line, i, chunk + half), sizeof word);
            sum = (sum ^ word[0]) * 0x9e3779b97f4a7c15u;
            sum = (sum ^ sum >> 32 ^ word[1]) * 0x9e3779b97f4a7c15u;
        }
    }
    return sum;
}
