/* test_late_trainer.c -- training by several ranks on devices that put off their work
 * (tests/support/late_device.h): the bits of the CPU in every order that the streams' events allow,
 * and not without each of the waits that the store, the step and the communicator ask for.
 *
 * A wait that is left out may be missed by nobody in one configuration: of collectives behind one
 * another the later ones' waits keep up the order of the earlier ones'; the wait of an all-gather
 * until the peers have read this rank's shard is covered by those of the next step's reduction, for
 * the shard is not updated before; where a rank's share of a unit is padding alone nobody sees its
 * sum; and without overlap_comm the compute stream waits for each reduction at once, which the wait
 * at the step's end covers. So with overlap_comm each place in the program that waits must show, in
 * one configuration at least. */
#include "model/core/check.h"
#include "tests/support/late_device.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Steps before and after those of which nothing runs until the last is ordered. */
enum { MOST_RANKS = 3, BEFORE = 1, AFTER = 1, MOST_SETS = 16 };

typedef struct {
    const Config *config;
    DataSet data;
    bool late;
    char name[256];
    LateVerdict verdict;
    Trained result[MOST_RANKS];
} Run;

/* ---- places that wait ------------------------------------------------------------------------ */

enum { MOST_SITES = 256 };
typedef struct {
    const void *site;
    int waits, red;
    char example[400]; /* one that was left out, and did not show */
} SiteCount;
static SiteCount sites[MOST_SITES];
static int n_sites;

static void count_wait(void *context, const LateWait *wait)
{
    const Run *run = context;
    int i = 0;
    bool red = strcmp(wait->verdict, "red") == 0;
    if (!run->config->zero_optimization.overlap_comm) return;
    while (i < n_sites && sites[i].site != wait->site)
        i++;
    CHECK(i < MOST_SITES, "more than %d places that wait", MOST_SITES);
    if (i == n_sites) sites[n_sites++] = (SiteCount){.site = wait->site};
    sites[i].waits++;
    sites[i].red += red;
    if (!red)
        snprintf(sites[i].example, sizeof sites[i].example, "%s: %s, in %s", wait->verdict,
                 wait->where, run->name);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void take_steps(Trainer *t, int64_t n, Trained *out)
{
    for (int64_t i = 0; i < n; i++)
        trainer_step(t);
    out->n += trainer_read_all(t, out->record + out->n);
    device_synchronize(&t->session.dev);
}

/* As many steps as the host runs ahead, three at most. The waits of the last but one are left out:
 * what comes too early is seen in the last. */
static int64_t burst_steps(const Config *config)
{
    int64_t ahead = FEED_SLOTS / config->gradient_accumulation_steps;
    return ahead < 3 ? ahead : 3;
}

static void take_burst(Comm *world, Trainer *t, Run *run)
{
    int64_t steps = burst_steps(run->config);
    comm_barrier(world);
    if (world->rank == 0) late_burst_begin();
    comm_barrier(world);
    for (int64_t i = 0; i < steps; i++) {
        if (i >= steps - 2) late_mark(&t->session.dev);
        trainer_step(t);
    }
    comm_barrier(world);
    if (world->rank == 0) run->verdict = late_burst_end(count_wait, run);
    comm_barrier(world);
}

static void rank_run(Comm *world, void *context)
{
    Run *run = context;
    Trained *result = &run->result[world->rank];
    Opened o;
    char err[1024];
    if (!trainer_open(&o.trainer, run->config, world, err, sizeof err) ||
        !trainer_allocate(&o.trainer, run->config, &run->data, err, sizeof err)) {
        rank_wrong(world, "%s", err);
        return;
    }
    trainer_warm_up(&o.trainer);
    take_steps(&o.trainer, BEFORE, result);
    if (run->late)
        take_burst(world, &o.trainer, run);
    else
        take_steps(&o.trainer, burst_steps(run->config), result);
    take_steps(&o.trainer, AFTER, result);
    trainer_run_read(&o, result);
    comm_barrier(world);
    trainer_close(&o.trainer);
}

static const char base[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"norm\": \"rmsnorm\", \"position\": \"rope\"},"
    " \"data\": {\"tokenizer_vocab_size\": 270, \"seq_length\": 8}, \"device\": \"cpu\","
    " \"train_micro_batch_size_per_gpu\": 1, \"train_steps\": 40, \"eval\": {\"sample_tokens\": 2},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
    " \"gradient_clipping\": 1.0, \"cpu\": {\"threads\": 1, \"blas\": \"builtin\"}}";

/* Trains by `ranks` ranks over the folder's text; `sets` ("key=value") end with NULL. */
static void run_open(Run *run, const Folder *p, int ranks, const char *const *sets)
{
    const char *all[MOST_SETS];
    char *text = text_format("data.text=%s", p->text),
         *cache = text_format("data.cache=%s", p->cache), err[1024];
    int n = 0;
    ConfigContext world = {.world = ranks};
    ConfigReport report = {0};
    ExitCode code;
    all[n++] = text;
    all[n++] = cache;
    while (*sets)
        all[n++] = *sets++;
    run->config = config_parse_in(&world, "test", base, strlen(base), n, all, &report);
    if (run->config == NULL) {
        config_report_print(&report, true, stderr);
        fail_msg("the config of this test is refused");
    }
    config_report_free(&report);
    if (!data_open(run->config, &run->data, err, sizeof err, &code)) fail_msg("%s", err);
    ConfigFacts facts = {.vocab_size = run->data.vocab_size, .vocab_of = "test"};
    run->config = config_settle(run->config, &facts, err, sizeof err);
    if (run->config == NULL) fail_msg("%s", err);
    free(text);
    free(cache);
}

static void run_close(Run *run, int ranks)
{
    for (int r = 0; r < ranks; r++)
        free(run->result[r].bytes);
    data_close(&run->data);
    config_free(run->config);
}

/* ---- configurations -------------------------------------------------------------------------- */

/* The same run on the CPU and on late devices. */
static void run_both(const Folder *p, int ranks, const char *const *sets)
{
    Run plain = {.late = false}, late = {.late = true};
    size_t n = (size_t)snprintf(late.name, sizeof late.name, "%d ranks", ranks);
    for (const char *const *set = sets; *set && n < sizeof late.name; set++)
        n += (size_t)snprintf(late.name + n, sizeof late.name - n, ", %s", *set);
    run_open(&plain, p, ranks, sets);
    run_open(&late, p, ranks, sets);
    thread_ranks(ranks, 60, rank_run, &plain);
    late_devices(true);
    thread_ranks(ranks, 60, rank_run, &late);
    late_devices(false);
    if (late.verdict.wrong[0]) fail_msg("%s: %s", late.name, late.verdict.wrong);
    assert_true((late.verdict.red > 0) == (ranks > 1));
    for (int r = 0; r < ranks; r++)
        trained_equal(&plain.result[r], &late.result[r], late.name);
    run_close(&plain, ranks);
    run_close(&late, ranks);
}

static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=1"};
static const char *const overlaps[] = {"zero_optimization.overlap_comm=false",
                                       "zero_optimization.overlap_comm=true"};
/* Adjacent units together, as many as there are; each unit by itself. */
static const char *const reduces[] = {"zero_optimization.reduce_bucket_size=100000",
                                      "zero_optimization.reduce_bucket_size=1"};
static const char *const gathers[] = {"zero_optimization.allgather_bucket_size=100000",
                                      "zero_optimization.allgather_bucket_size=1"};
static const char *const rest[] = {"gradient_accumulation_steps=1", "gradient_accumulation_steps=2",
                                   "communication_data_type=bf16",
                                   "zero_optimization.reduce_scatter=false", "bf16.enabled=true"};
enum { STAGES = sizeof stages / sizeof *stages, RESTS = sizeof rest / sizeof *rest };

/* Each with one of the rest, in ranks of two or three. */
static void test_ranks_on_late_devices(void **state)
{
    int all = STAGES * 2 * 2 * RESTS, by = getenv("TEST_SAMPLE") ? 11 : 1;
    for (int i = 0; i < all; i += by) {
        const char *const sets[] = {stages[i / 4 % STAGES], overlaps[i % 2],
                                    reduces[i / 2 % 2],     gathers[i / 2 % 2],
                                    rest[i / 4 / STAGES],   NULL};
        run_both(*state, 2 + i % 3 / 2, sets);
    }
    assert_true(n_sites > 0);
    for (int i = 0; i < n_sites && by == 1; i++)
        if (sites[i].red == 0)
            fail_msg("of %d waits of one place none shows; one is %s", sites[i].waits,
                     sites[i].example);
}

static void test_one_rank_on_a_late_device(void **state)
{
    for (int i = 0; i < 2; i++)
        run_both(*state, 1, (const char *const[]){rest[i], NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_on_a_late_device),
        cmocka_unit_test(test_ranks_on_late_devices),
    };
    return cmocka_run_group_tests_name("late trainer", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
