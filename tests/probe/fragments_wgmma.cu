/* fragments_wgmma.cu -- determines which element each register of a wgmma m64nNk16 accumulator
 * holds, and which bytes of shared memory the instruction reads as which element of A and B, for
 * each swizzle mode, K-major and MN-major.
 *
 * Shared memory holds its own index, split over two runs because bf16 is exact only up to 256. The
 * other operand is the identity, K-major without swizzle; all other layouts are measured relative
 * to that one. Verdicts compare with the layouts in the PTX manual.
 *
 * Maps are printed of D with N = 64 and 128, of A K-major and B MN-major, of B K-major with the
 * 128-byte swizzle, and of whatever differs: the lines of a warp, map.wgmma.d.nN.threadT =
 * rR:(row,column)..., and lines of the first elements of 16-byte chunks,
 * map.wgmma.OPERAND.MAJOR.SWIZZLE.LINE = POSITION:BYTE... They begin with the first warp or, for
 * K-major, the first 16 rows, or with those in which the first difference is. */
#include "tests/probe/wgmma.h"

enum { M = 64, K = 16, MAX_N = 256 };

/* The layout of an operand's image: the number of 16-byte chunks per swizzled line (1: no swizzle),
 * the byte offsets in the descriptor, and the bytes by which the start is advanced along K. */
typedef struct {
    uint32_t chunks;
    bool mn_major;
    uint32_t leading, stride, start;
} Layout;

typedef struct {
    uint16_t *a, *b;
    float *out;
} Session; /* the arrays are on the device */

typedef cudaError_t (*Run)(const Session *, uint64_t, uint64_t);

template <int N, int TA, int TB>
static cudaError_t run(const Session *s, uint64_t desc_a, uint64_t desc_b)
{
    wg_kernel<N, TA, TB><<<1, WG_THREADS, WG_SPACE>>>(s->out, s->a, s->b, desc_a, desc_b);
    return cudaGetLastError();
}

/* ---- the documented layouts ------------------------------------------------------------------ */

/* Returns the row and column of accumulator `i` of a thread. */
static void d_place(int thread, int i, int *row, int *col)
{
    *row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    *col = i / 4 * 8 + thread % 4 * 2 + i % 2;
}

/* Returns the dense layout of `extent` rows (or columns) in lines of `chunks` chunks. */
static Layout layout_dense(uint32_t chunks, bool mn_major, uint32_t extent)
{
    Layout l = {chunks, mn_major, 16, 128 * chunks, 0};
    if (chunks == 1) {
        l.leading = mn_major ? 16 * extent : 128;
        l.stride = mn_major ? 128 : 256;
    } else if (mn_major) {
        l.leading = 256 * chunks;
    }
    return l;
}

/* Returns the byte of the image that holds element (mn, k). Without swizzle, core matrices of 8 x
 * 16 bytes are `stride` bytes apart along mn and `leading` bytes apart along k. With swizzle, atoms
 * of 8 lines are `stride` bytes apart in the direction across the lines; if lines run along mn,
 * atoms are also `leading` bytes apart along mn. */
static uint32_t layout_byte(Layout l, uint32_t mn, uint32_t k)
{
    uint32_t along = l.mn_major ? mn : k, across = l.mn_major ? k : mn, line = 16 * l.chunks;
    if (l.chunks == 1)
        return along % 8 * 2 + across % 8 * 16 + mn / 8 * l.stride + k / 8 * l.leading;
    uint32_t at = along % (8 * l.chunks) * 2 + across % 8 * line + across / 8 * l.stride +
                  along / (8 * l.chunks) * l.leading + l.start;
    return at ^ (at >> 7 & (l.chunks - 1)) << 4;
}

static uint64_t layout_descriptor(Layout l)
{
    const uint64_t mode = l.chunks == 1 ? 0 : l.chunks == 8 ? 1 : l.chunks == 4 ? 2 : 3;
    return (uint64_t)(l.start >> 4) | (uint64_t)(l.leading >> 4) << 16 |
           (uint64_t)(l.stride >> 4) << 32 | mode << 62;
}

/* ---- running a product ----------------------------------------------------------------------- */

static uint16_t bf16_of(int value)
{
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* These fill an image. image_identity: element (mn, k) is 1 if k == mn. image_first: elements with
 * k = 0 are 1 or, if `coded`, mn. All other elements are 0. */
static void image_identity(uint16_t *image)
{
    memset(image, 0, sizeof *image * WG_IMAGE);
    for (uint32_t k = 0; k < K; k++)
        image[layout_byte(layout_dense(1, false, K), k, k) / 2] = bf16_of(1);
}

static void image_first(uint16_t *image, uint32_t extent, bool coded)
{
    memset(image, 0, sizeof *image * WG_IMAGE);
    for (uint32_t mn = 0; mn < extent; mn++)
        image[layout_byte(layout_dense(1, false, extent), mn, 0) / 2] =
            bf16_of(coded ? (int)mn : 1);
}

/* Runs the product of two images. Writes D row-major (64 x n), using the documented accumulator
 * layout; or, if `raw`, in the order in which threads hold it. */
static cudaError_t product(const Session *s, Run f, int n, const uint16_t *a, Layout layout_a,
                           const uint16_t *b, Layout layout_b, float *d, bool raw)
{
    static float out[M * MAX_N];
    const size_t bytes = sizeof *a * WG_IMAGE;
    cudaError_t code = cudaMemcpy(s->a, a, bytes, cudaMemcpyHostToDevice);
    if (code == cudaSuccess) code = cudaMemcpy(s->b, b, bytes, cudaMemcpyHostToDevice);
    if (code == cudaSuccess) code = f(s, layout_descriptor(layout_a), layout_descriptor(layout_b));
    if (code == cudaSuccess)
        code = cudaMemcpy(out, s->out, sizeof *out * (size_t)(M * n), cudaMemcpyDeviceToHost);
    for (int thread = 0; thread < WG_THREADS; thread++) {
        for (int i = 0; i < n / 2; i++) {
            int row, col;
            d_place(thread, i, &row, &col);
            d[raw ? thread * (n / 2) + i : row * n + col] = out[thread * (n / 2) + i];
        }
    }
    return code;
}

static void print_failure(const char *name, cudaError_t code)
{
    probe_word(name, probe_name("failed: %s", cudaGetErrorString(code)));
}

/* ---- the accumulators ------------------------------------------------------------------------ */

/* Prints the registers of `thread`'s warp. */
static void print_accumulators(const float *row, const float *col, int n, int thread)
{
    const int from = thread / 32 * 32;
    for (thread = from; thread < from + 32; thread++) {
        static char text[32 * MAX_N / 2]; /* enough for any integers */
        int at = 0;
        for (int i = 0; i < n / 2; i++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%sr%d:(%d,%d)", i ? " " : "", i,
                           (int)row[thread * (n / 2) + i], (int)col[thread * (n / 2) + i]);
        probe_word(probe_name("map.wgmma.d.n%d.thread%d", n, thread), text);
    }
}

template <int N> static void ask_accumulators(const Session *s)
{
    static uint16_t a[WG_IMAGE], b[WG_IMAGE];
    static float row[M * N], col[M * N];
    const Layout layout_a = layout_dense(1, false, M), layout_b = layout_dense(1, false, N);
    const char *name = probe_name("wgmma.d.m64n%dk16.expected", N);
    int differing = 0, first = 0;
    image_first(a, M, true);
    image_first(b, N, false);
    cudaError_t code = product(s, run<N, 0, 0>, N, a, layout_a, b, layout_b, row, true);
    image_first(a, M, false);
    image_first(b, N, true);
    if (code == cudaSuccess)
        code = product(s, run<N, 0, 0>, N, a, layout_a, b, layout_b, col, true);
    if (code != cudaSuccess) {
        print_failure(name, code);
        return;
    }
    for (int thread = 0; thread < WG_THREADS; thread++) {
        for (int i = 0; i < N / 2; i++) {
            int r, c;
            d_place(thread, i, &r, &c);
            const int wrong =
                (row[thread * (N / 2) + i] != (float)r) + (col[thread * (N / 2) + i] != (float)c);
            if (wrong && !differing) first = thread;
            differing += wrong;
        }
    }
    probe_word(name, differing ? probe_name("differs in %d coordinates", differing) : "match");
    if (differing || N == 64 || N == 128) print_accumulators(row, col, N, first);
}

/* ---- the operands ---------------------------------------------------------------------------- */

/* Sets bytes[mn * K + k] to the byte of the image that was read as element (mn, k) of A (64 rows)
 * or B (128 columns). */
static cudaError_t operand_read(const Session *s, bool is_b, Layout layout, uint32_t *bytes)
{
    static uint16_t image[WG_IMAGE], other[WG_IMAGE];
    static float d[2][M * 128];
    const Layout plain = layout_dense(1, false, K);
    const Run f = is_b ? (layout.mn_major ? run<128, 0, 1> : run<128, 0, 0>)
                       : (layout.mn_major ? run<16, 1, 0> : run<16, 0, 0>);
    cudaError_t code = cudaSuccess;
    image_identity(other);
    for (int high = 0; high < 2 && code == cudaSuccess; high++) {
        for (int i = 0; i < WG_IMAGE; i++)
            image[i] = bf16_of(high ? i >> 7 : i & 127);
        code = is_b ? product(s, f, 128, other, plain, image, layout, d[high], false)
                    : product(s, f, 16, image, layout, other, plain, d[high], false);
    }
    for (int mn = 0; mn < (is_b ? 128 : M); mn++) {
        for (int k = 0; k < K; k++) {
            int at = is_b ? k * 128 + mn : mn * 16 + k;
            bytes[mn * K + k] = 2 * ((uint32_t)d[1][at] << 7 | (uint32_t)d[0][at]);
        }
    }
    return code;
}

/* Returns how many elements differ. Sets *first to the mn of the first one. */
static int count_differing(const uint32_t *bytes, int extent, Layout layout, int *first)
{
    int differing = 0;
    for (int mn = 0; mn < extent; mn++)
        for (int k = 0; k < K; k++)
            if (bytes[mn * K + k] != layout_byte(layout, (uint32_t)mn, (uint32_t)k) &&
                differing++ == 0)
                *first = mn;
    return differing;
}

/* Prints 16 lines along the contiguous direction: for K-major the rows around mn, for MN-major k 0
 * to 15. */
static void print_operand(const char *name, const uint32_t *bytes, int extent, bool mn_major,
                          int mn)
{
    const int from = mn_major ? 0 : mn / 16 * 16;
    for (int line = from; line < from + 16; line++) {
        char text[512];
        int at = 0;
        for (int i = 0; i < (mn_major ? extent : K); i += 8)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%s%d:%u", i ? " " : "",
                           mn_major ? "mn" : "k", i, bytes[mn_major ? i * K + line : line * K + i]);
        probe_word(probe_name("map.%s.%s%d", name, mn_major ? "k" : "mn", line), text);
    }
}

static void ask_operand(const Session *s, bool is_b, bool mn_major, uint32_t chunks)
{
    static uint32_t bytes[128 * K];
    const int extent = is_b ? 128 : M;
    char name[64], swizzle[16] = "none"; /* not by probe_name, because it reuses its buffers */
    const uint32_t steps = mn_major || chunks == 1 ? 1 : chunks / 2;
    if (chunks > 1) snprintf(swizzle, sizeof swizzle, "sw%u", 16 * chunks);
    for (uint32_t step = 0; step < steps; step++) {
        Layout layout = layout_dense(chunks, mn_major, (uint32_t)extent), swapped;
        int first = 0, ignored;
        layout.start = 32 * step;
        swapped = layout;
        swapped.leading = layout.stride;
        swapped.stride = layout.leading;
        snprintf(name, sizeof name, "wgmma.%c.%s.%s%s", is_b ? 'b' : 'a', mn_major ? "mn" : "k",
                 swizzle, step ? probe_name(".start_plus_%u", 32 * step) : "");
        cudaError_t code = operand_read(s, is_b, layout, bytes);
        if (code != cudaSuccess) {
            print_failure(probe_name("%s.expected", name), code);
            continue;
        }
        int differing = count_differing(bytes, extent, layout, &first);
        probe_word(probe_name("%s.expected", name),
                   differing == 0 ? "match"
                   : count_differing(bytes, extent, swapped, &ignored) == 0
                       ? "match with leading and stride offset exchanged"
                       : probe_name("differs in %d elements", differing));
        if (differing || (step == 0 && (is_b == mn_major || (is_b && chunks == 8))))
            print_operand(name, bytes, extent, mn_major, first);
    }
}

int main(void)
{
    Session s;
    probe_device();
    CUDA_OK(cudaMalloc(&s.a, sizeof *s.a * WG_IMAGE));
    CUDA_OK(cudaMalloc(&s.b, sizeof *s.b * WG_IMAGE));
    CUDA_OK(cudaMalloc(&s.out, sizeof *s.out * M * MAX_N));
    ask_accumulators<8>(&s);
    ask_accumulators<16>(&s);
    ask_accumulators<32>(&s);
    ask_accumulators<64>(&s);
    ask_accumulators<128>(&s);
    ask_accumulators<256>(&s);
    for (int is_b = 0; is_b < 2; is_b++)
        for (int mn_major = 0; mn_major < 2; mn_major++)
            for (uint32_t chunks = 1; chunks <= 8; chunks *= 2)
                ask_operand(&s, is_b, mn_major, chunks);
    return 0;
}
