/* rope.c -- the frequencies of rotary positions. See rope.h. */
#include "configs/rope.h"

#include <math.h>

/* Llama 3.1's scaling compares two bounds with the number of turns that the pair makes over the
 * context length of the first training. Above the higher bound, the pair keeps its frequency. Below
 * the lower bound, the frequency is divided by the factor, so that the longest texts turn the pair
 * no further than that training did. In between, the frequency is interpolated linearly in the
 * number of turns. */
double rope_frequency(const RopeScaling *scaling, double theta, int64_t head_dim, int64_t pair)
{
    const double pi = 3.14159265358979323846;
    double f = pow(theta, -2.0 * (double)pair / (double)head_dim);
    if (scaling->type == ROPE_SCALING_NONE) return f;
    double turns = (double)scaling->original_max_position_embeddings * f / (2 * pi);
    double low = scaling->low_freq_factor, high = scaling->high_freq_factor;
    if (turns > high) return f;
    if (turns < low) return f / scaling->factor;
    double kept = (turns - low) / (high - low);
    return (1 - kept) * f / scaling->factor + kept * f;
}
