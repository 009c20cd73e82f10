/* init.c -- op_normal on the CPU: normal numbers as a function of (seed, stream, element) by
 * normal.h, for many pairs at a time so that the compiler can vectorise each step. */
#include "model/kernels/cpu/spans.h"
#include "model/kernels/normal.h"
#include "model/kernels/segment_rule.h"

typedef struct {
    Tensor x; /* flat */
    uint64_t seed;
    const Segment *part;
    int64_t tasks;
    double std;
} NormalJob;

enum { PAIRS = 256 };

/* Computes the draws a, b of pairs first .. first + n - 1, n <= PAIRS. */
static void draw_pairs(uint64_t seed, uint64_t stream, uint64_t first, int n, uint64_t *restrict a,
                       uint64_t *restrict b)
{
    uint32_t word[4][PAIRS];
    for (int i = 0; i < n; i++) {
        uint32_t out[4];
        normal_words(seed, stream, first + (uint64_t)i, out);
        word[0][i] = out[0];
        word[1][i] = out[1];
        word[2][i] = out[2];
        word[3][i] = out[3];
    }
    for (int i = 0; i < n; i++)
        a[i] = (uint64_t)word[1][i] << 32 | word[0][i];
    for (int i = 0; i < n; i++)
        b[i] = (uint64_t)word[3][i] << 32 | word[2][i];
}

/* For each i < n, sets z[2i] and z[2i + 1] to std times the two normal numbers of the draws a[i],
 * b[i] (normal.h). */
static void box_muller(double *restrict z, const uint64_t *restrict a, const uint64_t *restrict b,
                       int n, double std)
{
    double even[PAIRS], odd[PAIRS];
    for (int i = 0; i < n; i++) {
        NormalPair pair = normal_pair(a[i], b[i]);
        even[i] = std * pair.even;
        odd[i] = std * pair.odd;
    }
    for (int i = 0; i < n; i++) {
        z[2 * i] = even[i];
        z[2 * i + 1] = odd[i];
    }
}

/* Stores n doubles in the given type; 16-bit types are rounded through f32. */
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
    const NormalJob *job = context;
    const Segment *part = job->part;
    int64_t n = tensor_count(job->x), size = (int64_t)dtype_size(job->x.dtype);
    int64_t at = pool_cut(n, job->tasks, 2 * PAIRS, task),
            end = pool_cut(n, job->tasks, 2 * PAIRS, task + 1);
    uint64_t a[PAIRS], b[PAIRS];
    double z[2 * PAIRS];
    (void)worker;
    while (at < end) {
        /* A run of elements may begin in the middle of a pair. The whole pair is then drawn and its
         * first number skipped, so an element's value does not depend on where a run begins.
         * Elements are consecutive within a row of this rank's part, or in the whole part if it has
         * whole rows. */
        int64_t element = segment_element(part, at), skip = element & 1, run = 2 * PAIRS - skip;
        if (part->cols != part->whole_cols) {
            int64_t row_rest = part->cols - (at - part->start) % part->cols;
            if (row_rest < run) run = row_rest;
        }
        if (run > end - at) run = end - at;
        int pairs = (int)(skip + run + 1) / 2;
        draw_pairs(job->seed, part->stream, (uint64_t)element >> 1, pairs, a, b);
        box_muller(z, a, b, pairs, job->std);
        doubles_store(job->x.dtype, (char *)job->x.data + at * size, z + skip, run);
        at += run;
    }
}

void CPU(normal)(Device *dev, Tensor x, uint64_t seed, const Segment *part, double std)
{
    NormalJob job = {.x = tensor_flat(x), .seed = seed, .part = part, .std = std};
    job.tasks = tasks_for(dev, 16 * tensor_count(x));
    pool_run(dev->pool, job.tasks, normal_body, &job);
}
