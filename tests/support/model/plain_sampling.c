/* plain_sampling.c -- implements plain_sampling.h: samples a token with simple loops. */
#include "tests/support/model/plain_sampling.h"

#include "model/core/check.h"
#include "model/core/rng.h"

#include <math.h>
#include <stdlib.h>

/* Returns the most probable token that has not been taken. */
static int64_t next_best(const double *logits, const bool *taken, int64_t V)
{
    int64_t best = -1;
    for (int64_t v = 0; v < V; v++)
        if (!taken[v] && (best < 0 || logits[v] > logits[best])) best = v;
    return best;
}

int32_t plain_sample(const Sampling *sampling, const double *logits, int64_t V, uint64_t index)
{
    bool *taken = must_calloc((size_t)V, sizeof *taken);
    int64_t *token = must_calloc((size_t)V, sizeof *token);
    double *weight = must_calloc((size_t)V, sizeof *weight), all = 0, mass = 0, sum = 0;
    int64_t most = sampling->top_k > 0 && sampling->top_k < V ? sampling->top_k : V, n = 0, i = 0;
    if (sampling->temperature <= 0) most = 1;
    for (int64_t k = 0; k < most; k++) {
        token[k] = next_best(logits, taken, V);
        taken[token[k]] = true;
        double above = logits[token[k]] - logits[token[0]];
        weight[k] = k == 0 ? 1 : exp(above / sampling->temperature);
        all += weight[k];
    }
    while (n < most && (n == 0 || mass < sampling->top_p * all))
        mass += weight[n++];
    double at = rng_uniform(sampling->seed, rng_stream("generate"), index) * mass;
    for (; i < n - 1; i++) {
        sum += weight[i];
        if (at < sum) break;
    }
    int32_t drawn = (int32_t)token[i];
    free(taken);
    free(token);
    free(weight);
    return drawn;
}
