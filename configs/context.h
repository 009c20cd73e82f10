/* context.h -- what the caller of config_load knows and no config file contains: the number of
 * ranks and the devices of this machine. */
#ifndef CONFIGS_CONTEXT_H
#define CONFIGS_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Config Config;

/* Returns whether the tensors of this config will be on a CUDA device. It is called only if a value
 * depends on that (bf16.enabled "auto"). */
typedef bool (*ConfigOnCuda)(const Config *config);
/* Returns whether each of config->world ranks will have a GPU of its own. It is called only for
 * several ranks, and only if a default depends on that. */
typedef bool (*ConfigOwnGpus)(const Config *config);

/* What the caller of config_load knows in addition to the file. A field that is zero means "not
 * known". */
typedef struct {
    ConfigOnCuda on_cuda;   /* NULL: tensors are on CUDA only if device is "cuda" */
    ConfigOwnGpus own_gpus; /* NULL: no rank has a GPU of its own */
    /* Number of ranks. It determines parallel.data, and with that any missing batch key. If it is 0
     * and all three batch keys are given, parallel.data is derived from them. Otherwise values are
     * derived for one rank; they are valid for any number of ranks that divides the batch. */
    int64_t world;
    /* The file is the stored config of an earlier run, opened only to inspect it. It is read for
     * the number of ranks it was written for, `world` is ignored, and its batch need not fit. */
    bool stored;
    /* The file is the stored config of a run that is resumed. If `world` is 0, it is read for the
     * number of ranks it was written for. */
    bool resumed;
    /* For a stored config: the number of ranks that open it now. Its parallel.tensor is kept if it
     * divides that number, and its parallel.pipeline if tensor x pipeline does; otherwise they
     * become 1. parallel.data is derived. 0: the config is only inspected. */
    int64_t opened;
    /* The caller has exactly one rank (`world` is 1). A larger grid in the file is ignored; one
     * given by --set is an error. */
    bool alone;
    /* A launcher has started the ranks, so error messages do not suggest another number of
     * ranks. */
    bool launched;
    /* How many of the last `sets` are the program's own. They replace a key under all its names. */
    int own_sets;
} ConfigContext;

#endif
