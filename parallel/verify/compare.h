/* compare.h -- whether two captures of a step agree, within what rounding explains: the bounds to
 * which a grid is held beside a single rank. */
#ifndef PARALLEL_VERIFY_COMPARE_H
#define PARALLEL_VERIFY_COMPARE_H

#include "parallel/verify/capture.h"

/* By how much a grid's gradients differ because they travel in a type of 16 bits that is not that
 * in which they are kept, while a single rank's do not travel: {0} where there is no such type.
 *
 * An element is the sum of `addends` (one of each rank; where it is summed by micro-batch, of each
 * of these too), every one rounded once, in `sums` sums, every one rounded once: together at most
 * roundoff * (sum of |addend| + sum of |sum|). Addends are of one distribution, so that the mean
 * square of their sum is at least `addends` times theirs, which they reach when their signs are
 * random: the first sum is at most sqrt(addends) times, the second sqrt(sums) times the rms of what
 * is kept. Below the type's normal numbers a rounding has an absolute size. */
typedef struct {
    double relative; /* of a tensor's rms */
    double absolute; /* of an element times the loss scale */
} CompareWire;

CompareWire compare_wire(DType kept, DType wire, int64_t addends, int64_t sums);
/* The same of what so many tensor-parallel ranks add up between regions: each has rounded what it
 * adds to the storage type, and so is the sum, where a single rank rounds once. Nothing but in 16
 * bits. */
CompareWire compare_regions(DType storage, int64_t ranks);

/* What is added where sums are rounded at each addition, as NCCL's are, and not once: such a sum
 * over `ranks` ranks has ranks - 2 roundings more, of partial sums of at most 2, 3, ... ranks - 1
 * addends. As above one of j has sqrt(j / ranks) times the sum's rms, and the roundings of `sums`
 * of them sqrt(sums) times what they are of the kept sum's. Nothing but in 16 bits. */
CompareWire compare_additions(DType type, int64_t ranks, int64_t sums);
/* All of these of a config's grid: gradients that travel in another type, regions, and, where
 * `each` addition is rounded, what that adds to them and to gradients that are kept in 16 bits. */
CompareWire compare_grid(const Config *config, bool each);

/* Relative bounds. In f64 nothing but rounding is below 1e-12, and any wrong scale, sum or element
 * is above. */
typedef struct {
    double tolerance;        /* of the loss, the norm, gradients and weights */
    double lr;               /* how far an update moves a weight */
    bool gradients, weights; /* whether they are compared */
    CompareWire wire;
} CompareBounds;

/* The bounds of a dtype's first steps: f64 1e-12 throughout; f32 2e-5, with gradients in the first
 * step and no weights. Not for 16 bits, which compare_distance is for. */
CompareBounds compare_bounds(DType dtype, double lr, int64_t step);

/* What the comparisons so far have shown. Begins as {0}. */
typedef struct {
    double worst;    /* the largest deviation, in units of its scale, ... */
    char where[160]; /* ... and what deviates: "gradient of block.0.mlp.up.weight[17], step 2" */
    char difference[320]; /* the first beyond its bound: name, step, element, both values, bound */
    bool differs;
    int64_t
        skipped; /* the first step that both skipped, so that nothing of it was compared; or 0 */
    int64_t gradients; /* tensors of gradients that were compared */
} Comparison;

/* Adds the comparison of a step; false when something is beyond its bound, now or before.
 * Gradients: |difference| <= tolerance * max(rms of the tensor, 1e-6 of all), and never less than
 * 32 roundings of the rms of all, for some are zero in theory. Weights: tolerance * max(rms of the
 * tensor, lr).
 *
 * What travels rounded is added to that: to each tensor's rms difference wire.relative of its rms,
 * to each element's as much of the tensor's largest, to the norm as much of it, for each step once
 * more, because the weights have moved. To the loss, from the second step on, what the rounding of
 * the gradients g by d does through the updates so far: an update is lr * g / |g| or lr * g, so
 * that it moves by 2 lr d / |g|, and the loss by 2 lr |d|_1 <= 2 lr sqrt(n) |d|, or by lr |g| |d|.
 */
bool compare_captures(Comparison *c, const ParamTable *table, DType dtype, const Capture *got,
                      const Capture *want, const CompareBounds *bounds);
/* Distance of a 16-bit step's gradients from the same step's in f32, per tensor in units of its
 * rms, as a root mean square over tensors that are not zero in theory. */
double compare_distance(const ParamTable *table, const Capture *got, const Capture *exact);
/* Adds the comparison of a 16-bit grid: its distance from f32 is at most 1.5 times that of a single
 * rank, and what travels rounded. */
bool compare_distances(Comparison *c, const ParamTable *table, const Capture *got,
                       const Capture *single, const Capture *exact, const CompareWire *wire);

#endif
