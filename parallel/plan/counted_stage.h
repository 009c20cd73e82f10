/* counted_stage.h -- what one rank of each stage of a grid will hold, send and compute in a step,
 * determined without the grid: the program's own trainer is opened for that rank on a device and in
 * a world that only count, and makes a step there. */
#ifndef PARALLEL_PLAN_COUNTED_STAGE_H
#define PARALLEL_PLAN_COUNTED_STAGE_H

#include "configs/machine_file/hardware.h"
#include "model/core/graph.h"
#include "parallel/memory/memory_plan.h"

/* The plan of one rank. The other ranks of its stage have the same memory, and ranks with the same
 * dp coordinate make the same calls. From ZeRO stage 1 on, a gradient that all ranks of tp, kv or
 * tie hold is summed only by the ranks whose shard contains it. So ranks with different dp
 * coordinates differ only in these sums. */
typedef struct {
    int stage;
    /* The same as memory_plan returns in a run. If device memory is host memory, the caller adds
     * `host` (memory_add_host). */
    MemoryPlan memory;
    /* The calls of exactly one training step by group, in the order of grid_comms; `seconds` and
     * `waited` are 0. */
    CommCounts wire[GRID_COMMS];
    char group[GRID_COMMS][16];
    int group_size[GRID_COMMS];
    /* The graphs of the first step after the start, and of the first two. `step` is the beginning
     * of `two` and shares its memory, so only `two` may be freed or written. */
    Graph step, two;
    int64_t checkpoint_bytes; /* of one checkpoint, all files of all ranks together */
} StagePlan;

/* Plans rank `rank` of a settled config's grid, whose size is parallel.pipeline x data x tensor, up
 * to COMM_MAX_RANKS ranks. `facts` describe the ranks' devices; each rank has its own device unless
 * device memory is host memory. The text that the config names is not read. A tensor whose size
 * does not fit into 64 bits ends the program (EXIT_NO_MEMORY). Free with plan_rank_free. */
void plan_rank(const Config *config, const CountedFacts *facts, int rank, StagePlan *out);
void plan_rank_free(StagePlan *plan);

/* Plans the first rank (dp 0, tp 0) of each stage. Writes an array of *stages plans to *out; free
 * it with plan_stages_free. Returns false and sets `err` if the config's grid has more than
 * COMM_MAX_RANKS ranks. */
bool plan_stages(const Config *config, const Hardware *hardware, StagePlan **out, int *stages,
                 char *err, size_t n);
/* Replaces the memory and checkpoint_bytes of these plans by the values for `config`, which has the
 * same grid. Makes no step, so its time does not depend on the number of micro-batches. */
void plan_stages_memory(const Config *config, const Hardware *hardware, StagePlan *plans);
void plan_stages_free(StagePlan *plans, int stages);

#endif
