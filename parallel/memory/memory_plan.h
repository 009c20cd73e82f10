/* memory_plan.h -- the memory plan: how many bytes of each class a rank will allocate, and whether
 * there is room for them. Known before anything is allocated. */
#ifndef PARALLEL_MEMORY_MEMORY_PLAN_H
#define PARALLEL_MEMORY_MEMORY_PLAN_H

#include "parallel/trainer/trainer.h"

/* `total` is the sum of the parts before it, in the device's memory; `host` is in the host's. On
 * the CPU these are the same memory (memory_add_host). Weights and gradients are what this rank
 * keeps; buffers are where other ranks' shards pass through. The reserve is what NCCL will take for
 * itself where ranks have a GPU each: an estimate (grid_reserve), until it was measured. */
typedef struct {
    size_t weights, gradients, buffers, optimizer, activations, scratch, other, reserve, total;
    size_t host;
    int64_t checkpoint; /* bytes on disk of one checkpoint */
    int ranks, of;      /* whose sum it is, of so many in all */
    bool on_host;       /* the host's share is in it */
} MemoryPlan;

/* The plan of an opened or measured trainer that will read these data: what trainer_allocate will
 * allocate, summed over the layouts that it will use. A sum that 64 bits do not count is SIZE_MAX;
 * a single tensor like that ends the program (EXIT_NO_MEMORY). */
MemoryPlan memory_plan(const Trainer *trainer, const DataSet *data);
/* Counts the host's share among the device's, as other. */
void memory_add_host(MemoryPlan *plan);

/* What all ranks of `world` that have the device number `device` take together, and of the host
 * what all ranks take. All ranks call it, each with its own plan. On the host all have one device
 * number. */
MemoryPlan memory_plan_of_ranks(Comm *world, const MemoryPlan *own, int device);

/* Where the plan's memory comes from, and how much is available there, in bytes. */
typedef struct {
    bool device; /* memory of its own; else the host's */
    int index;   /* of the device */
    size_t available, total;
} MemoryRoom;

/* What the open device has free, after its context, product library and scratch. Where it has no
 * memory of its own: `host`, which is what was available before it was opened. */
MemoryRoom memory_room(Device *device, size_t host);
/* Prints the plan's parts in the unit of their sum, and whose it is. */
void memory_print(const MemoryPlan *plan, const MemoryRoom *room);
/* What the device has free at one moment, and what the program has of it, in bytes. */
typedef struct {
    size_t available, held;
} MemoryMark;
MemoryMark memory_mark(Device *device);
/* Of a plan with a reserve: replaces it by what the device has less since `before`, without what
 * the program itself took: NCCL's memory, and the code of kernels, which is loaded when it is first
 * used. Warns where that is more than was left for both, and with memory_breakdown prints it: of
 * the rank with the most. All ranks of `world` call it, each with the plan of its device; nothing
 * happens without a reserve. */
void memory_measure_reserve(Comm *world, const Config *config, MemoryPlan *plan, MemoryMark before,
                            MemoryMark after);
/* The plan of that rank of each stage of a grid of `size` which takes most, into largest[size.pp];
 * returns the stage with the most of all. All ranks of `world` call it, each with its own plan. */
int memory_largest_of_stages(Comm *world, const MemoryPlan *own, GridPlace size,
                             MemoryPlan *largest);
/* Prints the stages' plans, a line each; of more than eight stages only the one that takes most. */
void memory_print_stages(const MemoryPlan *largest, int stages, int most);
/* Whether there is room for the plan; else a sentence that says what makes it smaller. */
bool memory_fits(const MemoryPlan *plan, const MemoryRoom *room, const Config *config, char *err,
                 size_t n);
/* Ends the program (EXIT_NO_MEMORY) where there is no room for what a trainer takes already when it
 * is opened: the list of a step's actions. */
void memory_check_step(const Config *config);
/* With memory_breakdown: prints what the process holds of the host's memory now and held at most,
 * beside the plan. */
void memory_print_use(const Config *config, const MemoryPlan *plan, const char *when);

#endif
