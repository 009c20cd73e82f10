/* attention.c -- checks the rules between cuda.attention and other keys; see load.h. config_settle
 * checks the rules that depend on the devices. */
#include "configs/reader/load.h"

void attention_validate(Load *load)
{
    static const char key[] = "cuda.attention";
    const Config *c = load->config;
    long long head = c->model.head_dim;
    bool known = !load_any_wrong(load, (const char *const[]){"model.head_dim", "model.hidden_size",
                                                             "model.num_attention_heads", NULL});
    bool typed = !load_any_wrong(
        load, (const char *const[]){"bf16.enabled", "fp16.enabled", "fp64.enabled", NULL});
    if (load_wrong(load, key) || c->cuda.attention != ATTENTION_HOPPER) return;
    /* If the config is opened only to read a run and these kernels do not fit, the portable ones
     * are used (ConfigFacts.opened). */
    if (load->context.opened > 0 && load->origin[option_find(key)].kind != ORIGIN_SET) return;
    if (known && head != 64 && head != 128)
        load_error(load, load_place(load, key), key,
                   "\"hopper\" is for heads of 64 or 128, and model.head_dim is %lld; write "
                   "\"portable\"",
                   head);
    else if (typed && dtype_size(config_dtype(c)) != 2)
        load_error(load, load_place(load, key), key,
                   "\"hopper\" computes in bf16 and fp16, and this config in %s; write "
                   "\"portable\", or bf16.enabled true",
                   c->fp64.enabled ? "fp64" : "fp32");
    else if (!load_wrong(load, "device") && c->device == DEVICE_CPU)
        load_error(load, load_place(load, key), key,
                   "\"hopper\" is for GPUs, and device is \"cpu\"; write \"portable\", or device "
                   "\"cuda\"");
    else
        return;
    load_remedy(load, "%s=portable", key);
}
