/* memory_plan.h -- computes, before anything is allocated, how many bytes of each class a rank will
 * need, and whether they will fit. */
#ifndef PARALLEL_MEMORY_MEMORY_PLAN_H
#define PARALLEL_MEMORY_MEMORY_PLAN_H

#include "parallel/trainer/trainer.h"

/* The bytes that a rank needs. `total` is the sum of the fields before it, which are in the
 * device's memory; `host` is host memory. On the CPU both are the same memory (memory_add_host).
 * `weights` and `gradients` are what this rank keeps; `buffers` temporarily hold other ranks'
 * shards. `reserve` is what NCCL will allocate if each rank has a GPU: an estimate (grid_reserve)
 * until it has been measured. */
typedef struct {
    size_t weights, gradients, buffers, optimizer, activations, scratch, other, reserve, total;
    size_t host;
    size_t slots; /* the part of `optimizer` that is states, without the tables for rounding them */
    /* The part of `host` that is optimizer states, in page-locked memory. In a sum of plans
     * (memory_plan_of_ranks), `offloaded` is that of all ranks of the machine, and
     * `offloaded_of_device` only that of the ranks whose device `total` is about. */
    size_t offloaded, offloaded_of_device;
    /* Host memory for the snapshots that asynchronous saves need. memory_take_snapshot decides
     * whether saves are asynchronous. If so, it adds this memory to `host`, and on the CPU to
     * `total`; if not, it sets `snapshot` to 0. */
    size_t snapshot;
    int64_t checkpoint; /* size of one checkpoint on disk */
    int ranks, of;      /* number of ranks in this sum, and in the world */
    int rank;           /* the rank that made this sum */
    bool on_host;       /* `host` is included in `total` */
    char machine[65];   /* name of the machine; "": all ranks are on one machine */
} MemoryPlan;

/* Returns the plan of a trainer that has been opened (or only measured) and will read these data.
 * It is computed with the same layout code that trainer_allocate will use. A sum that does not
 * fit into 64 bits becomes SIZE_MAX; a single tensor of such a size ends the program
 * (EXIT_NO_MEMORY). */
MemoryPlan memory_plan(const Trainer *trainer, const DataSet *data);
/* Returns which share of the optimizer states of the device's ranks is on the host: the ratio,
 * rounded to whole shards. The tables for rounding are always on the device and do not count as
 * states. */
double memory_offloaded_share(const MemoryPlan *plan);
/* Adds the host bytes to `total`, and all of them except the optimizer states to `other`. */
void memory_add_host(MemoryPlan *plan);

/* Returns the sum of the plans of all ranks of this machine that use device number `device`; the
 * host's bytes are summed over all ranks of this machine. All ranks of `world` must call it, each
 * with its own plan. On the CPU all ranks have the same device number. */
MemoryPlan memory_plan_of_ranks(Comm *world, const MemoryPlan *own, int64_t device);

/* The memory from which the plan will be allocated, and how much of it is available, in bytes. */
typedef struct {
    bool device; /* the device has its own memory; else host memory is used */
    int index;   /* number of the device */
    size_t available, total;
    size_t host;  /* available host memory */
    bool limited; /* a control group limits `host` */
} MemoryRoom;

/* Returns how much memory is free on the open device, after its context, its BLAS library and
 * its scratch have been allocated. If the device has no memory of its own, `available` is `host`,
 * which was measured before the device was opened. */
MemoryRoom memory_room(Device *device, size_t host);
/* Decides whether saves are asynchronous: the config wants it, and the memory of each machine has
 * room for the plan and the snapshots. All ranks of `world` must call it, each with its own plan
 * and the sum of the plans of its machine, and all get the same result. Adds the snapshots to both
 * plans, or sets them to 0. If there is no room, prints a notice that says how much is missing. */
bool memory_take_snapshot(Comm *world, const MemoryRoom *room, MemoryPlan *own, MemoryPlan *sum);
/* If the ranks are on several machines, replaces plan and room by those of the rank that has the
 * least memory left, or lacks the most. All ranks of `world` must call it. */
void memory_tightest(Comm *world, MemoryPlan *plan, MemoryRoom *room);
/* Prints the parts of the plan, all in the unit of their sum, and for which ranks the plan is. */
void memory_print(const MemoryPlan *plan, const MemoryRoom *room);
/* The free memory of the device, and the memory that this program has allocated on it, in bytes, at
 * the time of the call of memory_mark. */
typedef struct {
    size_t available, held;
} MemoryMark;
MemoryMark memory_mark(Device *device);
/* Replaces the estimated reserve in the plan by a measured one: the decrease of free memory since
 * `before`, minus what the program itself allocated. This contains NCCL's memory and the code of
 * kernels, which is loaded at first use.
 *
 * Warns if this is more than the plan had for both. With memory_breakdown, prints the value of the
 * rank that has the most. All ranks of `world` must call it, each with the plan of its device. Does
 * nothing if the plan has no reserve. */
void memory_measure_reserve(Comm *world, const Config *config, MemoryPlan *plan, MemoryMark before,
                            MemoryMark after);
/* Writes, for each stage of a grid of `size`, the largest plan of its ranks to largest[0..size.pp).
 * Returns the stage with the largest plan of all. All ranks of `world` must call it, each with its
 * own plan. */
int memory_largest_of_stages(Comm *world, const MemoryPlan *own, GridPlace size,
                             MemoryPlan *largest);
/* Prints the plans of the stages, one line each. If there are more than eight stages, prints only
 * that of stage `most`, which has the largest plan. */
void memory_print_stages(const MemoryPlan *largest, int stages, int most);
/* The bytes of optimizer states for every ratio in hundredths. at[k] is what the states of one or
 * several ranks take on the device and on the host if zero_optimization.offload_optimizer.ratio is
 * k / 100. */
typedef struct {
    OptimizerBytes at[101];
} MemoryRatios;
/* Returns the bytes for the rank of an opened or measured trainer. The layout code runs for each of
 * the 101 ratios, so call it only if a plan does not fit. */
MemoryRatios memory_ratios(const Trainer *trainer);
/* Returns sums over ranks: the bytes on the device are those of the ranks of this machine that use
 * device number `device`; the bytes on the host are those of all ranks of this machine. All ranks
 * of `world` must call it, each with its own bytes. */
MemoryRatios memory_ratios_of_ranks(Comm *world, const MemoryRatios *own, int64_t device);
/* Returns how much of the available host memory the plan may take. If some of it is page-locked, so
 * that the system cannot swap it out, 5 % or 2 GB, whichever is less, is kept free. */
size_t memory_host_room(const MemoryPlan *plan, const MemoryRoom *room);
/* Returns whether the plan fits into the available memory, of the device and of the host. If not,
 * sets `err` to a message that says which settings would make the plan smaller. `ratios` are the
 * sums for the ranks of the plan (memory_ratios_of_ranks); NULL: no ratio is named. */
bool memory_fits(const MemoryPlan *plan, const MemoryRoom *room, const Config *config,
                 const MemoryRatios *ratios, char *err, size_t n);
/* Ends the program (EXIT_NO_MEMORY) if there is not enough host memory for the list of a step's
 * actions, which a trainer allocates as soon as it is opened. */
void memory_check_step(const Config *config);
/* With memory_breakdown, prints the current and the peak host memory of the process, together with
 * the plan. If ranks are processes, it prints those of one rank. */
void memory_print_use(const Config *config, const MemoryPlan *plan, const char *when);

#endif
