/* norm.c -- implements norm.h: gets a norm's parameters from the store and runs its op. */
#include "model/norm.h"

NormTensors norm_bind(ParamStore *store, const NormParams *params, bool grads)
{
    NormTensors norm = {.weight = store->weight(store, params->weight, 1)};
    if (params->bias >= 0) norm.bias = store->weight(store, params->bias, 1);
    if (!grads) return norm;
    norm.dweight = store->grad(store, params->weight, 1);
    if (params->bias >= 0) norm.dbias = store->grad(store, params->bias, 1);
    return norm;
}

void norm_forward(const Pass *pass, const NormParams *params, Tensor y, Tensor stats, Tensor x)
{
    NormTensors norm = norm_bind(pass->store, params, false);
    op_norm_forward(pass->dev, y, stats, x, norm.weight, norm.bias, pass->shape->norm);
}
