/* counted_stage.h -- finds out what one rank of each stage of a grid will hold, send and compute in
 * a step, without starting the other ranks: opens the program's own trainer for that rank and runs
 * two steps, on a device and in a world that only count memory and calls and compute nothing. */
#ifndef PARALLEL_PLAN_COUNTED_STAGE_H
#define PARALLEL_PLAN_COUNTED_STAGE_H

#include "configs/machine_file/hardware.h"
#include "model/core/graph.h"
#include "parallel/memory/memory_plan.h"

/* The plan of one rank, which stands for its stage: the other ranks of the stage need the same
 * memory, and those with the same dp coordinate make the same calls.
 *
 * Ranks with different dp coordinates make different calls only for the sums of the groups tp, kv
 * and tie. From ZeRO stage 1 on, a gradient that all ranks of such a group hold is summed only by
 * the ranks whose shard contains it. */
typedef struct {
    int stage;
    /* What memory_plan returns in a run. If device memory is host memory, the caller must still add
     * its field `host` to its `total` (memory_add_host). */
    MemoryPlan memory;
    /* The calls of exactly one training step by each group, in the order of grid_comms; `seconds`
     * and `waited` are 0. */
    CommCounts wire[GRID_COMMS];
    char group[GRID_COMMS][16];
    int group_size[GRID_COMMS];
    /* `step`: the graph of the first step after the start. `two`: the graph of the first two steps.
     * `step` is the beginning of `two` and shares its memory, so only `two` may be freed or
     * changed. */
    Graph step, two;
    int64_t checkpoint_bytes; /* size of one checkpoint: all files of all ranks together */
} StagePlan;

/* Plans rank `rank` of a settled config's grid, whose size is parallel.pipeline x data x tensor, up
 * to COMM_MAX_RANKS ranks. `facts` describe the ranks' devices; each rank has its own device unless
 * device memory is host memory. Does not read the text that the config names. Ends the program
 * (EXIT_NO_MEMORY) if the size of a tensor does not fit into 64 bits. Free with plan_rank_free. */
void plan_rank(const Config *config, const CountedFacts *facts, int rank, StagePlan *out);
void plan_rank_free(StagePlan *plan);

/* Plans the first rank (dp 0, tp 0) of each stage. Writes an array of *stages plans to *out; free
 * it with plan_stages_free. Returns false and sets `err` if the config's grid has more than
 * COMM_MAX_RANKS ranks. */
bool plan_stages(const Config *config, const Hardware *hardware, StagePlan **out, int *stages,
                 char *err, size_t n);
/* Replaces the memory and checkpoint_bytes of these plans by the values for `config`, which has the
 * same grid. Records no step, so its time does not depend on the number of micro-batches. */
void plan_stages_memory(const Config *config, const Hardware *hardware, StagePlan *plans);
void plan_stages_free(StagePlan *plans, int stages);

#endif
