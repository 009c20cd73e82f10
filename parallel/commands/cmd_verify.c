/* cmd_verify.c -- `./train verify CONFIG`: checks that the config's grid of ranks computes the same
 * as a single rank. */
#include "parallel/commands/commands.h"
#include "parallel/grid/launch.h"
#include "parallel/run/ranks_option.h"
#include "parallel/verify/verify.h"

#include "model/core/check.h"

#include <string.h>

typedef struct {
    const char *config;
    ArgList set;
    int64_t ranks;
    LaunchKind kind;
    bool full;
    VerifyDtype dtype;
} Arguments;

static bool parse_dtype(const char *text, void *field, char *err, size_t n)
{
    VerifyDtype *dtype = field;
    *dtype = strcmp(text, "config") == 0 ? VERIFY_CONFIG : VERIFY_F64;
    return strcmp(text, "config") == 0 || strcmp(text, "fp64") == 0 ||
           error_set(err, n, "--dtype %s: write config or fp64", text);
}

static int verify(const void *values)
{
    const Arguments *a = values;
    VerifyOptions options = {.config = a->config,
                             .set = a->set,
                             .ranks = launch_count(a->ranks, 1, a->kind),
                             .kind = a->kind,
                             .full = a->full,
                             .dtype = a->dtype};
    return verify_config(&options);
}

static const ArgOption options[] = {
    RANKS_OPTION(Arguments),
    {.name = "--full",
     .help = "the model as it is; by default a small one of its kind: two\n"
             "blocks, or one for each run of layers, heads of 8, a\n"
             "vocabulary below 510, 64 positions",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, full)},
    {.name = "--dtype",
     .value = "TYPE",
     .help = "fp64, or config: in what it says; default fp64, on CUDA\n"
             "config",
     .kind = ARG_OWN,
     .at = offsetof(Arguments, dtype),
     .parse = parse_dtype},
    {.name = "--set",
     .value = "key=value",
     .help = "override one key of the config; may be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(Arguments, set)},
};

const ArgCommand cmd_verify = {
    .name = "verify",
    .call = "./train verify",
    .usage = "CONFIG.json [--ranks N] [--full] [--set key=value]... ...",
    .summary = "whether a config's ranks train as a single one",
    .about = "Trains three steps on random tokens twice, on the config's grid of ranks and on\n"
             "one rank with the same sequences, and compares losses, norms, gradients and\n"
             "weights tensor by tensor. Prints the worst deviation and ends with 0, or names\n"
             "the first difference and ends with 89. AdamW's eps is at least 1e-4 in fp64,\n"
             "gradient_allreduce_op is mean, cuda.tf32 false, fp16.initial_scale_power at\n"
             "most 10, and of a small model ZeRO 3 cuts all units\n"
             "(stage3_param_persistence_threshold is 0) and cuda.attention is portable.\n"
             "Gradients may differ as communication_data_type rounds them, and no farther.\n"
             "Where both skip a step there is nothing to compare: that ends with 78.",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(Arguments, config),
              .missing = "which config? ./train verify configs/demo.json --ranks 2",
              .plural = "configs"},
    .size = sizeof(Arguments),
    .run = verify,
};
