/* bench_fit.h -- turns what `./train bench machine` has measured into the figures of a machine file
 * (hardware.h), by the formulas of cost.h. */
#ifndef PARALLEL_COMMANDS_BENCH_FIT_H
#define PARALLEL_COMMANDS_BENCH_FIT_H

#include "configs/machine_file/hardware.h"
#include "parallel/commands/cmd_bench_calls.h"

/* One measured matrix product: an m x k matrix times a k x n matrix. */
typedef struct {
    int64_t m, n, k;
    double seconds;
} MeasuredProduct;

/* Fits this model of the time of a matrix product: launch + 2 (m + edge) (n + edge) (k + edge) /
 * rate. Returns the rate in FLOP/s, which is the speed of very large products: the rate with the
 * least weighted sum of squared relative errors of the products' rates. A product has a smaller
 * weight if the launch is a larger share of its time. Sets *error to the root of the weighted mean
 * of the squared errors. */
double fit_rate(const MeasuredProduct *product, int n, double launch, double edge, double *error);
/* Returns the edge between 0 and `most` for which fit_rate has the least error. */
double fit_edge(const MeasuredProduct *product, int n, double launch, double most);

/* Sets the peak of products in `dtype` to `rate` divided by product.most (the share of the peak
 * that large products reach), where `rate` is the rate of infinitely large products. If `known`,
 * the peak is from a data sheet and stays, and product.most is set instead. */
void fit_peak(Hardware *hardware, DType dtype, double rate, bool known);
/* Sets how many devices a node has. The number of network interfaces is the preset's, but at most
 * one per device: if only a part of a node is used, it does not get all of them. */
void fit_node(Hardware *hardware, int devices);

/* The fitted FLOP/s of attention: r T / (T + l) on sequences of length T, where r is `rate` and l
 * is `length`. */
typedef struct {
    double rate, length;
} FittedAttention;
/* Fits the model to the FLOP/s that were measured at a short and at a long sequence. If l would be
 * negative, l is 0 and r is the rate at the long sequence. */
FittedAttention fit_attention(double short_length, double short_rate, double long_length,
                              double long_rate);

/* Returns the bytes per second on the links of a ring: the geometric mean over the collectives at
 * the two largest measured sizes, after the time of the smallest call was subtracted. On GPUs
 * all-reduce is left out, because trees and switches may make it faster than a ring. If the
 * smallest call took nearly as long as a large one, as it may on a busy machine, nothing is
 * subtracted; the result is then a lower bound. */
double fit_bandwidth(const CallsMeasured *measured, bool host);

/* The measured calls between `ranks` ranks; times in seconds. */
typedef struct {
    int ranks;
    /* Times of an all-reduce and of an exchange with the neighbours, of few bytes. */
    double small_reduce, small_message;
    double bandwidth; /* bytes per second on the links of a ring, in large calls */
} MeasuredCalls;
/* Sets hardware->collective and hardware->inside. A call takes `collective` plus the latency of
 * each hop: one hop in an exchange, 2 (n - 1) in an all-reduce. On GPUs the two calls differ in
 * more than hops, so the latency is not changed, and `collective` is fitted to the all-reduce
 * alone. */
void fit_calls(const MeasuredCalls *calls, Hardware *hardware);

#endif
