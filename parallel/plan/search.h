/* search.h -- finds the best layouts of a run: how so many ranks should share a model.
 *
 * Space: all candidates that break no rule of the config (candidate.h) at its train_batch_size,
 * with
 *
 *   parallel.tensor           up to the devices of a node
 *   parallel.pipeline         up to the model's layers
 *   parallel.pipeline_chunks  1, 2, 3, 4, 6, 8, the config's own number, and the divisors of the
 *                             most layers of a stage
 *   micro-batch               1, 2, 4 ... 256
 *   zero_optimization.stage   0 to 3; 0 alone where there is one data-parallel rank; 3 where two
 *                             units are within stage3_max_live_parameters
 *   activation_checkpointing  none, selective, full
 *   sequence_parallel         false; true where tensor is above 1
 *
 * Objective: the most predicted tokens per second, which is the shortest step, among layouts that
 * fit into memory with its margin (plan.h). Layouts are planned and replayed in full: the first of
 * an estimate; then those that differ from the best one in one choice, until none of these is
 * better (one whose estimate is half as long again is taken to be slower); then, by turns, the next
 * of the estimate and those that differ from another of the best in one choice. One is left out
 * only if a closed form proves that it does not fit, or that its step takes longer than those of
 * the best found. After so much work, which is counted and not timed, the search ends and says how
 * many layouts are left: then a better one may be among these. So the result is the same on every
 * computer. */
#ifndef PARALLEL_PLAN_SEARCH_H
#define PARALLEL_PLAN_SEARCH_H

#include "configs/candidate.h"
#include "configs/machine_file/hardware.h"

typedef struct {
    int64_t tensor, pipeline, chunks, micro, zero;
    RecomputePolicy recompute;
    bool sequence_parallel;
} PlanLayout;

/* What a search asks about a layout. `seconds`: of a step; INFINITY: it does not fit. Adds to *work
 * how much it took to find out. `bound`: no more than these seconds; INFINITY: it certainly does
 * not fit. `guess`: decides about the order alone. */
typedef struct {
    double (*seconds)(void *context, const PlanLayout *layout, int64_t *work);
    double (*bound)(void *context, const PlanLayout *layout);
    double (*guess)(void *context, const PlanLayout *layout);
    void *context;
} SearchCosts;

/* What comes nearest to a layout, if a search finds none. If none is legal, the reason is always
 * the batch: one rank a copy of the model breaks no rule but that the data-parallel ranks divide
 * train_batch_size. */
typedef struct {
    /* Needs the smallest change of the batch; or, if some are legal, of these the fewest bytes by
     * an estimate. */
    PlanLayout layout;
    int64_t dp; /* its data-parallel ranks */
    /* If none is legal: the nearest train_batch_size with which that one is, and the nearest
     * numbers of ranks that have a legal layout, each below and above; 0: there is none. */
    int64_t batch[2], ranks[2];
    /* Else: what it needs of the device memory, or, if there is enough of that, of the host's, and
     * what it may use of it. */
    int64_t needed, room;
    bool of_node; /* these are a whole node's */
} SearchNearest;

enum { SEARCH_BEST = 10 };
typedef struct {
    PlanLayout best[SEARCH_BEST]; /* the shortest step first */
    double seconds[SEARCH_BEST];
    int found;
    int64_t ranks;
    int64_t space;   /* legal layouts */
    int64_t misfits; /* of these, certainly too large */
    int64_t planned; /* some of these may not fit */
    int64_t left;    /* neither planned nor proven to be slower than the best */
    /* Of plan_search: the --set with which the config was read, before those of a layout; and, if
     * nothing is found, what comes nearest. */
    StringList sets;
    SearchNearest nearest;
} PlanSearch;

/* Returns all layouts of the space for a candidate; its number of ranks is known. The caller frees
 * *out. */
int64_t search_space(const Candidate *base, int64_t most_tensor, PlanLayout **out);
/* Returns whether a layout breaks none of these rules for this candidate. */
bool search_legal(const Candidate *base, const PlanLayout *layout, unsigned rules);
/* Searches the space; plans no further layout after so much work. */
PlanSearch search_layouts(const Candidate *base, int64_t most_tensor, const SearchCosts *costs,
                          int64_t most);

/* Returns what is nearest if no layout of the space is legal. */
SearchNearest search_nearest(const Candidate *base, int64_t most_tensor);
/* Returns the layout that needs the fewest bytes by an estimate. The space is not empty. */
PlanLayout search_smallest(const Config *config, const Candidate *base, int64_t most_tensor);

/* A config file, and the --set with which it is read. `work`: the limit of the search, in nodes of
 * graphs that it records; 0: some seconds of a processor. */
typedef struct {
    const char *path;
    int n_sets;
    const char *const *sets;
    int64_t world, work;
} SearchSource;

/* Searches the layouts of a config on this hardware. *settled is the config as given, which the
 * caller frees; its own grid need not be possible if it gives train_batch_size. Returns false and
 * sets `err` if it has errors, or gives no number of ranks. Free with plan_search_free. */
bool plan_search(const SearchSource *source, const Hardware *hardware, PlanSearch *out,
                 const Config **settled, char *err, size_t n);
void plan_search_free(PlanSearch *search);
/* Prints what was found: for each layout a line of figures and the command that plans it. `machine`
 * is the name or the path of the machine file. */
void plan_search_print(const PlanSearch *search, const SearchSource *source, const Config *settled,
                       const Hardware *hardware, const char *machine);
/* Prints the same as one JSON object. */
void plan_search_print_json(const PlanSearch *search, const SearchSource *source,
                            const Config *settled, const Hardware *hardware, const char *machine);
/* Returns the sentence that says why nothing was found, and what to write instead. The caller frees
 * it. */
char *plan_search_nothing(const PlanSearch *search, const Config *settled);
/* Adds to `out` all that is to --set for this layout: search->sets, unless the layout replaces it,
 * and then plan_layout_sets. */
void plan_search_sets(const PlanSearch *search, const Config *settled, const PlanLayout *layout,
                      StringList *out);
/* Returns the layout's activation_checkpointing.policy, as configs spell it. */
const char *plan_policy_word(const Config *config, const PlanLayout *layout);
/* Adds to `out` what to --set for this layout where it differs from the config:
 * "parallel.tensor=8". Keys that the config gives and that may contradict it are dropped:
 * "gradient_accumulation_steps=null". */
void plan_layout_sets(const Config *config, const PlanLayout *layout, StringList *out);

/* Closed forms of a layout (search_closed.c). `hardware` is that of a rank.
 *
 * No plan of the layout has a shorter step, */
double plan_least_seconds(const Config *config, const Hardware *hardware, const PlanLayout *layout,
                          int64_t ranks);
/* or needs fewer bytes of device memory on the rank that needs the most. */
double plan_least_bytes(const Config *config, const PlanLayout *layout, int64_t ranks);
/* Returns whether ZeRO stage 3 can gather two units that are used one after the other. */
bool plan_gathers_pairs(const Config *config, const PlanLayout *layout, int64_t ranks);
/* Estimates the seconds of a step, and the bytes of the rank that needs the most. Only the order in
 * which layouts are planned follows from these. */
double plan_estimate_seconds(const Config *config, const Hardware *hardware,
                             const PlanLayout *layout, int64_t ranks);
double plan_estimate_bytes(const Config *config, const PlanLayout *layout, int64_t ranks);

#endif
