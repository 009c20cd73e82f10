/* update_rule.h -- the arithmetic of AdamW and SGD on one element, shared by all backends. Products
 * and sums are in the order written here and each is rounded once, so equal inputs give equal bits.
 * They are not contracted to fused multiply-adds: -std=c11 prevents this in gcc, -fmad=false in
 * nvcc.
 *
 * A file that includes this header must define the type `real`, in which updates are computed, and
 * its square root `real_sqrt`. */
#ifndef MODEL_KERNELS_UPDATE_RULE_H
#define MODEL_KERNELS_UPDATE_RULE_H

#include "model/core/host_device.h"
#include "model/kernels/ops.h"

#include <math.h>

/* Constants of one update, each rounded to `real` once.
 *
 * AdamW's weight decay subtracts lr x weight_decay x p. A factor 1 - lr x decay would have to be
 * rounded to f32, with an error of up to a thousandth of the decay.
 *
 * SGD subtracts lr x (nesterov_gradient x g + nesterov_buffer x buffer). Without Nesterov momentum
 * the term in parentheses is the buffer alone; with it, the term is g + momentum x buffer. */
typedef struct {
    real grad_scale, l2; /* used by both optimizers: g = grad x grad_scale + l2 x p */
    /* AdamW only: step and root_correction include lr and the two bias corrections. */
    real beta1, one_minus_beta1, beta2, one_minus_beta2;
    real step, root_correction, epsilon, decay;
    /* SGD only */
    real lr, momentum, one_minus_dampening, nesterov_gradient, nesterov_buffer;
} UpdateConstants;

/* Returns base^n to half an ulp, computed in pairs of doubles. The C library's pow is not used
 * because its results differ between libraries. */
static HOST_DEVICE inline double update_power(double base, int64_t n)
{
    double high = 1.0, low = 0.0, square = base, square_low = 0.0;
    for (; n > 0; n /= 2) {
        if (n % 2) {
            double p = high * square;
            double e = fma(high, square, -p) + (high * square_low + low * square);
            high = p + e;
            low = e - (high - p);
        }
        double p = square * square, e = fma(square, square, -p) + 2.0 * (square * square_low);
        square = p + e;
        square_low = e - (square - p);
    }
    return high;
}

static HOST_DEVICE inline UpdateConstants adamw_constants(const StepDecision *decision,
                                                          const AdamW *hyper)
{
    int64_t t = decision->update;
    double correction1 = hyper->bias_correction ? 1.0 - update_power(hyper->beta1, t) : 1.0;
    double correction2 = hyper->bias_correction ? 1.0 - update_power(hyper->beta2, t) : 1.0;
    UpdateConstants k;
    k.grad_scale = (real)decision->grad_scale;
    k.l2 = (real)(hyper->decoupled ? 0.0 : hyper->weight_decay);
    k.beta1 = (real)hyper->beta1;
    k.one_minus_beta1 = (real)(1.0 - hyper->beta1);
    k.beta2 = (real)hyper->beta2;
    k.one_minus_beta2 = (real)(1.0 - hyper->beta2);
    k.step = (real)(decision->lr / correction1);
    k.root_correction = (real)(1.0 / sqrt(correction2));
    k.epsilon = (real)hyper->epsilon;
    k.decay = (real)(hyper->decoupled ? decision->lr * hyper->weight_decay : 0.0);
    k.lr = k.momentum = k.one_minus_dampening = k.nesterov_gradient = k.nesterov_buffer = (real)0;
    return k;
}

/* Computes the constants of SGD, like torch.optim.SGD: the momentum buffer is initialised with the
 * first gradient, so the first update uses neither momentum nor dampening. */
static HOST_DEVICE inline UpdateConstants sgd_constants(const StepDecision *decision,
                                                        const Sgd *hyper)
{
    bool first = decision->update == 1;
    UpdateConstants k;
    k.grad_scale = (real)decision->grad_scale;
    k.l2 = (real)hyper->weight_decay;
    k.lr = (real)decision->lr;
    k.momentum = first ? (real)0 : (real)hyper->momentum;
    k.one_minus_dampening = first ? (real)1 : (real)(1.0 - hyper->dampening);
    k.nesterov_gradient = hyper->nesterov ? (real)1 : (real)0;
    k.nesterov_buffer = hyper->nesterov ? (real)hyper->momentum : (real)1;
    k.beta1 = k.one_minus_beta1 = k.beta2 = k.one_minus_beta2 = k.step = k.root_correction =
        (real)0;
    k.epsilon = k.decay = (real)0;
    return k;
}

/* Returns p after the update; updates the running averages m and v (exp_avg, exp_avg_sq) in
 * place. */
static HOST_DEVICE inline real adamw_element(real p, real grad, real *m, real *v,
                                             const UpdateConstants *k)
{
    real g = grad * k->grad_scale + k->l2 * p;
    real m_new = k->beta1 * *m + k->one_minus_beta1 * g;
    real v_new = k->beta2 * *v + k->one_minus_beta2 * (g * g);
    *m = m_new;
    *v = v_new;
    real update = k->step * (m_new / (real_sqrt(v_new) * k->root_correction + k->epsilon));
    return p - (update + k->decay * p);
}

/* Returns p after the update; updates the momentum buffer in place. */
static HOST_DEVICE inline real sgd_element(real p, real grad, real *buffer,
                                           const UpdateConstants *k)
{
    real g = grad * k->grad_scale + k->l2 * p;
    real b = k->momentum * *buffer + k->one_minus_dampening * g;
    *buffer = b;
    return p - k->lr * (k->nesterov_gradient * g + k->nesterov_buffer * b);
}

static HOST_DEVICE inline real sgd_plain_element(real p, real grad, const UpdateConstants *k)
{
    return p - k->lr * (grad * k->grad_scale + k->l2 * p);
}

#endif
