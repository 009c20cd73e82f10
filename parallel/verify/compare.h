/* compare.h -- compares the results of a step on a grid with those of a single rank, and derives
 * how far they may differ because of rounding. */
#ifndef PARALLEL_VERIFY_COMPARE_H
#define PARALLEL_VERIFY_COMPARE_H

#include "parallel/verify/capture.h"

/* How far a grid's gradients may differ from a single rank's because they are sent in another
 * 16-bit type than they are stored in; {0} if they are not. A single rank sends nothing.
 *
 * An element is the sum of `addends` numbers: one per rank, or one per rank and micro-batch if
 * each micro-batch is summed separately. Each addend is rounded once, and each of the `sums` sums
 * is rounded once, so the error is at most roundoff * (sum of |addend| + sum of |sum|). All
 * addends have the same distribution, so the mean square of their sum is at least `addends` times
 * that of one addend, with equality if their signs are random. The sum of |addend| is therefore
 * at most sqrt(addends) times the rms of the stored gradient, and the sum of |sum| at most
 * sqrt(sums) times. For numbers below the type's normal range, the rounding error has a fixed
 * absolute size. */
typedef struct {
    double relative; /* error relative to a tensor's rms */
    double absolute; /* absolute error of an element, times the loss scale */
} CompareWire;

CompareWire compare_wire(DType kept, DType wire, int64_t addends, int64_t sums);
/* Returns how far results may differ because of activations that `ranks` tensor-parallel ranks add
 * up between regions. Each rank rounds its addend to the storage type, and the sum is rounded as
 * well; a single rank rounds only once. {0} unless the storage type has 16 bits. */
CompareWire compare_regions(DType storage, int64_t ranks);

/* Returns how much more a grid may differ if a sum is rounded at each addition, as NCCL does, and
 * not only once. A sum over `ranks` ranks then has ranks - 2 more roundings: of the partial sums of
 * 2, 3, ... ranks - 1 addends. As above, a partial sum of j addends has sqrt(j / ranks) times the
 * rms of the whole sum. The roundings of `sums` such sums together are sqrt(sums) times as large,
 * relative to the stored gradient. {0} unless the type has 16 bits. */
CompareWire compare_additions(DType type, int64_t ranks, int64_t sums);
/* Returns how far a config's grid may differ in all: because of gradients that are sent in another
 * type, and because of activations that are added up. If `each` addition is rounded, adds
 * compare_additions for both of them, and for gradients that are stored in 16 bits. */
CompareWire compare_grid(const Config *config, bool each);

/* Bounds, relative to the size of the numbers. In f64, rounding stays below 1e-12, and any wrong
 * scale, sum or element causes a larger difference. */
typedef struct {
    double tolerance;        /* bound for the loss, the norm, gradients and weights */
    double lr;               /* how far an update moves a weight */
    bool gradients, weights; /* whether these are compared */
    CompareWire wire;
} CompareBounds;

/* Returns the bounds for the first steps in a dtype: 1e-12 for everything in f64; 2e-5 in f32,
 * where gradients are compared only in the first step and weights are not compared. For 16 bits use
 * compare_distances instead. */
CompareBounds compare_bounds(DType dtype, double lr, int64_t step);

/* The result of all comparisons so far; {0} before the first. */
typedef struct {
    double worst; /* largest deviation so far, divided by the scale of its bound */
    /* the number with this deviation: "gradient of block.0.mlp.up.weight[17], step 2" */
    char where[160];
    /* The first value outside its bound: its name, step and element, both values and the bound. */
    char difference[320];
    bool differs;
    /* The first step that both sides skipped, so that it was not compared; 0 if none. */
    int64_t skipped;
    int64_t gradients; /* number of gradient tensors that were compared */
} Comparison;

/* Compares a step and adds the result to `c`. Returns false if anything is outside its bound, in
 * this step or an earlier one.
 *
 * Gradients: |difference| <= tolerance * max(rms of the tensor, 1e-6 * rms of all gradients). The
 * bound is never below 32 roundings of the rms of all gradients, because some gradients are zero in
 * theory. Weights: |difference| <= tolerance * max(rms of the tensor, lr).
 *
 * Rounding of data that are sent (`wire`) adds to these bounds. The rms difference of a tensor may
 * be larger by wire.relative times its rms, and the difference of an element by wire.relative times
 * the tensor's largest element. The norm may differ by step * wire.relative times the norm, because
 * the weights of each earlier step have moved as well. The loss may differ from the second step on,
 * because the rounding error d of the gradients g has gone through the updates. An update is lr * g
 * / |g| or lr * g, so it changes by 2 lr d / |g| or lr d, and the loss by 2 lr |d|_1 <= 2 lr
 * sqrt(n) |d|, or by lr |g| |d|. */
bool compare_captures(Comparison *c, const ParamTable *table, DType dtype, const Capture *got,
                      const Capture *want, const CompareBounds *bounds);
/* Returns how far the gradients of a 16-bit step are from those of the same step in f32: the rms
 * over all tensors, each in units of its own rms, except tensors that are zero in theory. */
double compare_distance(const ParamTable *table, const Capture *got, const Capture *exact);
/* Compares a step of a 16-bit grid and adds the result to `c`. The grid's distance from f32 may
 * be at most 1.5 times the single rank's distance, plus the rounding of data that are sent
 * (`wire`). */
bool compare_distances(Comparison *c, const ParamTable *table, const Capture *got,
                       const Capture *single, const Capture *exact, const CompareWire *wire);

#endif
