/* test_nccl_streams.c -- tests that every wait of a stream for an event is necessary and tested.
 * Ranks with a GPU each run on emulated devices whose streams delay their work as long as they may,
 * or run in a random order. One wait of the program at a time is left out. Then training or
 * sampling must give other numbers than with all waits, or the emulator must end the run. With all
 * waits the numbers must be those of a single rank. A wait that is never reached also fails the
 * test. */
#include "model/core/check.h"
#include "model/core/hash.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/verify/capture.h"
#include "tests/support/device/wait_sites.h"
#include "tests/support/files/child.h"
#include "tests/support/files/source_places.h"
#include "tests/support/grid/grid_case.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/support.h"
#include "tests/support/trainer/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, STEPS = 2, TOKENS = 2, WINDOWS = 12, SAID = 2000 };

/* Results of a run. */
typedef struct {
    double loss[STEPS], norm[STEPS], evaluated;
    uint64_t weights;
    int32_t token[TOKENS];
} Numbers;

/* Memory that the child processes share with the test. */
typedef struct {
    WaitSites waits;
    Numbers numbers;
} Shared;
static Shared *shared;

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct {
    GridCase grid;
    Training training;
    int64_t windows; /* windows of an evaluation */
} Run;

static bool take_token(void *context, int32_t token)
{
    int32_t **next = context;
    if (*next) *(*next)++ = token;
    return true;
}

/* Evaluates on random tokens, with several micro-batches in the pipeline at once. */
static double evaluate(Trainer *t, int64_t windows)
{
    char err[512];
    LoaderOptions options = {.split = SPLIT_VAL,
                             .B = t->config->train_micro_batch_size_per_gpu,
                             .T = t->config->data.seq_length,
                             .vocab_size = t->config->model.vocab_size,
                             .dp_rank = t->session.grid.at.dp,
                             .dp_size = t->session.grid.size.dp,
                             .max_windows = windows,
                             .micros = INT64_MAX};
    CHECK(loader_create(&t->val, t->data, &options, err, sizeof err), "%s", err);
    t->feed.val = t->val;
    return trainer_evaluate(t, 0).loss;
}

static void draw_text(Trainer *t, int32_t *token)
{
    const Sampling sampling = {.temperature = 1, .top_p = 1, .seed = 1};
    const int32_t prompt[] = {1, 2};
    t->session.params->step_begin(t->session.params, NULL, 0);
    generate(t->decoder, &sampling, prompt, 2, TOKENS, take_token, &token);
    t->session.params->step_end(t->session.params);
}

static uint64_t hash_weights(Trainer *t)
{
    Capture c = capture_create(&t->session.table);
    capture_weights(&c, t);
    uint64_t hash = hash_bytes(1, c.weight, c.n * (int64_t)sizeof(double));
    capture_free(&c);
    return hash;
}

/* Runs STEPS steps without reading any result in between, then an evaluation and a sample. */
static void train(Comm *world, void *context)
{
    const Run *run = context;
    StepRecord record[TRAINER_HISTORY];
    Numbers numbers = {.weights = 0};
    Trainer t;
    training_open_rank(&t, world, &run->training);
    wait_sites_note(&shared->waits);
    for (int i = 0; i < STEPS; i++) {
        model_poison(t.gpt);
        trainer_step(&t);
    }
    CHECK(trainer_read_all(&t, record) == STEPS, "not %d records", STEPS);
    numbers.evaluated = evaluate(&t, run->windows);
    draw_text(&t, world->rank == 0 ? numbers.token : NULL);
    wait_sites_note(NULL);
    for (int i = 0; i < STEPS; i++) {
        numbers.loss[i] = record[i].loss;
        numbers.norm[i] = record[i].grad_norm;
    }
    numbers.weights = hash_weights(&t);
    if (world->rank == 0) shared->numbers = numbers;
    trainer_close(&t);
}

static void run_ranks(void *context)
{
    Run *run = context;
    int ranks = grid_case_ranks(&run->grid);
    session_launch(run->training.config, ranks, (LaunchKind){.threads = true});
    thread_ranks(ranks, 20, train, run);
}

/* Opens a run of the case, on its ranks or on a single one. Cases with only pipeline stages
 * evaluate more windows: there, only the waits for buffers keep a micro-batch from overwriting the
 * data of another. */
static Run run_open(const GridCase *of, bool alone)
{
    bool stages = of->of[GRID_PIPELINE] + 1 == grid_case_ranks(of);
    GridCase c = alone ? grid_case_single(of, of->of[GRID_DTYPE]) : *of;
    Run run = {.grid = c, .windows = stages ? 2 * WINDOWS : WINDOWS};
    Config *config = grid_case_config(&c, grid_case_batch(of));
    config->eval.sample_tokens = TOKENS;
    training_of_tokens(&run.training, config, grid_case_ranks(&c));
    return run;
}

static void run_close(Run *run)
{
    training_close(&run->training);
}

/* When emulated streams do their work and when NCCL reads its inputs. */
typedef struct {
    const char *streams, *seed, *read;
} Mode;
static const Mode at_once = {"strict", "1", "early"};
static const Mode modes[] = {
    {"deferred", "1", "late"}, {"random", "1", "early"}, {"random", "2", "late"}};
enum { MODES = sizeof modes / sizeof *modes };

/* Runs in a child process with one wait left out (none if NULL). Returns the exit code of the
 * child. */
static int run_in(Run *run, const Mode *mode, const WaitSite *left_out, char *said)
{
    setenv("EMU_STREAMS", mode->streams, 1);
    setenv("EMU_SEED", mode->seed, 1);
    setenv("EMU_NCCL_READ", mode->read, 1);
    pthread_mutex_init(&shared->waits.mutex, NULL); /* a child may have died while holding it */
    shared->waits.left_out = left_out;
    memset(&shared->numbers, 0, sizeof shared->numbers);
    return child_run(run_ranks, run, said, SAID);
}

/* ---- leaving out each wait ------------------------------------------------------------------- */

/* What happened when one wait was left out, over all grids. */
typedef struct {
    WaitSite site; /* site.met: how often it was reached in all grids */
    const SourcePlace *wait, *record;
    bool overlap;   /* it was reached in a grid with overlap_comm */
    char seen[120]; /* mode and difference when left out; "": no difference so far */
} Row;
typedef struct {
    SourcePlaces waits, records;
    Row row[MOST_WAIT_SITES];
    int n;
} Table;

static Row *row_of(Table *table, const WaitSite *site)
{
    Row *r = table->row, *end = r + table->n;
    while (r < end && !wait_site_same(&r->site, site))
        r++;
    if (r == end) {
        CHECK(table->n < MOST_WAIT_SITES, "more than %d rows", MOST_WAIT_SITES);
        table->n++;
        *r = (Row){.site = *site};
    } else {
        r->site.met += site->met;
    }
    return r;
}

/* Checks that with all waits this mode gives the same numbers as immediate streams. */
static void check_mode(Run *run, const Mode *mode, const Numbers *want)
{
    char said[SAID];
    if (run_in(run, mode, NULL, said) != 0) fail_msg("%s", said);
    if (memcmp(&shared->numbers, want, sizeof *want) != 0)
        fail_msg("streams %s %s come to other numbers", mode->streams, mode->seed);
}

/* Returns the numbers of the grid with immediate streams, after checking them against a single
 * rank's. */
static Numbers check_whole(Run *run)
{
    char said[SAID];
    Run single = run_open(&run->grid, true);
    assert_int_equal(run_in(&single, &at_once, NULL, said), 0);
    Numbers one = shared->numbers;
    run_close(&single);
    shared->waits.n = 0;
    if (run_in(run, &at_once, NULL, said) != 0) fail_msg("%s", said);
    Numbers got = shared->numbers;
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(got.loss[i] - one.loss[i]) <= 2e-5 * one.loss[i]))
            fail_msg("loss %d is %.9g, of one rank %.9g", i + 1, got.loss[i], one.loss[i]);
    if (!(fabs(got.evaluated - one.evaluated) <= 2e-5 * one.evaluated))
        fail_msg("evaluated %.9g, of one rank %.9g", got.evaluated, one.evaluated);
    assert_memory_equal(got.token, one.token, sizeof one.token);
    return got;
}

static void check_grid(Table *table, const char *grid)
{
    char said[SAID];
    bool checked[MODES] = {false};
    GridCase c;
    assert_true(grid_case_read(&c, grid));
    Run run = run_open(&c, false);
    Numbers want = check_whole(&run);
    for (int i = 0, n = shared->waits.n; i < n; i++) {
        Row *row = row_of(table, &shared->waits.site[i]);
        row->overlap |= run.training.config->zero_optimization.overlap_comm;
        for (int m = 0; m < MODES && row->seen[0] == '\0'; m++) {
            if (!checked[m]) check_mode(&run, &modes[m], &want);
            checked[m] = true;
            int code = run_in(&run, &modes[m], &shared->waits.site[i], said);
            bool other = memcmp(&shared->numbers, &want, sizeof want) != 0;
            said[strcspn(said, "\n")] = '\0';
            if (code != 0 || other)
                snprintf(row->seen, sizeof row->seen, "%s %s: %.80s", modes[m].streams,
                         modes[m].seed, code ? said : "other numbers");
        }
    }
    run_close(&run);
}

static void find_places(Table *table)
{
    const void *wait[MOST_WAIT_SITES], *record[MOST_WAIT_SITES];
    const SourcePlace *waits[MOST_WAIT_SITES], *records[MOST_WAIT_SITES];
    for (int i = 0; i < table->n; i++) {
        wait[i] = table->row[i].site.wait;
        record[i] = table->row[i].site.record;
    }
    source_places_of(&table->waits, wait, table->n, waits);
    source_places_of(&table->records, record, table->n, records);
    for (int i = 0; i < table->n; i++) {
        if (waits[i] == NULL) fail_msg("a wait at %p that no source has", wait[i]);
        if (records[i] == NULL) fail_msg("a record at %p that no source has", record[i]);
        table->row[i].wait = waits[i];
        table->row[i].record = records[i];
    }
}

/* Returns true if leaving out this wait need not make a difference: without overlap_comm the
 * compute stream waits at once for events that other calls would make it wait for later. */
static bool is_covered(const Row *r)
{
    const char *function = r->wait->function;
    return !r->overlap && (strncmp(function, "zero_await_", 11) == 0 ||
                           strcmp(function, "zero_issue_gathers") == 0);
}

/* Returns true for waits that these runs never reach: those of test helpers, those of ranks that
 * share a GPU, those of benchmarks, and those of one rank's asynchronous save, also for states on
 * the host (tests/parallel/trainer/test_async_device leaves them out). */
static bool is_reached_by_no_run(const SourcePlace *p)
{
    return strstr(p->function, "_poison") || strstr(p->file, "comm/local") ||
           strstr(p->file, "commands/cmd_bench_") || strcmp(p->function, "take_snapshot") == 0 ||
           strcmp(p->function, "optimizer_await") == 0;
}

static void print_row(const Row *r)
{
    print_message("%s:%d %s: %s waits for %s, recorded at %s:%d, %d times: %s\n", r->wait->file,
                  r->wait->line, r->wait->function, wait_stream_name[r->site.stream],
                  wait_stream_name[r->site.other], r->record->file, r->record->line, r->site.met,
                  r->seen[0]      ? r->seen
                  : is_covered(r) ? "covered by others"
                                  : "missed by nobody");
}

/* Checks that every wait in the sources was reached, and that leaving it out was detected. */
static void check_table(const Table *table)
{
    int bad = 0;
    for (int i = 0; i < table->n; i++) {
        print_row(&table->row[i]);
        bad += table->row[i].seen[0] == '\0' && !is_covered(&table->row[i]);
    }
    for (int p = 0; p < table->waits.n; p++) {
        const SourcePlace *place = &table->waits.of[p];
        bool met = is_reached_by_no_run(place);
        for (int i = 0; i < table->n; i++)
            met |= table->row[i].wait == place;
        if (!met) print_message("%s:%d %s: never met\n", place->file, place->line, place->function);
        bad += !met;
    }
    assert_int_equal(bad, 0);
}

/* The grids, each a list of numbers, whose meanings are in grid_case.h. dp, tp, pp: the numbers of
 * data-, tensor- and pipeline-parallel ranks. The last two grids do not overlap communication
 * (overlap_comm is false). */
static const char *const grids[] = {
    "0,0,1,1,0,0,0,3,1,13,0,1,0,0,0,1,0,0", /* pp 2, gpipe, four micro-batches */
    "0,1,1,0,0,1,0,1,1,7,0,1,0,0,0,1,0,0",  /* tp 2 x pp 2: rows are split, a tied table */
    "3,0,0,0,0,0,3,1,1,13,0,1,0,0,0,1,0,0", /* dp 4, ZeRO 3: small buckets, prefetch */
    "3,0,0,0,0,0,3,1,1,13,0,1,0,0,0,1,1,1", /* dp 4, ZeRO 3 in groups of 2, states on the host */
    "1,0,0,0,0,0,0,1,0,13,0,1,0,0,0,1,0,1", /* dp 2, ZeRO 0, states on the host */
    "1,0,0,0,0,0,2,1,0,13,0,1,0,0,0,0,0,0", /* dp 2, ZeRO 2 */
    "3,0,0,0,0,0,3,1,1,13,0,1,0,0,0,0,1,0", /* dp 4, ZeRO 3 in groups of 2 */
};

static void test_bug_31_leaving_out_any_stream_wait_is_detected(void **state)
{
    (void)state;
    static Table table;
    cuda_devices_needed(MOST_RANKS);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    source_places_add(&table.waits, "parallel/*/*.c", "device_event_wait");
    source_places_add(&table.waits, "parallel/*/*.c", "comm_await");
    source_places_add(&table.waits, "optim/*.c", "device_event_wait");
    source_places_add(&table.records, "parallel/*/*.c", "device_event_record");
    source_places_add(&table.records, "optim/*.c", "device_event_record");
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        check_grid(&table, grids[i]);
    find_places(&table);
    check_table(&table);
    munmap(shared, sizeof *shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_31_leaving_out_any_stream_wait_is_detected),
    };
    setenv("TEST_DEVICE", "cuda", 1);
    setenv("EMU_DEVICES", "4", 0);
    setenv("EMU_NCCL_SEED", "1", 1);
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
