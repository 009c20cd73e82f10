/* test_step_graph.c -- checks that no stream in a training step waits earlier than it has to: takes
 * two steps of all ranks as a graph (tests/support/trainer/step_graph.h) and applies the rules of
 * wait_rules.h. To show that the rules work, the test also runs without overlap_comm, where the
 * compute stream waits at once, and plants needless waits, which each rule must find. */
#include "tests/support/trainer/rank_run.h"
#include "tests/support/trainer/wait_rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct {
    StepPlanted planted;
    StepFindings findings;
    LateVerdict verdict;
    int gathered, summed; /* largest number of units in one group of calls */
    /* parts: gathers of parts (zero/state.h) for a use, except for the step's first use. ahead: how
     * many of these were issued before the preceding use had begun. */
    int parts, ahead;
} Look;

/* Counts the units that are moved in one group of calls. Each unit has a call of its own in the
 * group. */
static void count_together(Look *look, const StepStream *comm)
{
    int64_t bundle = -1, unit = -1;
    int units = 0;
    for (int64_t i = 0; i < comm->n; i++) {
        const int64_t *note = comm->node[i].note;
        if (comm->node[i].name == NULL || note[STEP_UNIT] < 0) continue;
        if (note[STEP_BUNDLE] != bundle) units = 0;
        units += units == 0 || note[STEP_UNIT] != unit;
        bundle = note[STEP_BUNDLE];
        unit = note[STEP_UNIT];
        int *most = note[STEP_VERB] == COMM_ALL_GATHER ? &look->gathered : &look->summed;
        if (units > *most) *most = units;
    }
}

/* Counts the gathers of parts that are for a use. Those of units that are kept whole are issued
 * after the step. */
static void count_parts(Look *look, const Session *s, const StepStream *comm)
{
    const Comm *of[GRID_COMMS];
    grid_comms(&s->grid, of);
    for (int64_t i = 0; i < comm->n; i++) {
        const int64_t *note = comm->node[i].note;
        int64_t begun = note[STEP_USE] % step_key(s, 1, 0), first = 0;
        if (comm->node[i].name == NULL || note[STEP_COMM] < 0 || note[STEP_UNIT] < 0 ||
            of[note[STEP_COMM]] != &s->grid.replicate || note[STEP_VERB] != COMM_ALL_GATHER ||
            begun > s->step.n_uses)
            continue;
        while (s->step.uses[first].unit != note[STEP_UNIT])
            first++;
        look->parts += first > 0;
        look->ahead += begun < first;
    }
}

static bool leave_none_out(void *context, const LateWait *wait)
{
    (void)context, (void)wait;
    return false;
}

static void take_graph(Comm *world, Trainer *t, RankRun *run, int64_t steps)
{
    Look *look = run->context;
    comm_barrier(world);
    step_watch(t, look->planted);
    if (world->rank == 0) late_burst_begin();
    comm_barrier(world);
    for (int64_t i = 0; i < steps; i++)
        trainer_step(t);
    comm_barrier(world);
    if (world->rank == 0) {
        StepGraph g = step_graph_take();
        for (int r = 0; r < g.ranks; r++) {
            int comm = step_stream(&g, r, "comm");
            wait_rules_look(&look->findings, &g, r);
            if (comm >= 0) count_together(look, &g.stream[comm]);
            if (comm >= 0) count_parts(look, g.session[r], &g.stream[comm]);
        }
        step_graph_free(&g);
        look->verdict = late_burst_end(&(LateJury){.choose = leave_none_out});
    }
    comm_barrier(world);
    step_unwatch();
    comm_barrier(world);
    if (world->rank == 0) late_notes(NULL);
}

typedef struct {
    int ranks;
    const char *sets[6];
} Row;

enum { SETS = 6 };

static void look_at(const Folder *folder, const Row *row, const char *more, StepPlanted planted,
                    Look *look, char *name, size_t n)
{
    const char *sets[SETS + 8] = {"model.num_layers=4",
                                  "model.num_attention_heads=4",
                                  "gradient_accumulation_steps=2",
                                  "zero_optimization.stage3_param_persistence_threshold=0",
                                  "zero_optimization.stage3_max_reuse_distance=0",
                                  more};
    memcpy(sets + 6, row->sets, sizeof row->sets);
    *look = (Look){.planted = planted};
    RankRun run = {.take_middle = take_graph, .context = look};
    rank_run_open(&run, folder, row->ranks, sets);
    snprintf(name, n, "%s", run.name);
    late_devices(true);
    rank_run_train(&run);
    late_devices(false);
    rank_run_close(&run);
}

#define PREFETCHES  "zero_optimization.stage3_prefetch_bucket_size=50000000"
#define NO_PREFETCH "zero_optimization.stage3_prefetch_bucket_size=0"
#define PIPELINE    "parallel.pipeline=2"
#define TENSOR      "parallel.tensor=2"
#define GROUPS      "parallel.shard=2"
static const Row rows[] = {
    {2, {"zero_optimization.stage=0"}},
    {2, {"zero_optimization.stage=1"}},
    {2, {"zero_optimization.stage=2"}},
    {2, {"zero_optimization.stage=3", PREFETCHES}},
    {2, {"zero_optimization.stage=3", NO_PREFETCH}},
    /* Parts of units are gathered between shard groups, too, and each part before its own unit. */
    {4, {GROUPS, "zero_optimization.stage=1"}},
    {4, {GROUPS, "zero_optimization.stage=2"}},
    {4, {GROUPS, "zero_optimization.stage=3", PREFETCHES}},
    {4, {GROUPS, "zero_optimization.stage=3", NO_PREFETCH}},
    {2, {TENSOR}},
    {2, {TENSOR, "parallel.sequence_parallel=true"}},
    {4, {TENSOR, "zero_optimization.stage=3"}},
    {4, {PIPELINE, "zero_optimization.stage=0"}},
    {4, {PIPELINE, "zero_optimization.stage=1"}},
    {4, {PIPELINE, "zero_optimization.stage=2"}},
    {4, {PIPELINE, "zero_optimization.stage=3", PREFETCHES}},
    {4, {PIPELINE, "zero_optimization.stage=3", NO_PREFETCH}},
    /* One forward pass follows another and gathers again what the first has used. */
    {4,
     {PIPELINE, "zero_optimization.stage=3", "parallel.schedule=gpipe", NO_PREFETCH,
      "model.num_layers=8"}},
    /* The blocks are small compared to their sum, so their gradients wait in a bucket until the
     * layer ends. */
    {4, {PIPELINE, "zero_optimization.stage=2", "model.num_layers=24"}},
    {4, {PIPELINE, TENSOR}},
    {4, {PIPELINE, TENSOR, "parallel.schedule=interleaved", "parallel.pipeline_chunks=2"}},
    {4,
     {PIPELINE, "zero_optimization.stage=3", "parallel.schedule=interleaved",
      "parallel.pipeline_chunks=2"}},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int count_of(const Row *row)
{
    int n = 0;
    while (n < SETS - 1 && row->sets[n])
        n++;
    return n;
}

static bool says(const Row *row, const char *set)
{
    for (int i = 0; i < count_of(row); i++)
        if (strcmp(row->sets[i], set) == 0) return true;
    return false;
}

static bool has_data(const Row *row)
{
    return row->ranks > (says(row, TENSOR) ? 2 : 1) * (says(row, PIPELINE) ? 2 : 1);
}

static void test_a_step_with_overlap_comm_has_no_needless_wait(void **state)
{
    const int every = getenv("TEST_SAMPLE") ? 3 : 1;
    for (int i = 0; i < ROWS; i += every) {
        const Row *row = &rows[i];
        Look look;
        char name[500];
        look_at(*state, row, "zero_optimization.overlap_comm=true", STEP_AS_IT_IS, &look, name,
                sizeof name);
        for (int rule = 0; rule < RULES; rule++)
            if (look.findings.broken[rule] > 0)
                fail_msg("%s: %d times %s", name, look.findings.broken[rule],
                         look.findings.example[rule]);
        const LateVerdict *v = &look.verdict;
        /* A part needs no room in the buffer of gathered weights, so it is gathered before the
         * gather of its unit can begin. */
        bool parts = says(row, GROUPS) && says(row, "zero_optimization.stage=3");
        if ((look.parts > 0) != parts || look.ahead != look.parts)
            fail_msg("%s: %d of %d parts are gathered ahead", name, look.ahead, look.parts);
        bool ahead =
            has_data(row) && says(row, PIPELINE) && !says(row, "zero_optimization.stage=0");
        if ((v->overlapping > 0) != has_data(row) || (v->beside_tp > 0) != says(row, TENSOR) ||
            (v->beside_p2p > 0) != says(row, PIPELINE) ||
            (look.findings.held[RULE_AHEAD] > 0) != ahead ||
            (look.findings.held[RULE_LATE_SUM] > 0) != (has_data(row) && says(row, PIPELINE)))
            fail_msg("%s: computes %d times beside the store, %d beside regions, %d beside "
                     "stages; %d gathers and %d sums beside exchanges",
                     name, v->overlapping, v->beside_tp, v->beside_p2p,
                     look.findings.held[RULE_AHEAD], look.findings.held[RULE_LATE_SUM]);
    }
}

/* The size of a group of calls adapts to the model: one unit per group if units are large, several
 * in a deep model with small units. */
static void test_only_small_units_are_sent_together_in_one_group_of_calls(void **state)
{
    static const Row few = {2, {"zero_optimization.stage=1"}},
                     many = {2, {"zero_optimization.stage=1", "model.num_layers=24"}};
    char name[500];
    for (int deep = 0; deep < 2; deep++) {
        Look look;
        look_at(*state, deep ? &many : &few, "zero_optimization.overlap_comm=true", STEP_AS_IT_IS,
                &look, name, sizeof name);
        if ((look.gathered > 1) != deep || (look.summed > 1) != deep)
            fail_msg("%s: %d units are gathered at once, and %d are summed", name, look.gathered,
                     look.summed);
    }
}

/* Without overlap_comm, each sum and each gather of the store is waited for at once, so the rules
 * must report it. What tensor-parallel ranks and stages send does not depend on this key. */
static void test_the_rules_report_the_waits_of_the_store_without_overlap_comm(void **state)
{
    const int every = getenv("TEST_SAMPLE") ? 3 : 1;
    for (int i = 0; i < ROWS; i += every) {
        Row row = rows[i];
        Look look;
        char name[500];
        bool data = has_data(&row), sharded = data && !says(&row, "zero_optimization.stage=0"),
             ahead = says(&row, "zero_optimization.stage=3") && says(&row, PIPELINE);
        if (says(&row, NO_PREFETCH)) continue; /* each unit is gathered when it is used */
        row.sets[count_of(&row)] = "zero_optimization.overlap_comm=false";
        look_at(*state, &row, "zero_optimization.reduce_bucket_size=2000", STEP_AS_IT_IS, &look,
                name, sizeof name);
        const bool broken[RULES] = {
            [RULE_SUMS] = data, [RULE_GATHERS] = sharded, [RULE_AHEAD] = ahead};
        for (int rule = 0; rule < RULES; rule++)
            if ((look.findings.broken[rule] > 0) != broken[rule])
                fail_msg("%s: %d times and not %d: %s (%s)", name, look.findings.broken[rule],
                         look.findings.held[rule], wait_rule_name[rule],
                         look.findings.example[rule]);
    }
}

/* Each rule detects a wait that nothing requires. */
static void test_every_rule_detects_a_planted_needless_wait(void **state)
{
    static const struct {
        StepPlanted planted;
        WaitRule rule;
        Row row;
    } plants[] = {
        {STEP_WAITS_FOR_SUMS, RULE_SUMS, {2, {"zero_optimization.stage=1"}}},
        {STEP_WAITS_FOR_SUMS, RULE_SUMS, {4, {PIPELINE, "zero_optimization.stage=2"}}},
        {STEP_WAITS_FOR_GATHERS, RULE_GATHERS, {2, {"zero_optimization.stage=1"}}},
        {STEP_WAITS_FOR_GATHERS, RULE_GATHERS, {2, {"zero_optimization.stage=3", PREFETCHES}}},
        {STEP_WAITS_FOR_EXCHANGES, RULE_EXCHANGES, {2, {PIPELINE}}},
        {STEP_WAITS_FOR_TP_SUMS, RULE_TP_SUMS, {4, {PIPELINE, TENSOR}}},
        {STEP_STORE_WAITS, RULE_LATE_SUM, {4, {PIPELINE, "zero_optimization.stage=2"}}},
    };
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        Look look;
        char name[500];
        look_at(*state, &plants[i].row, "zero_optimization.overlap_comm=true", plants[i].planted,
                &look, name, sizeof name);
        if (look.findings.broken[plants[i].rule] == 0)
            fail_msg("%s: planted wait %d is not seen: %s", name, plants[i].planted,
                     wait_rule_name[plants[i].rule]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_with_overlap_comm_has_no_needless_wait),
        cmocka_unit_test(test_only_small_units_are_sent_together_in_one_group_of_calls),
        cmocka_unit_test(test_the_rules_report_the_waits_of_the_store_without_overlap_comm),
        cmocka_unit_test(test_every_rule_detects_a_planted_needless_wait),
    };
    return cmocka_run_group_tests_name("step graph", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
