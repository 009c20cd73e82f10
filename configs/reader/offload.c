/* offload.c -- checks the keys that say where the optimizer's states lie. See load.h. */
#include "configs/reader/load.h"

void offload_validate(Load *load)
{
    static const char key[] = "zero_optimization.offload_optimizer.device";
    Config *c = load->config;
    OffloadDevice *device = &c->zero_optimization.offload_optimizer.device;
    if (load_wrong(load, key) || *device == OFFLOAD_NONE) return;
    if (OFFLOAD_BUILT && *device == OFFLOAD_CPU) return;
    load_idle(load, load_place(load, key), key,
              "accepted, without effect here (kept on the device; the plan says whether it fits)");
    *device = OFFLOAD_NONE;
}
