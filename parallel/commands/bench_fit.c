/* bench_fit.c -- the fits of bench_fit.h. */
#include "parallel/commands/bench_fit.h"

#include "parallel/plan/cost.h"

#include <math.h>

/* log_rate: the logarithm of a product's FLOP/s; its time is counted without the launch, and each
 * of its dimensions as longer by `edge`. weight: its weight in the fit, which is smaller if the
 * launch is a larger share of the time, because an error of the measured time then changes the
 * logarithm more. */
typedef struct {
    double log_rate, weight;
} Rate;

static Rate rate_of(const MeasuredProduct *p, double launch, double edge)
{
    double work = 2 * ((double)p->m + edge) * ((double)p->n + edge) * ((double)p->k + edge);
    double seconds = fmax(p->seconds - launch, 1e-3 * p->seconds), share = seconds / p->seconds;
    return (Rate){.log_rate = log(work / seconds), .weight = share * share};
}

double fit_rate(const MeasuredProduct *product, int n, double launch, double edge, double *error)
{
    /* The weighted mean of the logarithms has the least weighted sum of squared distances from
     * them. */
    double sum = 0, weights = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        Rate r = rate_of(&product[i], launch, edge);
        sum += r.weight * r.log_rate;
        weights += r.weight;
    }
    double mean = sum / weights;
    for (int i = 0; i < n; i++) {
        Rate r = rate_of(&product[i], launch, edge);
        squares += r.weight * (r.log_rate - mean) * (r.log_rate - mean);
    }
    *error = sqrt(squares / weights);
    return exp(mean);
}

double fit_edge(const MeasuredProduct *product, int n, double launch, double most)
{
    double best = INFINITY, edge = 0, error;
    for (double e = 0; e <= most; e += 0.5) {
        fit_rate(product, n, launch, e, &error);
        if (error >= best) continue;
        best = error;
        edge = e;
    }
    return edge;
}

void fit_peak(Hardware *hardware, DType dtype, double rate, bool known)
{
    if (known)
        hardware->product.most = rate / hardware->peak[dtype];
    else
        hardware->peak[dtype] = rate / hardware->product.most;
}

void fit_node(Hardware *hardware, int devices)
{
    hardware->devices_per_node = devices;
    if (hardware->nics_per_node > devices) hardware->nics_per_node = devices;
}

FittedAttention fit_attention(double short_length, double short_rate, double long_length,
                              double long_rate)
{
    double slope = short_rate / short_length - long_rate / long_length;
    double length = slope > 0 ? fmax(0, (long_rate - short_rate) / slope) : 0;
    return (FittedAttention){.rate = long_rate * (long_length + length) / long_length,
                             .length = length};
}

double fit_bandwidth(const CallsMeasured *measured, bool host)
{
    /* The time of the smallest call is subtracted from a large call's time only if at least this
     * share of the large call's time is left. */
    const double LEAST_SHARE = 0.1;
    double n = (double)measured->wanted->ranks, logs = 0;
    int sizes = (int)measured->wanted->sizes, calls = 0;
    for (int verb = host ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER; verb <= COMM_ALL_GATHER; verb++)
        for (int size = sizes - 2; size < sizes; size++, calls++) {
            double on_link = (verb == COMM_ALL_REDUCE ? 2 : 1) * (n - 1) / n,
                   whole = measured->seconds[verb][size],
                   seconds = whole - measured->seconds[verb][0],
                   bytes = (double)(call_bytes(size) - call_bytes(0));
            if (seconds < LEAST_SHARE * whole) seconds = whole;
            logs += log(on_link * bytes / seconds);
        }
    return exp(logs / calls);
}

void fit_calls(const MeasuredCalls *calls, Hardware *hardware)
{
    double hops = 2 * (calls->ranks - 1.0);
    hardware->inside.bandwidth = calls->bandwidth;
    if (hardware->cuda) {
        double on_hops = hops * cost_small_hop(hardware) * hardware->inside.latency;
        hardware->collective = fmax(0, calls->small_reduce - on_hops);
        return;
    }
    hardware->inside.latency = fmax(0, (calls->small_reduce - calls->small_message) / (hops - 1));
    hardware->collective = fmax(0, calls->small_message - hardware->inside.latency);
}
