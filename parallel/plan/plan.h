/* plan.h -- predicts the memory and the time that a config takes on some hardware: joins the
 * counted stages (counted_stage.h), the costs of a machine file (cost.h) and the replay (replay.h).
 * All times are predictions. All numbers of bytes but MemoryPlan.reserve are exactly those of a
 * run. */
#ifndef PARALLEL_PLAN_PLAN_H
#define PARALLEL_PLAN_PLAN_H

#include "parallel/plan/cost.h"
#include "parallel/plan/counted_stage.h"
#include "parallel/plan/replay.h"

/* Bytes on the device or the node that needs the most. It may use `room`: its memory minus the
 * library's workspace and minus `margin`, which is kept free. The margin is memory_margin or, on a
 * host with page-locked memory, what memory_host_room keeps free, if that is more. */
typedef struct {
    int64_t needed, room, margin;
    int64_t offloaded; /* of a node's `needed`: its ranks' optimizer states on the host */
    int stage;         /* of the rank, or of the first rank on the node, that needs the most */
} PlanRoom;

/* The seconds of a step with the slow and with the fast traits of plan_traits, and with half the
 * bandwidth of the network between the nodes (on one node, of the links inside it). */
typedef struct {
    double slow, fast, half_network;
} PlanRange;

typedef struct {
    const Config *config; /* settled; borrowed */
    Hardware hardware;    /* of the machine file */
    GridPlace grid;
    int64_t ranks, nodes, ranks_of_node; /* ranks_of_node: of a full node, or all */
    /* Arrays of grid.pp plans. If a step has many micro-batches, the graphs of `stage` are those of
     * a shorter step, and the graphs of `fewer` are another period shorter. The step has `periods`
     * more periods than `stage`; each takes the difference between `stage` and `fewer`. Otherwise
     * `fewer` is NULL. */
    StagePlan *stage, *fewer;
    int64_t periods;
    /* Device memory of a rank; on CPUs, host memory of all ranks of a node. */
    PlanRoom device;
    PlanRoom host; /* host memory of a node; on CPUs all 0: it is part of `device` */
    bool fits;
    /* If the plan does not fit GPUs or their hosts: the part of the optimizer states that would
     * have to be on the host (remedy.c), or how much both memories lack. NULL: moving states would
     * not help. Freed by plan_free. */
    char *remedy;
    /* The part of the host memory above that snapshots of asynchronous saves take, on the node
     * where it is largest; 0: saves are synchronous, because there is no room for snapshots,
     * checkpoint.async is false or the run saves only at its end. */
    int64_t snapshot;
    /* Bytes by which snapshots would exceed the node's room; 0: they fit, or none are wanted. */
    int64_t snapshot_missing;
    StepTime time; /* of each stage */
    /* How a rank of the stage whose work ends last spends the step; `seconds` is the time of the
     * step, and exactly the sum of the parts. Saves are not included. */
    StageTime step;
    PlanRange range;
    int64_t parameters;   /* of the whole model */
    double tokens, flops; /* of a step, all ranks together; flops: gpt_flops_per_token */
    double mfu6;          /* share of the peak that these operations reach in a step */
    /* The time in which the disk writes one checkpoint, and the time of a synchronous save, in
     * which writers also receive the other ranks' shares. Training waits for such saves; the last
     * one of a run is always synchronous. */
    double write_seconds, save_seconds;
    double snapshot_seconds; /* for which training waits while a snapshot is taken; or 0 */
    /* Number of saves in the whole run, without saves of a best checkpoint, which depend on the
     * losses. */
    int64_t saves;
} Plan;

/* Returns the context for reading a config for this hardware, whatever devices this machine has. */
ConfigContext plan_context(const Hardware *hardware, int64_t world);
/* Completes the config, which was read with plan_context, with the facts of this hardware, and
 * takes ownership of it. The size of the vocabulary is that of the tokenizer, if there is one:
 * data.tokenizer, or the one next to the token files. Otherwise the size is an upper bound: the
 * largest that a run may train (config_likely_vocab), or, if the config gives none, the 65,536 ids
 * of 16 bits. Returns NULL and sets `err` if the config asks for another kind of device, for a type
 * that GPUs do not compute in, or for another vocabulary than the tokenizer's; if there is no upper
 * bound; or if the tokenizer cannot be read. Then the caller still owns the config. */
const Config *plan_settle(const Config *config, const Hardware *hardware, char *err, size_t n);
/* The same, but first looks for a tokenizer in the folder `run` of a run; NULL: there is no run. On
 * failure *code is the exit code. */
const Config *plan_settle_run(const Config *config, const char *run, const Hardware *hardware,
                              ExitCode *code, char *err, size_t n);

/* Plans a config that plan_settle has completed; it must outlive the plan. `range` stays 0. Free
 * with plan_free. Returns false and sets `err` if the grid has too many ranks. */
bool plan_make(Plan *plan, const Config *config, const Hardware *hardware, char *err, size_t n);
/* Sets plan->remedy if the plan does not fit, by planning the memory of other ratios. */
void plan_find_remedy(Plan *plan);
/* Returns how many hundredths of the optimizer states must at least be on the host so that the
 * config fits its GPUs; 100 if it never fits. Adds to *plans how often the memory was planned. */
int plan_least_host(const Config *config, const Hardware *hardware, int64_t *plans);
/* Returns a copy of the config, which shares its strings, with so many hundredths of the optimizer
 * states on the host. */
Config plan_with_host(const Config *config, int hundredths);
/* Computes plan->range, which takes three more replays. */
void plan_vary(Plan *plan);
void plan_free(Plan *plan);
/* Returns a plan in which only `device`, `host`, `fits` and the grid are set. It need not be
 * freed. */
Plan plan_memory(const Config *config, const Hardware *hardware);
/* Returns the seconds of a step of a config that plan_settle has completed, exactly as plan_make
 * does; INFINITY if the plan does not fit, which is checked first, without recording a step. Adds
 * to *nodes the number of graph nodes that were recorded. The config's grid has at most
 * COMM_MAX_RANKS ranks. */
double plan_seconds_if_fits(const Config *config, const Hardware *hardware, int64_t *nodes);

/* Return which fraction of a rank's optimizer states is on the host, in whole shards, and the least
 * seconds that each step needs to move them over the link, both ways at once; 0 seconds on CPUs,
 * whose memory is the host's. The rank is on the node that needs the most. */
double plan_offloaded_share(const Plan *plan);
double plan_offloaded_seconds(const Plan *plan);

/* Returns the seconds of a step of this plan with other traits. */
double plan_seconds(const Plan *plan, const CostTraits *traits);
/* Returns the seconds of the whole run if a step takes `step` seconds: train_steps steps and all
 * saves, without evaluations, samples and restarts. */
double plan_run_seconds(const Plan *plan, double step);
/* Sets plan->saves, write_seconds, save_seconds and snapshot_seconds; the memory must have been
 * planned. */
void plan_count_saves(Plan *plan);
/* The seconds for which training waits in the whole run. */
typedef struct {
    double snapshots; /* while snapshots are taken */
    double written;   /* while checkpoints are written */
} PlanSaves;
/* Returns these if a step takes `step` seconds. Without snapshots training waits for every save.
 * With them it waits for the last one, and for an earlier one that is not written yet when the next
 * save begins. The slowdown of steps by writing in the background is not counted. */
PlanSaves plan_saves(const Plan *plan, double step);
/* Returns how many seconds a save waits until the save `steps` steps earlier is written. */
double plan_pending_seconds(const Plan *plan, double step, int64_t steps);
/* The traits at both ends of the range: slow kernels and links, and fast ones. */
typedef struct {
    CostTraits slow, fast;
} PlanTraits;
PlanTraits plan_traits(void);

/* Prints the plan for people. `machine` is the name or the path of the machine file. */
void plan_print(const Plan *plan, const char *machine);
/* Prints the plan as one JSON object. */
void plan_print_json(const Plan *plan, const char *machine);
/* Returns what is assumed about the vocabulary, in words, or NULL if it is known. */
const char *plan_vocabulary(const Config *config);

#endif
