/* option_parallel.h -- the rows of option_table.c for the section "parallel": how several ranks
 * share the work, and how they find each other. */
#ifndef CONFIGS_READER_OPTION_PARALLEL_H
#define CONFIGS_READER_OPTION_PARALLEL_H

#include "configs/reader/option_rows.h"

#define PARALLEL_ROWS                                                                              \
    INT(parallel.data, 0, 1, 1e6, ROUNDING, NOTHING,                                               \
        "data-parallel size; it follows from --ranks, and is only worth writing to be held to it", \
        .derived = "ranks / (tensor x pipeline)",                                                  \
        .flags = OPTION_AUTO | OPTION_FOLLOWS | OPTION_GRID),                                      \
        INT(parallel.tensor, "1", 1, 1e6, ROUNDING, PLAN | WIRE,                                   \
            "tensor-parallel size: the ranks that share each block's matrices",                    \
            .flags = OPTION_GRID),                                                                 \
        INT(parallel.pipeline, "1", 1, 1e6, ROUNDING, PLAN | WIRE,                                 \
            "pipeline-parallel size: the stages that the layers are cut into",                     \
            .flags = OPTION_GRID),                                                                 \
        FLAG(parallel.sequence_parallel, "false", ROUNDING, PLAN | WIRE,                           \
             "tensor-parallel ranks share the rows between their matrices, too",                   \
             .flags = OPTION_GRID),                                                                \
        INT(parallel.shard, "0", 0, 1e6, ROUNDING, PLAN | WIRE,                                    \
            "data-parallel ranks among which ZeRO divides weights and gradients, neighbours; "     \
            "optimizer states are divided among all; 0: all",                                      \
            .flags = OPTION_AUTO | OPTION_GRID | OPTION_CLAMPED),                                  \
        CHOICE(                                                                                    \
            parallel.schedule, 0, schedule_choices, NONE, PLAN,                                    \
            "order of a pipeline's micro-batches: all forward first (gpipe), backward as soon as " \
            "can be (1f1b), or that over several runs of layers a stage (interleaved)",            \
            .derived = "1f1b; interleaved where pipeline_chunks is above 1",                       \
            .flags = OPTION_AUTO | OPTION_FOLLOWS | OPTION_GRID),                                  \
        INT(parallel.pipeline_chunks, "1", 1, 3000, ROUNDING, PLAN | WIRE,                         \
            "runs of layers that a stage has; more than 1 are interleaved", .flags = OPTION_GRID), \
        {ROW(parallel.pipeline_split, INTEGERS),                                                   \
         .flags = OPTION_GRID,                                                                     \
         .min = 1,                                                                                 \
         .max = 3000,                                                                              \
         .effect = EFFECT_ROUNDING,                                                                \
         .changes = PLAN,                                                                          \
         .derived = "by pipeline.partition",                                                       \
         .help = "numbers of blocks of each run of layers, in order: pipeline x pipeline_chunks"}, \
        NUMBER(                                                                                    \
            parallel.timeout, "600", 0, 1e9, NONE, NOTHING,                                        \
            "seconds that a rank waits for the others; then it says who is missing, and all end "  \
            "with code 86; must be longer than the slowest save",                                  \
            .flags = OPTION_ABOVE),                                                                \
        INT(parallel.stop_interval, "0", 0, 1e9, NONE, NOTHING,                                    \
            "steps between two agreements of all ranks on whether to stop; 0: every step, "        \
            "under a launcher about every 5 seconds",                                              \
            .flags = OPTION_AUTO),                                                                 \
        TEXT(parallel.rendezvous, "\"" CONFIG_RENDEZVOUS "\"", NONE, NOTHING,                      \
             "folder in which ranks that a launcher has started find each other, on a file "       \
             "system that all machines share"),                                                    \
        TEXT(parallel.interface, 0, NONE, NOTHING,                                                 \
             "network interface over which ranks of several machines talk, such as \"eth0\"",      \
             .derived = "the one that reaches rank 0's address"),                                  \
        TEXT(parallel.secret_file, 0, NONE, NOTHING,                                               \
             "file with a secret that all ranks know, for machines without a shared file system: " \
             "they meet at MASTER_ADDR; TRAIN_SECRET in the environment does the same",            \
             .derived = "none"),                                                                   \
        CTAS(parallel.nccl.pp_max_ctas, "8",                                                       \
             "thread blocks that a message between stages takes on a GPU, where ranks have a GPU " \
             "each; 0: NCCL decides, as in the next five; NCCL_MAX_CTAS in the environment "       \
             "replaces all"),                                                                      \
        CTAS(parallel.nccl.dp_max_ctas, "16", "thread blocks of a sum or gather of the store"),    \
        CTAS(parallel.nccl.replicate_max_ctas, "16",                                               \
             "thread blocks of a sum or gather of the store between shard groups"),                \
        CTAS(parallel.nccl.tp_max_ctas, "0", "thread blocks of a sum of tensor-parallel ranks"),   \
        CTAS(parallel.nccl.kv_max_ctas, "4", "thread blocks of a sum of a shared key/value head"), \
        CTAS(parallel.nccl.tie_max_ctas, "4", "thread blocks of a sum of a tied token table")

#endif
