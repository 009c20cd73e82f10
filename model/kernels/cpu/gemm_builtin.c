/* gemm_builtin.c -- the built-in matrix multiplication, for machines without OpenBLAS. It is
 * blocked for the caches and packs its operands; its inner kernel keeps a block of c in vector
 * registers (Goto, van de Geijn, doi:10.1145/1356052.1356053).
 *
 * The vector width and the register block depend on the level's compiler flags: 14 x 2 vectors fill
 * the 32 registers of AVX-512, 6 x 2 the 16 registers of AVX2 and SSE2. */
#include "model/kernels/cpu/gemm.h"
#include "model/kernels/cpu/vectors.h"

/* Lets the compiler use fused multiply-adds if the CPU level has them, which -std=c11 alone would
 * not. */
#pragma GCC optimize("fp-contract=fast")

enum {
    MR = VECTOR_BYTES == 64 ? 14 : 6, /* rows of the register block */
    NR = 2 * LANES,                   /* columns of the register block */
    KC = 384,                         /* depth of a packed block */
    MC = 12 * MR,                     /* rows of a packed block of a: MC x KC stays in L2 */
    NC = 1920, /* columns of a packed block of b, which stays in L3; a multiple of every NR */
};

_Static_assert(NC % NR == 0, "packed b is whole panels");
_Static_assert(((size_t)MC * KC + (size_t)NC * KC + 64) * sizeof(real) <= GEMM_SCRATCH,
               "scratch holds both packs");

/* Packs n <= width columns of `from` (depth x n, rows ld apart): element p of column r goes to to[p
 * * width + r]. */
static inline void columns_pack(real *restrict to, const real *restrict from, int64_t ld, int64_t n,
                                int64_t depth, int width)
{
    if (n == width) {
        /* A whole panel of columns: rows are copied unchanged. Because width is a constant after
         * inlining, the compiler uses a few vector moves. */
        for (int64_t p = 0; p < depth; p++)
            memcpy(to + p * width, from + p * ld, (size_t)width * sizeof *to);
        return;
    }
    for (int64_t p = 0; p < depth; p++)
        for (int64_t r = 0; r < width; r++)
            to[p * width + r] = from[p * ld + (r < n ? r : n - 1)];
}

/* Packs lines [0, lines) of f (lines x depth) into panels of `width` lines. A line is a row of a or
 * a column of b. Each panel is depth-major: panel[p][line]; elements after the last line are
 * undefined. Writes up to one vector past the end. */
static inline __attribute__((always_inline)) void
lines_pack(real *restrict to, Factor f, int64_t lines, int64_t depth, int width)
{
    for (int64_t r0 = 0; r0 < lines; r0 += width, to += width * depth) {
        int64_t n = lines - r0 < width ? lines - r0 : width;
        if (f.transposed) {
            columns_pack(to, f.at + r0, f.ld, n, depth, width);
            continue;
        }
        /* Packs the last vector of lines first: at depth p it may extend past the panel's width,
         * into the first elements of depth p + 1, which a later iteration writes. */
        for (int64_t r = (n - 1) / LANES * LANES; r >= 0; r -= LANES)
            rows_pack(to + r, f.at + (r0 + r) * f.ld, f.ld, n - r < LANES ? n - r : LANES, depth,
                      width);
    }
}

/* Returns the part of a factor that starts at line `line` and depth `p`. */
static Factor factor_at(Factor f, int64_t line, int64_t p)
{
    f.at += f.transposed ? p * f.ld + line : line * f.ld + p;
    return f;
}

/* A block of b. If neighbouring columns of b are adjacent in memory, the first `direct` columns may
 * be read in place, because packing them would cost more than it saves. The other columns are
 * packed. */
typedef struct {
    const real *stored, *packed;
    int64_t ld, direct;
} Panels;

/* One panel; element (p, column) is at[p * step + column]. */
typedef struct {
    const real *at;
    int64_t step;
} Panel;

static inline Panel panel_at(const Panels *x, int64_t column, int64_t depth)
{
    if (column < x->direct) return (Panel){.at = x->stored + column, .step = x->ld};
    return (Panel){.at = x->packed + (column - x->direct) * depth, .step = NR};
}

/* Prepares the panels of a block of b; f's lines are the columns of the block. If the stored rows
 * are a multiple of 2 KiB apart, all columns are packed, because such rows share few cache sets and
 * evict each other. */
static Panels panels_make(Factor f, int64_t columns, int64_t depth, real *packed)
{
    Panels x = {.stored = f.at, .packed = packed, .ld = f.ld};
    if (f.transposed && f.ld * (int64_t)sizeof(real) % 2048 != 0) x.direct = columns / NR * NR;
    if (x.direct < columns)
        lines_pack(packed, factor_at(f, x.direct, 0), columns - x.direct, depth, NR);
    return x;
}

/* Computes c (rows, cols) = alpha a b + beta c for one packed panel of a and one of b, of which the
 * first `rows` <= MR rows and `cols` <= NR columns are used. `held`, a constant >= rows, is the
 * number of rows kept in registers. */
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
    /* At the borders of c the whole register block is written to a copy, so that the loop over
     * depth needs no conditions and nothing outside c is written. */
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

/* Multiplies one packed block of a with one block of b. The last rows use a smaller register block,
 * with an even number of rows. */
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
            /* The number of rows must be a constant so that the sums stay in registers. Using only
             * even numbers halves the code and wastes at most one row. */
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
    /* The loops have Goto's order: a block of b for the third-level cache, blocks of a for the
     * second, the panels of a register block for the first. Each p but the first adds to the
     * results of the previous ones in c. */
    int64_t parts = (k + KC - 1) / KC; /* parts have nearly equal depths */
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
