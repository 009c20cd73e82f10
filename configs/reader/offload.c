/* offload.c -- checks the keys for optimizer states in host memory, and the key for partitioned
 * activations. See load.h. */
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

static void check_ratio(Load *load)
{
    static const char key[] = "zero_optimization.offload_optimizer.ratio";
    const OffloadConfig *c = &load->config->zero_optimization.offload_optimizer;
    if (!load_wrong(load, key) && c->device != OFFLOAD_CPU && c->ratio != 1)
        load_idle(
            load, load_place(load, key), key,
            "accepted, without effect here (states are kept on the device; "
            "zero_optimization.offload_optimizer.device \"cpu\" puts this part of them on the "
            "host)");
}

static void check_pin_memory(Load *load)
{
    static const char key[] = "zero_optimization.offload_optimizer.pin_memory";
    const OffloadConfig *c = &load->config->zero_optimization.offload_optimizer;
    if (load_wrong(load, key) || c->pin_memory) return;
    load_idle(load, load_place(load, key), key, "accepted, without effect here (%s)",
              c->device == OFFLOAD_CPU
                  ? "states on the host are always page-locked, which a GPU needs to reach them"
                  : "states are kept on the device; on the host they would be page-locked");
}

/* Drops the notice that partition_activations has no effect if activations are partitioned: if
 * tensor-parallel ranks divide the rows, or if there is only one such rank. */
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
    check_ratio(load);
    check_pin_memory(load);
    check_partitions(load);
}
