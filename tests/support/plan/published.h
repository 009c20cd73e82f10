/* published.h -- step times that other programs have published, and what sets these programs apart
 * from this one. Their grids are planned with this program's own graphs; how their kernels differ
 * enters only as the cost of nodes. */
#ifndef TESTS_SUPPORT_PLAN_PUBLISHED_H
#define TESTS_SUPPORT_PLAN_PUBLISHED_H

#include "configs/config.h"
#include "configs/machine_file/hardware.h"
#include "parallel/plan/plan.h"

/* What the kernels of a program do that ours do not. */
typedef struct {
    const char *name;
    bool materialised; /* attention writes its scores (CostTraits) */
    /* Bytes that kernels between the products move per layer beyond those of our graph, in tensors
     * of 16 bits: of all rows x width in forward and backward ("whole"; with sequence parallelism a
     * rank has its share), and of those that tensor-parallel ranks share ("cut"). `kernels`: in
     * how many kernels. */
    int whole_forward, whole_backward, cut_forward, cut_backward, kernels;
    int loss_bytes;      /* read and written for each logit by loss and its gradient */
    double update;       /* bytes of the update relative to ours */
    bool hides_tensor;   /* sums and gathers of tensor-parallel ranks run in as many parts as there
                          * are   ranks, and the products hide all but one of them */
    bool recomputes_all; /* full recomputation repeats the last product and sum of a block, too */
    bool scatters;       /* tensor-parallel ranks each send a part of a message, and gather it */
    bool overlaps;       /* gradients are summed and weights gathered during the passes */
} Program;

/* A row of the table. Families are left out of a fit as a whole; this one always is. */
#define PUBLISHED_NOT_FITTED "MT-NLG"
typedef struct {
    const char *name, *family, *machine; /* machine: a preset */
    const Program *program;
    int layers, width, heads, ffn, vocabulary, length;
    int tp, pp, dp, chunks, micro, batch;
    bool recompute, sequence;
    int zero;
    double seconds; /* of a step */
} PublishedRun;
extern const PublishedRun published_runs[];
extern const int published_count;

/* The rows that are not compared, and why. */
typedef struct {
    const char *name, *reason;
} PublishedOmission;
extern const PublishedOmission published_omissions[];
extern const int published_omission_count;

/* The four constants of a GPU that may be fitted to published runs. */
enum { FITTED = 4 };
typedef struct {
    double value[FITTED]; /* product_sustained, product_edge, memory_efficiency, launch */
} Fitted;
extern const char *const fitted_name[FITTED];
/* Where fits start: what is known without any published run. */
extern const Fitted fitted_start;
/* Return the bounds of constant k: those of machine files for GPUs. */
double fitted_least(int k);
double fitted_most(int k);

/* The recorded graphs of a run. */
typedef struct {
    const PublishedRun *run;
    Hardware hardware; /* the preset */
    Plan plan;         /* of the config; it has none */
    Graph *graph;      /* of each stage: those that are being replayed */
} RecordedRun;

RecordedRun published_record(const PublishedRun *run);
void published_free(RecordedRun *recorded);
/* Replays a step that follows another one, with these constants in place of the preset's. Returns
 * its seconds. */
double published_predict(const RecordedRun *recorded, const Fitted *fitted);

#endif
