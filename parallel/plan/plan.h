/* plan.h -- what a config costs on some hardware, before it runs there: joins the counted stages
 * (counted_stage.h), the costs of a machine file (cost.h) and the replay (replay.h). All times are
 * predictions. All bytes but MemoryPlan.reserve are those of a run, as integers. */
#ifndef PARALLEL_PLAN_PLAN_H
#define PARALLEL_PLAN_PLAN_H

#include "parallel/plan/cost.h"
#include "parallel/plan/counted_stage.h"
#include "parallel/plan/replay.h"

/* What has to fit, and where the least is left. `room` is what may be used: the memory without the
 * library's workspace and without `margin`, which stays free (memory_margin). */
typedef struct {
    int64_t needed, room, margin;
    int stage; /* of the rank, or of the first rank on the node, that needs the most */
} PlanRoom;

/* The seconds of a step if everything is as slow, or as fast, as plan_traits says, and if the
 * network between the nodes, or on one node the links inside it, has half its bandwidth. */
typedef struct {
    double slow, fast, half_network;
} PlanRange;

typedef struct {
    const Config *config; /* settled; borrowed */
    Hardware hardware;    /* of the machine file */
    GridPlace grid;
    int64_t ranks, nodes, ranks_of_node; /* ranks_of_node: of a full node, or all ranks */
    /* grid.pp of them. If a step has many micro-batches, the graphs are those of a step with fewer,
     * and `fewer` are those of a step with still fewer: then each of `periods` further equal parts
     * of the step takes what the first have more than the second. Otherwise `fewer` is NULL. */
    StagePlan *stage, *fewer;
    int64_t periods;
    /* Device memory; on CPUs, whose memory is the host's, of all ranks of a node. */
    PlanRoom device;
    PlanRoom host; /* host memory of a node; on CPUs all 0: it is part of `device` */
    bool fits;
    /* If it does not fit a GPU: where states of the optimizer would have to lie (remedy.c), or what
     * both memories lack; NULL: this would not help. Freed by plan_free. */
    char *remedy;
    /* Of the host memory above, what snapshots of asynchronous saves take on the node with the most
     * of them; 0: saves are synchronous, because there is no room for snapshots, checkpoint.async
     * is false or the run saves only at its end. */
    int64_t snapshot;
    /* Bytes by which the node would exceed its room with them; 0: they fit, or none are wanted. */
    int64_t snapshot_missing;
    StepTime time; /* of each stage */
    /* How a rank of the stage whose work ends last spends the step; `seconds` is that of the step,
     * and exactly the sum of the parts. Saves are not in it. */
    StageTime step;
    PlanRange range;
    int64_t parameters;   /* of the whole model */
    double tokens, flops; /* of a step, all ranks together; flops: gpt_flops_per_token */
    double mfu6;          /* share of the peak that these operations reach in a step */
    /* In which the disk takes one checkpoint, and in which a synchronous save does: its writers
     * receive the other ranks' shares, too. Training waits for such saves; the last of a run always
     * is one. */
    double write_seconds, save_seconds;
    double snapshot_seconds; /* in which a snapshot is taken, for which training waits; or 0 */
    /* In the whole run, without those of a best checkpoint, which depend on the losses. */
    int64_t saves;
} Plan;

/* Returns how to read a config for this hardware, whatever devices this machine has. */
ConfigContext plan_context(const Hardware *hardware, int64_t world);
/* Returns the config, read with plan_context, with the facts of this hardware. Takes ownership. A
 * tokenizer that is there, data.tokenizer or beside the token files, says the size of the
 * vocabulary. Otherwise the size is a ceiling: the largest that a run may train
 * (config_likely_vocab), or, if the config gives none, the 65,536 ids of 16 bits. Returns NULL and
 * sets `err` if the config asks for another kind of device, for a type that GPUs do not compute in,
 * or for another vocabulary than that of the tokenizer; if there is no ceiling; or if the tokenizer
 * cannot be read. The caller still owns the config then. */
const Config *plan_settle(const Config *config, const Hardware *hardware, char *err, size_t n);
/* The same for the config of a run, or of none (NULL): the run's folder may have its tokenizer. On
 * failure *code is the exit code. */
const Config *plan_settle_run(const Config *config, const char *run, const Hardware *hardware,
                              ExitCode *code, char *err, size_t n);

/* Plans a config from plan_settle, which must outlive the plan. `range` stays 0. Free with
 * plan_free. Returns false and sets `err` if the grid has too many ranks. */
bool plan_make(Plan *plan, const Config *config, const Hardware *hardware, char *err, size_t n);
/* Sets plan->remedy if the plan does not fit, by planning the memory of other ratios. */
void plan_find_remedy(Plan *plan);
/* Computes plan->range, which takes three more replays. */
void plan_vary(Plan *plan);
void plan_free(Plan *plan);
/* Returns a plan of which only `device`, `host`, `fits` and the grid are set, and which is not
 * freed. */
Plan plan_memory(const Config *config, const Hardware *hardware);
/* Returns the seconds of a step of a config from plan_settle, exactly those of its plan; INFINITY
 * if the plan does not fit, which is found out first, without the graphs of a step. Adds to *nodes
 * the nodes that were recorded. The config's grid has at most COMM_MAX_RANKS ranks. */
double plan_seconds_if_fits(const Config *config, const Hardware *hardware, int64_t *nodes);

/* Returns the seconds of a step of this plan with other traits. */
double plan_seconds(const Plan *plan, const CostTraits *traits);
/* Returns the seconds of the whole run if a step takes so many: train_steps steps and all saves,
 * without evaluations, samples and restarts. */
double plan_run_seconds(const Plan *plan, double step);
/* Sets plan->saves, write_seconds, save_seconds and snapshot_seconds; the memory must have been
 * planned. */
void plan_count_saves(Plan *plan);
/* The seconds for which training waits in the whole run. */
typedef struct {
    double snapshots; /* while snapshots are taken */
    double written;   /* while checkpoints are written */
} PlanSaves;
/* Returns these if a step takes so many seconds. Without snapshots training waits for every
 * save; with them, for the last one, and where a save waits for the one
 * before it. That writing in the background slows down steps is not counted. */
PlanSaves plan_saves(const Plan *plan, double step);
/* Returns the seconds for which a save waits until the one of `steps` steps before is written. */
double plan_pending_seconds(const Plan *plan, double step, int64_t steps);
/* The traits of a range's ends: slow kernels and links, and fast ones. */
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
