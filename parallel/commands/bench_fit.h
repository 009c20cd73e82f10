/* bench_fit.h -- turns what `./train bench machine` has measured into the figures of a machine file
 * (hardware.h), by the formulas of cost.h. */
#ifndef PARALLEL_COMMANDS_BENCH_FIT_H
#define PARALLEL_COMMANDS_BENCH_FIT_H

#include "configs/machine_file/hardware.h"
#include "parallel/commands/cmd_bench_calls.h"

/* One product, whose result has m rows and n columns, of depth k. */
typedef struct {
    int64_t m, n, k;
    double seconds;
} MeasuredProduct;

/* Returns the FLOP/s of infinitely large products with which the predicted times of the products
 * differ least from the measured ones (least sum of squared relative errors), if each dimension
 * costs as much as if it were longer by `edge`. A product counts less the more of its time is the
 * launch. Sets *error to the root of the mean of the squared errors. */
double fit_rate(const MeasuredProduct *product, int n, double launch, double edge, double *error);
/* Returns the edge with the least error of fit_rate, from 0 to `most`. */
double fit_edge(const MeasuredProduct *product, int n, double launch, double most);

/* Sets the peak of products in `dtype` to `rate` / product.most, where `rate` is that of infinitely
 * large products. If `known`, the peak is a data sheet's and stays, and product.most is set. */
void fit_peak(Hardware *hardware, DType dtype, double rate, bool known);
/* Sets how many devices a node has. The network interfaces are those of the preset, at most one for
 * each device: a part of a node is not given all of them. */
void fit_node(Hardware *hardware, int devices);

/* Returns the FLOP/s r and the length l with which r T / (T + l) gives the measured FLOP/s at a
 * short and a long sequence, as far as l is not negative. */
typedef struct {
    double rate, length;
} FittedAttention;
FittedAttention fit_attention(double short_length, double short_rate, double long_length,
                              double long_rate);

/* Returns the bytes per second on the links of a ring: of the two largest sizes that were measured,
 * the geometric mean over the collectives, without the time of the smallest call. On GPUs
 * all-reduce is left out, which trees and switches may serve better than rings. Where the smallest
 * call took nearly as long, as it may on a busy machine, nothing is taken off: then the links have
 * this bandwidth at least. */
double fit_bandwidth(const CallsMeasured *measured, bool host);

/* Seconds of calls of n ranks. */
typedef struct {
    int ranks;
    double small_reduce, small_message; /* all-reduce, and exchange with the neighbours, of few
                                         * bytes */
    double bandwidth; /* bytes per second on the links of a ring, in large calls */
} MeasuredCalls;
/* Sets hardware->collective and hardware->inside. A call takes `collective`, and a hop the latency:
 * one in an exchange, 2 (n - 1) in an all-reduce. On GPUs these differ in more than hops, so the
 * latency stays what it is, and `collective` is that of the all-reduce. */
void fit_calls(const MeasuredCalls *calls, Hardware *hardware);

#endif
