/* fragments.cu -- determines which matrix element each register of each lane holds for mma.sync
 * m16n8k16 (bf16, f16) and m16n8k8 (TF32). It sets one register slot to 1 and all others to 0,
 * multiplies by an operand whose elements encode their coordinates, and reads from the product
 * where the slot was. Elements of A and B are identified only by rows and columns of D, so this
 * tests whether the three layouts in the PTX manual agree with each other; fragments_matrix.cu
 * relates them to memory.
 *
 * Prints lines `map.NAME.laneL = rR:(row,column)...`; `NAME.expected` compares them with the
 * manual. */
#include "tests/probe/fragments.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { ROWS = 16, COLUMNS = 8, D_SLOTS = 4 };

typedef enum { BF16, F16, TF32, TYPES } Type;

static const char *const NAMES[TYPES] = {"m16n8k16.bf16", "m16n8k16.f16", "m16n8k8.tf32"};

typedef struct {
    uint32_t a[LANES][4], b[LANES][2];
} Operands;

typedef struct {
    float d[LANES][D_SLOTS];
} Product;

/* ---- mma.sync -------------------------------------------------------------------------------- */

template <int TYPE> static __global__ void mma_kernel(Product *out, const Operands *in)
{
    const int lane = (int)threadIdx.x;
    const uint32_t *a = in[blockIdx.x].a[lane], *b = in[blockIdx.x].b[lane];
    float d[D_SLOTS] = {0, 0, 0, 0};
#define MMA(shape)                                                                                 \
    asm volatile("mma.sync.aligned." shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "              \
                 "{%0,%1,%2,%3};"                                                                  \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if (TYPE == BF16) {
        MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    } else if (TYPE == F16) {
        MMA("m16n8k16.row.col.f32.f16.f16.f32");
    } else {
        MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
    }
    for (int i = 0; i < D_SLOTS; i++)
        out[blockIdx.x].d[lane][i] = d[i];
}

/* Computes `runs` products, each from its own register contents. */
static cudaError_t mma_run(Type type, const Operands *in, Product *out, int runs)
{
    Operands *d_in;
    Product *d_out;
    CUDA_OK(cudaMalloc(&d_in, sizeof *in * (size_t)runs));
    CUDA_OK(cudaMalloc(&d_out, sizeof *out * (size_t)runs));
    CUDA_OK(cudaMemcpy(d_in, in, sizeof *in * (size_t)runs, cudaMemcpyHostToDevice));
    switch (type) {
    case BF16: mma_kernel<BF16><<<runs, LANES>>>(d_out, d_in); break;
    case F16: mma_kernel<F16><<<runs, LANES>>>(d_out, d_in); break;
    default: mma_kernel<TF32><<<runs, LANES>>>(d_out, d_in); break;
    }
    cudaError_t code = cudaGetLastError();
    if (code == cudaSuccess)
        code = cudaMemcpy(out, d_out, sizeof *out * (size_t)runs, cudaMemcpyDeviceToHost);
    CUDA_OK(cudaFree(d_in));
    CUDA_OK(cudaFree(d_out));
    return code;
}

static int per_register(Type type)
{
    return type == TF32 ? 1 : 2;
}

/* These give the manual's layouts: the element (row, col) of A (16 x K), B (K x 8) and D (16 x 8)
 * in slot `i` of `lane`. Slots are counted through a lane's registers, low half first. */
static Place a_place(Type type, int lane, int i)
{
    int group = lane / 4, quad = lane % 4;
    if (type == TF32) return Place{group + i % 2 * 8, quad + i / 2 * 4};
    return Place{group + i / 2 % 2 * 8, quad * 2 + i % 2 + i / 4 * 8};
}

static Place b_place(Type type, int lane, int i)
{
    int group = lane / 4, quad = lane % 4;
    if (type == TF32) return Place{quad + i * 4, group};
    return Place{quad * 2 + i % 2 + i / 2 * 8, group};
}

static Place d_place(int lane, int i)
{
    return Place{lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

/* Sets a slot to a small integer, which is exact in all three types. */
static void slot_set(Type type, uint32_t *registers, int slot, int value)
{
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (type == TF32) {
        registers[slot] = bits;
        return;
    }
    if (type == F16) {
        __half_raw half = __float2half_rn(x);
        bits = half.x;
    } else {
        bits >>= 16;
    }
    int shift = slot % 2 * 16;
    registers[slot / 2] = (registers[slot / 2] & ~(0xffffu << shift)) | bits << shift;
}

/* What the elements of an operand are: 1, row + 1, or column + 1. With FIRST_, only elements with k
 * = 0 are set and the others are 0. */
typedef enum { ONES, ROW, COLUMN, FIRST_ONES, FIRST_ROW, FIRST_COLUMN } Content;

static int content_value(Content content, Place p, int k)
{
    if (content >= FIRST_ONES && k != 0) return 0;
    if (content == ROW || content == FIRST_ROW) return p.row + 1;
    return content == COLUMN || content == FIRST_COLUMN ? p.col + 1 : 1;
}

static void operands_fill(Type type, Operands *o, Content a, Content b)
{
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 4 * per_register(type); i++) {
            Place p = a_place(type, lane, i);
            slot_set(type, o->a[lane], i, content_value(a, p, p.col));
        }
        for (int i = 0; i < 2 * per_register(type); i++) {
            Place p = b_place(type, lane, i);
            slot_set(type, o->b[lane], i, content_value(b, p, p.row));
        }
    }
}

/* Returns the position of the single 1 in an operand. If it was in A, the other operand holds k +
 * 1, so D is k + 1 in one row and 0 elsewhere; if it was in B, in one column. For any other D,
 * returns row -1. */
static Place lone_place(const Product *p, bool of_a)
{
    float d[ROWS][COLUMNS];
    int line = -1;
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < D_SLOTS; i++)
            d[d_place(lane, i).row][d_place(lane, i).col] = p->d[lane][i];
    for (int k = 0; k < (of_a ? ROWS : COLUMNS) && line < 0; k++)
        if (of_a ? d[k][0] != 0 : d[0][k] != 0) line = k;
    if (line < 0) return Place{-1, -1};
    float value = of_a ? d[line][0] : d[0][line];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            if (d[r][c] != ((of_a ? r : c) == line ? value : 0.0f)) return Place{-1, -1};
    return of_a ? Place{line, (int)value - 1} : Place{(int)value - 1, line};
}

/* Fills `in` for all runs: the rows of D, the columns of D, each slot of A by itself, each slot of
 * B by itself. */
static void mma_prepare(Type type, Operands *in)
{
    int a_slots = 4 * per_register(type), b_slots = 2 * per_register(type);
    operands_fill(type, in, FIRST_ROW, FIRST_ONES);
    operands_fill(type, in + 1, FIRST_ONES, FIRST_COLUMN);
    in += 2;
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < a_slots; i++, in++) {
            operands_fill(type, in, ONES, ROW);
            memset(in->a, 0, sizeof in->a);
            slot_set(type, in->a[lane], i, 1);
        }
    }
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < b_slots; i++, in++) {
            operands_fill(type, in, COLUMN, ONES);
            memset(in->b, 0, sizeof in->b);
            slot_set(type, in->b[lane], i, 1);
        }
    }
}

/* Computes the maps that were found (found[0..2]: D, A, B) and those of the manual. */
static void mma_maps(Type type, const Product *out, Map found[3], Map expected[3])
{
    const int per = per_register(type), slots[3] = {D_SLOTS, 4 * per, 2 * per};
    const Product *lone[3] = {out, out + 2, out + 2 + LANES * slots[1]};
    for (int m = 0; m < 3; m++) {
        found[m].slots = expected[m].slots = slots[m];
        found[m].per_register = expected[m].per_register = m == 0 ? 1 : per;
        for (int lane = 0; lane < LANES; lane++) {
            for (int i = 0; i < slots[m]; i++) {
                if (m == 0) {
                    found[m].at[lane][i] =
                        Place{(int)out[0].d[lane][i] - 1, (int)out[1].d[lane][i] - 1};
                    expected[m].at[lane][i] = d_place(lane, i);
                } else {
                    found[m].at[lane][i] = lone_place(lone[m] + lane * slots[m] + i, m == 1);
                    expected[m].at[lane][i] =
                        m == 1 ? a_place(type, lane, i) : b_place(type, lane, i);
                }
            }
        }
    }
}

/* Prints maps and verdicts for bf16 and TF32. For f16, whose layout should equal that of bf16,
 * prints only verdicts. */
static void ask_mma(Type type)
{
    const int runs = 2 + LANES * 6 * per_register(type);
    static Operands in[2 + LANES * 12];
    static Product out[2 + LANES * 12];
    static Map found[3], expected[3];
    const char *const parts[3] = {"d", "a", "b"};
    memset(in, 0, sizeof in);
    mma_prepare(type, in);
    cudaError_t code = mma_run(type, in, out, runs);
    if (code != cudaSuccess) {
        probe_word(probe_name("mma.%s.d.expected", NAMES[type]),
                   probe_name("failed: %s", cudaGetErrorString(code)));
        return;
    }
    mma_maps(type, out, found, expected);
    for (int m = 0; m < 3; m++) {
        const char *name = probe_name("mma.%s.%s", NAMES[type], parts[m]);
        map_print_verdict(name, found + m, expected + m);
        if (type != F16) map_print(name, found + m);
    }
}

/* Tests how the instruction treats the 13 low bits of an f32 that TF32 lacks, by computing (1 +
 * 2^-11 + 2^-12) x 1. */
static void ask_tf32_rounding(void)
{
    static Operands in;
    static Product out;
    memset(&in, 0, sizeof in);
    in.a[0][0] = 0x3f801800u;
    slot_set(TF32, in.b[0], 0, 1);
    cudaError_t code = mma_run(TF32, &in, &out, 1);
    float d = out.d[0][0];
    probe_word("mma.m16n8k8.tf32.low_13_bits", code != cudaSuccess    ? cudaGetErrorString(code)
                                               : d == 1.0f            ? "dropped"
                                               : d == 1.0f + 0x1p-10f ? "rounded"
                                               : d == 1.0f + 0x1p-11f + 0x1p-12f ? "kept"
                                                                                 : "other");
}

int main(void)
{
    probe_device();
    for (int type = 0; type < TYPES; type++)
        ask_mma((Type)type);
    ask_tf32_rounding();
    return 0;
}
