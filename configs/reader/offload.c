/* offload.c -- checks the keys that say what lies on the host: the optimizer's states, and of
 * activations which ranks keep which part. See load.h. */
#include "configs/reader/load.h"

static void check_device(Load *load)
{
    static const char key[] = "zero_optimization.offload_optimizer.device";
    if (load_wrong(load, key) ||
        load->config->zero_optimization.offload_optimizer.device != OFFLOAD_NVME)
        return;
    load_idle(load, load_place(load, key), key,
              "accepted, without effect here (kept on the device; \"cpu\" would keep it on the "
              "host)");
}

static void check_pin_memory(Load *load)
{
    static const char key[] = "zero_optimization.offload_optimizer.pin_memory";
    if (!load_wrong(load, key) && !load->config->zero_optimization.offload_optimizer.pin_memory)
        load_idle(load, load_place(load, key), key,
                  "accepted, without effect here (states on the host are always page-locked, which "
                  "a GPU needs to reach them)");
}

/* Each rank keeps a part of the activations where tensor-parallel ranks divide the rows, and where
 * there is only one of them. */
static void check_partitions(Load *load)
{
    const Config *c = load->config;
    if (load_any_wrong(
            load, (const char *const[]){"parallel.tensor", "parallel.sequence_parallel", NULL}))
        return;
    if (c->parallel.tensor == 1 || c->parallel.sequence_parallel)
        load_forget_notices(load, "activation_checkpointing.partition_activations");
}

void offload_validate(Load *load)
{
    check_device(load);
    check_pin_memory(load);
    check_partitions(load);
}
