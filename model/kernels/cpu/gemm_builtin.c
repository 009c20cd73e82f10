/* gemm_builtin.c -- our own matrix product, for machines without OpenBLAS: blocked for the caches
 * and packed, around a kernel that keeps a block of c in vector registers (Goto, van de Geijn,
 * doi:10.1145/1356052.1356053).
 *
 * Vector width and block follow from what the level's compiler flags allow: 14 x 2 vectors fill the
 * 32 registers of AVX-512, 6 x 2 the 16 of AVX2 and SSE2. */
#include "model/kernels/cpu/gemm.h"
#include "model/kernels/cpu/vectors.h"

/* Where the level has a fused multiply-add, use it (ISO mode keeps products and sums apart). */
#pragma GCC optimize("fp-contract=fast")

enum {
    MR = VECTOR_BYTES == 64 ? 14 : 6, /* rows of the register block */
    NR = 2 * LANES,                   /* and columns */
    KC = 384,                         /* depth of a packed block */
    MC = 12 * MR,                     /* rows of a packed a: MC x KC stays in L2 */
    NC = 1920,                        /* columns of a packed b, a multiple of every NR; in L3 */
};

_Static_assert(NC % NR == 0, "packed b is whole panels");
_Static_assert(((size_t)MC * KC + (size_t)NC * KC + 64) * sizeof(real) <= GEMM_SCRATCH,
               "scratch holds both packs");

/* n <= width columns of `from` (depth x n, ld apart) into to[p * width + r]. */
static inline void columns_pack(real *restrict to, const real *restrict from, int64_t ld, int64_t n,
                                int64_t depth, int width)
{
    if (n == width) {
        /* A whole panel of columns: rows are copied as they are, which the compiler turns into a
         * few vector moves, since width is a constant where this is inlined. */
        for (int64_t p = 0; p < depth; p++)
            memcpy(to + p * width, from + p * ld, (size_t)width * sizeof *to);
        return;
    }
    for (int64_t p = 0; p < depth; p++)
        for (int64_t r = 0; r < width; r++)
            to[p * width + r] = from[p * ld + (r < n ? r : n - 1)];
}

/* Packs lines (rows of a, columns of b) [0, lines) of f (lines x depth) into panels of `width` of
 * them, each panel depth-major: panel[p][line]; what is past the last line does not matter.
 * Writes up to a vector past the end. */
static inline __attribute__((always_inline)) void
lines_pack(real *restrict to, Factor f, int64_t lines, int64_t depth, int width)
{
    for (int64_t r0 = 0; r0 < lines; r0 += width, to += width * depth) {
        int64_t n = lines - r0 < width ? lines - r0 : width;
        if (f.transposed) {
            columns_pack(to, f.at + r0, f.ld, n, depth, width);
            continue;
        }
        /* Backwards: the last vector of a line may run into the next line of the panel, whose
         * beginning is written after it. */
        for (int64_t r = (n - 1) / LANES * LANES; r >= 0; r -= LANES)
            rows_pack(to + r, f.at + (r0 + r) * f.ld, f.ld, n - r < LANES ? n - r : LANES, depth,
                      width);
    }
}

/* The part of a factor that starts at [line, p] of what the product reads. */
static Factor factor_at(Factor f, int64_t line, int64_t p)
{
    f.at += f.transposed ? p * f.ld + line : line * f.ld + p;
    return f;
}

/* A block of b. Where its stored rows run along the panels, the first `direct` columns are read
 * where they are: packing them would cost more than it brings. The rest is packed. */
typedef struct {
    const real *stored, *packed;
    int64_t ld, direct;
} Panels;

/* One panel: element (p, column) at `at[p * step + column]`. */
typedef struct {
    const real *at;
    int64_t step;
} Panel;

static inline Panel panel_at(const Panels *x, int64_t column, int64_t depth)
{
    if (column < x->direct) return (Panel){.at = x->stored + column, .step = x->ld};
    return (Panel){.at = x->packed + (column - x->direct) * depth, .step = NR};
}

/* f: the block of b, its columns as lines. Rows a multiple of 2 KiB apart would fall on a few sets
 * of a cache and push each other out: those are packed. */
static Panels panels_make(Factor f, int64_t columns, int64_t depth, real *packed)
{
    Panels x = {.stored = f.at, .packed = packed, .ld = f.ld};
    if (f.transposed && f.ld * (int64_t)sizeof(real) % 2048 != 0) x.direct = columns / NR * NR;
    if (x.direct < columns)
        lines_pack(packed, factor_at(f, x.direct, 0), columns - x.direct, depth, NR);
    return x;
}

/* c (rows, cols) = alpha a b + beta c for one packed panel of a and one of b, of which `rows` <= MR
 * and `cols` <= NR count. `held` rows, a constant >= rows, are held in registers. */
static inline __attribute__((always_inline)) void
block_product(int held, int64_t depth, const real *restrict a, Panel panel, real alpha, real beta,
              real *restrict c, int64_t ldc, int64_t rows, int64_t cols)
{
    const real *restrict b = panel.at;
    Vector acc[MR][2] = {{{0}}};
    for (int64_t p = 0; p < depth; p++) {
        Vector b0 = *(const Vector *)b, b1 = *(const Vector *)(b + LANES);
#pragma GCC unroll 14
        for (int i = 0; i < held; i++) {
            acc[i][0] += a[i] * b0;
            acc[i][1] += a[i] * b1;
        }
        a += MR;
        b += panel.step;
    }
    /* At the borders of c the whole register block goes through a copy: the loop over depth
     * stays without conditions, and nothing beyond c is written. */
    real edge[MR * NR];
    bool whole = rows == held && cols == NR;
    real *to = whole ? c : edge;
    for (int64_t i = 0; !whole && i < rows; i++)
        memcpy(edge + i * NR, c + i * ldc, (size_t)cols * sizeof(real));
    int64_t ld = whole ? ldc : NR;
#pragma GCC unroll 14
    for (int i = 0; i < held; i++) {
        Vector *to0 = (Vector *)(to + i * ld), *to1 = (Vector *)(to + i * ld + LANES);
        *to0 = beta == 0 ? alpha * acc[i][0] : alpha * acc[i][0] + beta * *to0;
        *to1 = beta == 0 ? alpha * acc[i][1] : alpha * acc[i][1] + beta * *to1;
    }
    for (int64_t i = 0; !whole && i < rows; i++)
        memcpy(c + i * ldc, edge + i * NR, (size_t)cols * sizeof(real));
}

/* One packed a against one block of b. The last rows take a smaller register block, rounded up to
 * an even number. */
static void packed_product(int64_t rows, int64_t cols, int64_t depth, real alpha,
                           const real *packed_a, const Panels *b, real beta, real *c, int64_t ldc)
{
    for (int64_t j = 0; j < cols; j += NR) {
        int64_t nj = cols - j < NR ? cols - j : NR;
        Panel pb = panel_at(b, j, depth);
        for (int64_t i = 0; i < rows; i += MR) {
            int64_t ni = rows - i < MR ? rows - i : MR;
            const real *a = packed_a + i * depth;
            real *to = c + i * ldc + j;
            /* The number of rows held must be a constant for the sums to stay in registers. Even
             * numbers alone: half the code, and at most one row computed for nothing. */
            switch ((ni + 1) / 2 * 2) {
            case 2: block_product(2, depth, a, pb, alpha, beta, to, ldc, ni, nj); break;
            case 4: block_product(4, depth, a, pb, alpha, beta, to, ldc, ni, nj); break;
            case 6: block_product(6, depth, a, pb, alpha, beta, to, ldc, ni, nj); break;
            case 8:
                block_product(MR < 8 ? MR : 8, depth, a, pb, alpha, beta, to, ldc, ni, nj);
                break;
            case 10:
                block_product(MR < 10 ? MR : 10, depth, a, pb, alpha, beta, to, ldc, ni, nj);
                break;
            case 12:
                block_product(MR < 12 ? MR : 12, depth, a, pb, alpha, beta, to, ldc, ni, nj);
                break;
            default: block_product(MR, depth, a, pb, alpha, beta, to, ldc, ni, nj); break;
            }
        }
    }
}

void CPU(gemm_builtin)(int64_t m, int64_t n, int64_t k, real alpha, Factor a, Factor b, real beta,
                       real *c, int64_t ldc, void *scratch)
{
    real *packed_b = scratch, *packed_a = packed_b + (size_t)NC * KC + LANES;
    /* Loops in Goto's order: a block of b for the third-level cache, blocks of a for the second,
     * the panels of a register block for the first. Each p but the first adds to what the ones
     * before left in c. */
    int64_t parts = (k + KC - 1) / KC; /* of even depth */
    for (int64_t j = 0; j < n; j += NC) {
        int64_t nj = n - j < NC ? n - j : NC;
        for (int64_t p = 0, part = 0, np; p < k; p += np, part++) {
            np = pool_cut(k, parts, 16, part + 1) - p;
            Panels pb = panels_make(factor_at(factor_transposed(b), j, p), nj, np, packed_b);
            for (int64_t i = 0; i < m; i += MC) {
                int64_t ni = m - i < MC ? m - i : MC;
                lines_pack(packed_a, factor_at(a, i, p), ni, np, MR);
                packed_product(ni, nj, np, alpha, packed_a, &pb, p == 0 ? beta : (real)1,
                               c + i * ldc + j, ldc);
            }
        }
    }
}
