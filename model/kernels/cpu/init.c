/* init.c -- normal numbers as a pure function of (seed, stream, element): the same bits on every
 * level and device.
 *
 * Elements 2p and 2p + 1 come from the one Philox block with counter (p low, p high, stream low,
 * stream high) and key (seed low, seed high): words 1:0 are the 64-bit draw a, words 3:2 the draw
 * b. u = 1 - (a >> 12) / 2^52 in (0, 1], v = (b >> 12) / 2^52 in [0, 1), radius = sqrt(-2 ln u);
 * element 2p is radius cos(2 pi v), 2p + 1 radius sin(2 pi v).
 *
 * All in double from + - x / and the square root, each rounded once: -std=c11 keeps gcc from
 * contracting, and a test with golden bits holds every level to it. */
#include "model/core/rng.h"
#include "model/kernels/cpu/spans.h"
#include "model/kernels/cpu/vmath.h"

typedef struct {
    Tensor x; /* flat */
    uint64_t seed, stream;
    int64_t first, tasks;
    double std;
} Job;

enum { PAIRS = 256 };

/* The draws a, b of pairs first .. first + PAIRS. */
static void draw_pairs(uint64_t seed, uint64_t stream, uint64_t first, uint64_t *restrict a,
                       uint64_t *restrict b)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4][PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        uint64_t p = first + (uint64_t)i;
        uint32_t ctr[4] = {(uint32_t)p, (uint32_t)(p >> 32), (uint32_t)stream,
                           (uint32_t)(stream >> 32)},
                 out[4];
        philox4x32(ctr, key, out);
        word[0][i] = out[0];
        word[1][i] = out[1];
        word[2][i] = out[2];
        word[3][i] = out[3];
    }
    for (int i = 0; i < PAIRS; i++)
        a[i] = (uint64_t)word[1][i] << 32 | word[0][i];
    for (int i = 0; i < PAIRS; i++)
        b[i] = (uint64_t)word[3][i] << 32 | word[2][i];
}

/* The 52 high bits as a number in [1, 2). */
static inline double one_to_two(uint64_t bits)
{
    return vmath_from_f64(bits >> 12 | 0x3ff0000000000000u);
}

/* sin t and cos t for |t| <= pi / 4 by Taylor's series; the first terms left out are below 5e-17
 * and 3e-18. */
static inline double sine(double t, double t2)
{
    double p = -1.0 / 1307674368000.0;
    p = p * t2 + 1.0 / 6227020800.0;
    p = p * t2 - 1.0 / 39916800.0;
    p = p * t2 + 1.0 / 362880.0;
    p = p * t2 - 1.0 / 5040.0;
    p = p * t2 + 1.0 / 120.0;
    p = p * t2 - 1.0 / 6.0;
    return t + t * (t2 * p);
}

static inline double cosine(double t2)
{
    double p = 1.0 / 20922789888000.0;
    p = p * t2 - 1.0 / 87178291200.0;
    p = p * t2 + 1.0 / 479001600.0;
    p = p * t2 - 1.0 / 3628800.0;
    p = p * t2 + 1.0 / 40320.0;
    p = p * t2 - 1.0 / 720.0;
    p = p * t2 + 1.0 / 24.0;
    p = p * t2 - 0.5;
    return 1.0 + t2 * p;
}

/* z[2i], z[2i + 1] = std times the two normals of draws a[i], b[i]. */
static void box_muller(double *restrict z, const uint64_t *restrict a, const uint64_t *restrict b,
                       double std)
{
    double even[PAIRS], odd[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        double radius = real_sqrt(-2.0 * log_f64(2.0 - one_to_two(a[i])));
        double turns = 4.0 * (one_to_two(b[i]) - 1.0); /* quarter turns, exact */
        double shifted = turns + VMATH_ROUND_F64;
        double t = (turns - (shifted - VMATH_ROUND_F64)) * 0x1.921fb54442d18p+0, t2 = t * t;
        uint64_t quarter = vmath_bits_f64(shifted);
        uint64_t s = vmath_bits_f64(sine(t, t2)), c = vmath_bits_f64(cosine(t2));
        uint64_t swap =
            (s ^ c) & (0 - (quarter & 1)); /* an odd quarter exchanges sine and cosine */
        s = s ^ swap ^ ((quarter & 2) << 62);
        c = c ^ swap ^ (((quarter + 1) & 2) << 62);
        even[i] = std * (radius * vmath_from_f64(c));
        odd[i] = std * (radius * vmath_from_f64(s));
    }
    for (int i = 0; i < PAIRS; i++) {
        z[2 * i] = even[i];
        z[2 * i + 1] = odd[i];
    }
}

/* n doubles as storage; 16-bit types are rounded by way of f32. */
static void doubles_store(DType dtype, void *restrict to, const double *restrict from, int64_t n)
{
    if (dtype == F64) {
        memcpy(to, from, (size_t)n * sizeof(double));
    } else if (dtype == F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = (float)from[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            dtype_set(dtype, to, i, from[i]);
    }
}

static void normal_body(void *context, int64_t task, int worker)
{
    const Job *job = context;
    int64_t n = tensor_count(job->x), size = (int64_t)dtype_size(job->x.dtype);
    int64_t at = pool_cut(n, job->tasks, 2 * PAIRS, task),
            end = pool_cut(n, job->tasks, 2 * PAIRS, task + 1);
    uint64_t a[PAIRS], b[PAIRS];
    double z[2 * PAIRS];
    (void)worker;
    while (at < end) {
        int64_t skip = (job->first + at) & 1, run = 2 * PAIRS - skip;
        if (run > end - at) run = end - at;
        draw_pairs(job->seed, job->stream, (uint64_t)(job->first + at) >> 1, a, b);
        box_muller(z, a, b, job->std);
        doubles_store(job->x.dtype, (char *)job->x.data + at * size, z + skip, run);
        at += run;
    }
}

void CPU(normal)(Device *dev, Tensor x, uint64_t seed, uint64_t stream, int64_t first, double std)
{
    Job job = {.x = tensor_flat(x), .seed = seed, .stream = stream, .first = first, .std = std};
    job.tasks = tasks_for(dev, 16 * tensor_count(x));
    pool_run(dev->pool, job.tasks, normal_body, &job);
}
