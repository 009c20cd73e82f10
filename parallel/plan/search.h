/* search.h -- finds the best layouts of a run: how a given number of ranks should share a model.
 *
 * Space: all candidates that break no rule of the config (candidate.h) at its train_batch_size,
 * with
 *
 *   parallel.tensor           up to the devices of a node
 *   parallel.pipeline         up to the model's layers
 *   parallel.pipeline_chunks  1, 2, 3, 4, 6, 8, the config's own number, and the divisors of the
 *                             layers of the largest stage
 *   micro-batch               1, 2, 4 ... 256
 *   zero_optimization.stage   0 to 3; only 0 if there is one data-parallel rank; 3 only if the
 *                             weights of two units (a unit is, for example, a block) fit within
 *                             stage3_max_live_parameters
 *   activation_checkpointing  none, selective, full
 *   sequence_parallel         false; also true if tensor is above 1
 *
 * The config says where the optimizer states are. If it says nothing and no layout fits a GPU, or
 * if it gives zero_optimization.offload_optimizer.device "cpu" without a ratio, each layout has as
 * few hundredths of the states on the host as it needs to fit: more would only be slower.
 *
 * Objective: the most predicted tokens per second, which is the shortest step, among layouts that
 * fit into memory with its margin (plan.h).
 *
 * Order: layouts are planned and replayed in full. First come those with the shortest estimates.
 * Then come the layouts that differ in a single choice from the best one found, until none of them
 * is better. A layout whose estimate is more than 1.5 times that of the best is assumed to be
 * slower. After that, two kinds alternate: the layout with the next shortest estimate, and a layout
 * that differs in a single choice from one of the other best layouts.
 *
 * A layout is left out only if a closed form proves that it does not fit, or that its step takes
 * longer than those of the best layouts found. The search ends after a certain amount of work,
 * which is counted and not timed, so the result is the same on every computer. Then it says how
 * many layouts are left; there may be a better one among them. */
#ifndef PARALLEL_PLAN_SEARCH_H
#define PARALLEL_PLAN_SEARCH_H

#include "configs/candidate.h"
#include "configs/machine_file/hardware.h"

typedef struct {
    int64_t tensor, pipeline, chunks, micro, zero;
    RecomputePolicy recompute;
    bool sequence_parallel;
    int host; /* hundredths of the optimizer states on the host; HOST_GIVEN: as the config says */
} PlanLayout;
enum { HOST_GIVEN = -1 };

/* The functions with which a search evaluates a layout. `seconds` returns the seconds of a step;
 * INFINITY: the layout does not fit. It adds to *work how much work that took, and may choose
 * layout->host. `bound` returns a lower bound of these seconds; INFINITY: the layout certainly does
 * not fit. `guess` returns an estimate, which decides only about the order. */
typedef struct {
    double (*seconds)(void *context, PlanLayout *layout, int64_t *work);
    double (*bound)(void *context, const PlanLayout *layout);
    double (*guess)(void *context, const PlanLayout *layout);
    void *context;
} SearchCosts;

/* The nearest alternative, if a search finds no layout. If no layout is legal, the reason is always
 * the batch: with one rank per copy of the model, a layout can break only the rule that the number
 * of data-parallel ranks divides train_batch_size. */
typedef struct {
    /* If no layout is legal: the layout that needs the smallest change of the batch. If no layout
     * fits: the legal layout that needs the fewest bytes by an estimate. */
    PlanLayout layout;
    int64_t dp; /* number of data-parallel ranks of `layout` */
    /* If no layout is legal: the nearest values of train_batch_size with which `layout` is legal,
     * and the nearest numbers of ranks that have a legal layout: [0] below, [1] above the given
     * one; 0: there is none. */
    int64_t batch[2], ranks[2];
    /* If no layout fits: the bytes of device memory that `layout` needs and may use. If it fits
     * into device memory, these are bytes of host memory. */
    int64_t needed, room;
    bool of_node; /* true: `needed` and `room` are those of a whole node */
} SearchNearest;

enum { SEARCH_BEST = 10 };
typedef struct {
    PlanLayout best[SEARCH_BEST]; /* the shortest step first */
    double seconds[SEARCH_BEST];
    int found;
    int64_t ranks;
    int64_t space;   /* number of legal layouts */
    int64_t misfits; /* number of legal layouts that certainly do not fit */
    int64_t planned; /* number of layouts that were planned; some of them may not fit */
    int64_t left;    /* number of layouts neither planned nor proven to be slower than the best */
    /* on_host: true if each layout has the smallest part of the optimizer states on the host with
     * which it fits. misses: true if the reason for on_host is that no planned layout fits with all
     * states on the devices. */
    bool on_host, misses;
    bool untried; /* true: some layouts were not planned with all states on the devices */
    /* Set by plan_search. sets: the --set arguments with which the config was read; in a command,
     * those of a layout follow them. nearest: the nearest alternative, if no layout is found. */
    StringList sets;
    SearchNearest nearest;
} PlanSearch;

/* Writes all layouts of the space for a candidate, whose number of ranks is known, to *out, which
 * the caller frees. Returns how many there are. most_tensor is the largest parallel.tensor. */
int64_t search_space(const Candidate *base, int64_t most_tensor, PlanLayout **out);
/* Returns whether the candidate with this layout breaks none of these rules. */
bool search_legal(const Candidate *base, const PlanLayout *layout, unsigned rules);
/* Searches the space. Plans no further layout once the work, as SearchCosts.seconds counts it, has
 * reached `most`. */
PlanSearch search_layouts(const Candidate *base, int64_t most_tensor, const SearchCosts *costs,
                          int64_t most);

/* Returns the nearest alternative if no layout of the space is legal. */
SearchNearest search_nearest(const Candidate *base, int64_t most_tensor);
/* Returns the layout that needs the fewest bytes by an estimate. The space is not empty. */
PlanLayout search_smallest(const Config *config, const Candidate *base, int64_t most_tensor);

/* A config file, and the --set arguments with which it is read. `work` is the limit of the search,
 * as a number of recorded graph nodes; 0: a limit that takes some seconds of processor time. */
typedef struct {
    const char *path;
    int n_sets;
    const char *const *sets;
    int64_t world, work;
} SearchSource;

/* Searches the layouts of a config on this hardware. Sets *settled to the config as given, which
 * the caller frees. The config's own grid need not be possible if the config gives
 * train_batch_size. Returns false and sets `err` if the config has errors, or gives no number of
 * ranks. Free with plan_search_free. */
bool plan_search(const SearchSource *source, const Hardware *hardware, PlanSearch *out,
                 const Config **settled, char *err, size_t n);
void plan_search_free(PlanSearch *search);
/* Prints what was found: for each layout a line of figures and the command that plans it. `machine`
 * is the name or the path of the machine file. */
void plan_search_print(const PlanSearch *search, const SearchSource *source, const Config *settled,
                       const Hardware *hardware, const char *machine);
/* Prints what was found as one JSON object. */
void plan_search_print_json(const PlanSearch *search, const SearchSource *source,
                            const Config *settled, const Hardware *hardware, const char *machine);
/* Returns the sentence that says why nothing was found, and what to write instead. The caller frees
 * it. */
char *plan_search_nothing(const PlanSearch *search, const Config *settled);
/* Adds to `out` all --set arguments for this layout: those of search->sets that the layout does not
 * replace, then those of plan_layout_sets. */
void plan_search_sets(const PlanSearch *search, const Config *settled, const PlanLayout *layout,
                      StringList *out);
/* Returns the layout's activation_checkpointing.policy, as configs spell it. */
const char *plan_policy_word(const Config *config, const PlanLayout *layout);
/* Adds to `out` the --set arguments for what this layout changes in the config:
 * "parallel.tensor=8". Keys that the config gives and that may contradict the layout are removed:
 * "gradient_accumulation_steps=null". */
void plan_layout_sets(const Config *config, const PlanLayout *layout, StringList *out);

/* search_closed.c: closed forms for a layout. `hardware` is that of one rank (hardware_of_rank). */

/* Returns a lower bound of the seconds of a step, in any plan of the layout. */
double plan_least_seconds(const Config *config, const Hardware *hardware, const PlanLayout *layout,
                          int64_t ranks);
/* Returns a lower bound of the bytes of device memory on the rank that needs the most. */
double plan_least_bytes(const Config *config, const PlanLayout *layout, int64_t ranks);
/* Returns whether any two units (each the weights of a block or a table) that are used one after
 * the other have at most stage3_max_live_parameters elements together, so that ZeRO stage 3 can
 * gather both; true at other stages. */
bool plan_gathers_pairs(const Config *config, const PlanLayout *layout, int64_t ranks);
/* Returns an estimate of the seconds of a step, which decides only about the order in which layouts
 * are planned. */
double plan_estimate_seconds(const Config *config, const Hardware *hardware,
                             const PlanLayout *layout, int64_t ranks);
/* Returns an estimate of the bytes on the rank that needs the most. */
double plan_estimate_bytes(const Config *config, const PlanLayout *layout, int64_t ranks);

#endif
