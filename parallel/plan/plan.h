/* plan.h -- predicts the memory and the time that a config takes on some hardware: joins the
 * counted stages (counted_stage.h), the costs of a machine file (cost.h) and the replay (replay.h).
 * All times are predictions. All numbers of bytes except MemoryPlan.reserve are exactly those of a
 * run. */
#ifndef PARALLEL_PLAN_PLAN_H
#define PARALLEL_PLAN_PLAN_H

#include "parallel/plan/cost.h"
#include "parallel/plan/counted_stage.h"
#include "parallel/plan/replay.h"

/* Bytes of memory, for the device or the node that needs the most. `needed` is how much it needs.
 * `room` is how much the plan may use: all memory, minus `margin` and, on a GPU, minus the
 * workspace of the matrix library. `margin` is kept free. It is the config's memory_margin or, on a
 * host with page-locked memory, what memory_host_room keeps free, if that is more. */
typedef struct {
    int64_t needed, room, margin;
    int64_t offloaded; /* the part of a node's `needed` that is optimizer states on the host */
    int stage; /* the stage of the rank that needs the most, or of the first rank of the node that
                  does */
} PlanRoom;

/* The seconds of a step under other assumptions. `slow`, `fast`: kernels and links are slower or
 * faster than predicted (plan_traits). `half_network`: the network between the nodes has half its
 * bandwidth (with one node: the links inside it). */
typedef struct {
    double slow, fast, half_network;
} PlanRange;

typedef struct {
    const Config *config; /* settled; borrowed */
    Hardware hardware;    /* of the machine file */
    GridPlace grid;
    /* ranks_of_node: ranks on a full node; with one node, all ranks */
    int64_t ranks, nodes, ranks_of_node;
    /* Arrays with one plan for each stage. A step with few micro-batches is recorded whole, and
     * `fewer` is NULL. A longer step repeats itself in periods; a period has as many micro-batches
     * as there are stages (at least 2), so `stage` has the graphs of a shorter step, to which
     * `periods` periods must be added. `fewer` has the graphs of a step that is one more period
     * shorter. So the time of a period is the difference between the times of `stage` and
     * `fewer`. */
    StagePlan *stage, *fewer;
    int64_t periods;
    /* Device memory of a rank; on CPUs, host memory of all ranks of a node. */
    PlanRoom device;
    PlanRoom host; /* host memory of a node; on CPUs all 0: it is part of `device` */
    bool fits;
    /* NULL if the plan fits, if there are no GPUs, or if moving optimizer states would not help.
     * Otherwise a sentence that says which part of the states would have to be on the host
     * (remedy.c) or, if there is no part with which the plan fits, how much both memories lack.
     * Freed by plan_free. */
    char *remedy;
    /* Bytes of snapshots of asynchronous saves, on the node where they are largest. They are
     * included in the memory above: in `host`, on CPUs in `device`. 0: saves are synchronous,
     * because there is no room for snapshots, checkpoint.async is false or the run saves only at
     * its end. */
    int64_t snapshot;
    /* Bytes by which snapshots would exceed the node's room; 0: they fit, or saves are to be
     * synchronous. */
    int64_t snapshot_missing;
    StepTime time; /* how each stage spends the step */
    /* How a rank spends the step, on the stage whose work ends last. `seconds` is the time of the
     * step, and exactly the sum of the parts. Saves are not included. */
    StageTime step;
    PlanRange range;
    int64_t parameters;   /* of the whole model */
    double tokens, flops; /* of a step, all ranks together; flops: gpt_flops_per_token */
    double mfu6; /* `flops` as a share of what all devices could compute in a step at their peak */
    /* write_seconds: how long the disk takes to write one checkpoint. save_seconds: how long a
     * synchronous save takes, in which writers also receive the other ranks' shares. Training waits
     * for such saves; the last save of a run is always synchronous. */
    double write_seconds, save_seconds;
    /* how long training waits while a snapshot is taken; 0: no snapshots */
    double snapshot_seconds;
    /* Number of saves in the whole run, without saves of a best checkpoint, which depend on the
     * losses. */
    int64_t saves;
} Plan;

/* Returns the context for reading a config for this hardware, whatever devices this machine has. */
ConfigContext plan_context(const Hardware *hardware, int64_t world);
/* Completes the config, which was read with plan_context, with the facts of this hardware, and
 * takes ownership of it. The size of the vocabulary is that of the tokenizer, if there is one:
 * data.tokenizer, or the one next to the token files. Otherwise the size is an upper bound: the
 * largest that a run may train (config_likely_vocab), or, if the config gives no size, 65,536, the
 * number of ids that 16 bits can hold.
 *
 * Returns NULL and sets `err` if the config asks for another kind of device, for a type that GPUs
 * do not compute in, or for another vocabulary than the tokenizer's; if there is no upper bound; or
 * if the tokenizer cannot be read. Then the caller still owns the config. */
const Config *plan_settle(const Config *config, const Hardware *hardware, char *err, size_t n);
/* Does the same as plan_settle, but first looks for a tokenizer in the folder `run` of a run (NULL:
 * there is no run). On failure also sets *code to the exit code. */
const Config *plan_settle_run(const Config *config, const char *run, const Hardware *hardware,
                              ExitCode *code, char *err, size_t n);

/* Plans a config that plan_settle has completed; the config must outlive the plan. plan->range
 * stays 0 (see plan_vary). Free with plan_free. Returns false and sets `err` if the grid has too
 * many ranks. */
bool plan_make(Plan *plan, const Config *config, const Hardware *hardware, char *err, size_t n);
/* Sets plan->remedy if the plan does not fit. To find it, plans the memory with other shares of the
 * optimizer states on the host. */
void plan_find_remedy(Plan *plan);
/* Returns how many hundredths of the optimizer states must at least be on the host so that the
 * config fits its GPUs; 100 if it never fits. Adds to *plans how often the memory was planned. */
int plan_least_host(const Config *config, const Hardware *hardware, int64_t *plans);
/* Returns a copy of the config with this number of hundredths of the optimizer states on the host.
 * It shares the strings of `config`. */
Config plan_with_host(const Config *config, int hundredths);
/* Sets plan->range. Computing it replays the step three more times. */
void plan_vary(Plan *plan);
void plan_free(Plan *plan);
/* Returns a plan in which only `device`, `host`, `fits` and the grid are set. It need not be
 * freed. */
Plan plan_memory(const Config *config, const Hardware *hardware);
/* Returns the seconds of a step of a config that plan_settle has completed, exactly as plan_make
 * does; INFINITY if the plan does not fit. Memory is checked first, and no step is recorded if it
 * does not fit. Adds to *nodes the number of graph nodes that were recorded. The config's grid has
 * at most COMM_MAX_RANKS ranks. */
double plan_seconds_if_fits(const Config *config, const Hardware *hardware, int64_t *nodes);

/* Returns which fraction of its optimizer states a rank really has on the host, where only whole
 * shards can be. The rank is the first one of the node that needs the most host memory. */
double plan_offloaded_share(const Plan *plan);
/* Returns the least seconds that each step needs to move the states which the same rank has on the
 * host over the link, both ways at once; 0 on CPUs, whose memory is the host's. */
double plan_offloaded_seconds(const Plan *plan);

/* Returns the seconds of a step of this plan with these traits instead of COST_OWN. */
double plan_seconds(const Plan *plan, const CostTraits *traits);
/* Returns the seconds of the whole run if a step takes `step` seconds: train_steps steps and all
 * saves, without evaluations, samples and restarts. */
double plan_run_seconds(const Plan *plan, double step);
/* Sets plan->saves, write_seconds, save_seconds and snapshot_seconds; the memory must have been
 * planned. */
void plan_count_saves(Plan *plan);
/* The seconds for which training waits for saves in the whole run. */
typedef struct {
    double snapshots; /* while snapshots are taken */
    double written;   /* while checkpoints are written */
} PlanSaves;
/* Returns how long training waits for saves if a step takes `step` seconds. Without snapshots,
 * training waits until each save is written. With snapshots, it waits until the last save is
 * written, and for any earlier save that is not yet written when the next one begins. Saves that
 * are written in the background also slow down the steps; this is not counted. */
PlanSaves plan_saves(const Plan *plan, double step);
/* Returns how many seconds a save has to wait for the save that began `steps` steps before it and
 * may not have been written yet. */
double plan_pending_seconds(const Plan *plan, double step, int64_t steps);
/* The traits for PlanRange.slow (slow kernels and links) and for PlanRange.fast. */
typedef struct {
    CostTraits slow, fast;
} PlanTraits;
PlanTraits plan_traits(void);

/* Prints the plan for people. `machine` is the name or the path of the machine file. */
void plan_print(const Plan *plan, const char *machine);
/* Prints the plan as one JSON object. */
void plan_print_json(const Plan *plan, const char *machine);
/* Returns a phrase that says what is assumed about the vocabulary, or NULL if its size is known. */
const char *plan_vocabulary(const Config *config);

#endif
