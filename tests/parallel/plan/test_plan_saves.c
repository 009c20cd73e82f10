/* test_plan_saves.c -- tests how long a plan says that training waits for saves: for snapshots if
 * saves are asynchronous and there is room for them, otherwise while checkpoints are written. */
#include "parallel/memory/saved_bytes.h"
#include "parallel/plan/plan.h"

#include "tests/support/files/config_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SETS = 6 };

static Hardware preset(const char *machine)
{
    Hardware hardware;
    ExitCode code;
    char err[512];
    if (!hardware_load(&hardware, machine, &code, err, sizeof err)) fail_msg("%s", err);
    return hardware;
}

/* Plans a small model that saves after every 10 of 95 steps and at the end: 10 times. `set` has up
 * to SETS settings; the others are NULL. Free with `end`. */
static Plan plan_of(const Hardware *hardware, int ranks, const char *const set[SETS])
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 256, \"num_attention_heads\": 2},"
        " \"data\": {\"text\": \"t\", \"seq_length\": 64}, \"train_steps\": 95,"
        " \"checkpoint\": {\"save_interval\": 10},"
        " \"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": false},"
        " \"memory_margin\": 0}";
    char err[512];
    int n = 0;
    while (n < SETS && set[n] != NULL)
        n++;
    Plan plan;
    ConfigReport report;
    ConfigContext context = plan_context(hardware, ranks);
    const Config *config = config_parse(&context, "c.json", text, strlen(text), n, set, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    config = plan_settle(config, hardware, err, sizeof err);
    if (config == NULL) fail_msg("%s", err);
    if (!plan_make(&plan, config, hardware, err, sizeof err)) fail_msg("%s", err);
    return plan;
}

static void end(Plan *plan)
{
    const Config *config = plan->config;
    plan_free(plan);
    config_free(config);
}

static void near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-9 * expected)) fail_msg("%.12g, not %.12g", got, expected);
}

/* Checks for how many seconds training waits for snapshots and for writes in the whole run, and how
 * long the run takes. */
static void waits(const Plan *plan, double snapshots, double written)
{
    double step = plan->step.seconds;
    PlanSaves saves = plan_saves(plan, step);
    near(saves.snapshots, snapshots);
    near(saves.written, written);
    near(plan_run_seconds(plan, step), 95 * step + snapshots + written);
}

static const char *const on[SETS] = {"checkpoint.async=true"}, *const off[SETS] = {
                                                                   "checkpoint.async=false"};

/* Of ten saves, only the last makes training wait until it is written. At each of the others
 * training waits until the snapshot is taken: the bytes that the writer will write are copied in
 * memory, so each of them is read and written. */
static void training_waits_for_snapshots_and_until_the_last_save_is_written(void **state)
{
    (void)state;
    Hardware cpu = preset("cpu");
    cpu.node_disk_bandwidth = cpu.disk_bandwidth = 100e9;
    Plan plan = plan_of(&cpu, 1, on);
    assert_int_equal(plan.saves, 10);
    assert_true(plan.snapshot > plan.stage[0].checkpoint_bytes / 2);
    assert_int_equal(plan.snapshot_missing, 0);
    near(plan.snapshot_seconds, 2 * (double)plan.snapshot / (54e9 * 0.95));
    assert_true(plan.save_seconds < 5 * plan.step.seconds); /* so no save waits for another */
    waits(&plan, 9 * plan.snapshot_seconds, plan.save_seconds);
    assert_true(plan_pending_seconds(&plan, plan.step.seconds, 10) == 0);
    end(&plan);
}

/* With synchronous saves training waits for the disk. Apart from that and from the memory, the plan
 * is the same as with asynchronous saves. */
static void training_waits_for_the_disk_if_saves_are_synchronous(void **state)
{
    (void)state;
    const Hardware cpu = preset("cpu");
    static const char *const once[SETS] = {"checkpoint.async=true", "checkpoint.save_interval=0"};
    Plan with = plan_of(&cpu, 1, on), plan = plan_of(&cpu, 1, off), last = plan_of(&cpu, 1, once);
    assert_true(plan.snapshot == 0 && plan.snapshot_missing == 0 && plan.snapshot_seconds == 0);
    assert_true(plan.step.seconds == with.step.seconds && plan.save_seconds == with.save_seconds);
    assert_int_equal(with.device.needed - plan.device.needed, with.snapshot);
    waits(&plan, 0, 10 * plan.save_seconds);
    /* However slow the disk is, no earlier save is pending when a synchronous save begins. */
    assert_true(plan_pending_seconds(&plan, 0, 10) == 0);
    assert_true(last.snapshot == 0 && last.snapshot_missing == 0 && last.saves == 1);
    waits(&last, 0, last.save_seconds);
    end(&with);
    end(&plan);
    end(&last);
}

/* With one byte less than the snapshots need, saves are synchronous, and the plan says that one
 * byte is missing; the plan still fits. */
static void the_plan_says_how_much_memory_a_snapshot_lacks(void **state)
{
    (void)state;
    static const char *const machines[] = {"cpu", "h100"};
    for (int i = 0; i < 2; i++) {
        Hardware h = preset(machines[i]);
        Plan wide = plan_of(&h, 1, on);
        h.host_bytes = h.cuda ? wide.host.needed : wide.device.needed;
        Plan exact = plan_of(&h, 1, on);
        h.host_bytes--;
        Plan narrow = plan_of(&h, 1, on), synchronous = plan_of(&h, 1, off);
        assert_true(wide.snapshot > 0 && exact.snapshot == wide.snapshot);
        assert_int_equal(exact.snapshot_missing, 0);
        assert_true(narrow.fits && narrow.snapshot == 0 && narrow.snapshot_seconds == 0);
        assert_int_equal(narrow.snapshot_missing, 1);
        waits(&narrow, 0, 10 * narrow.save_seconds);
        assert_int_equal(synchronous.snapshot_missing, 0);
        end(&wide);
        end(&exact);
        end(&narrow);
        end(&synchronous);
    }
}

/* Writing a checkpoint takes as long as 25 steps. A save that begins 10 steps after the previous
 * one therefore waits for the time of 15 steps until that one is written. The last save comes 5
 * steps after the ninth, and so waits for the time of 20 steps. */
static void a_save_waits_until_the_previous_save_is_written(void **state)
{
    (void)state;
    Hardware cpu = preset("cpu");
    Plan plan = plan_of(&cpu, 1, on);
    double step = plan.step.seconds;
    cpu.node_disk_bandwidth = (double)plan.stage[0].checkpoint_bytes / (25 * step);
    end(&plan);
    plan = plan_of(&cpu, 1, on);
    near(plan_pending_seconds(&plan, step, 10), 15 * step);
    waits(&plan, 9 * plan.snapshot_seconds, (8 * 15 + 20 + 25) * step);
    end(&plan);
}

/* GPUs copy over PCIe. Of several writers the one with the most bytes decides. If ZeRO or the grid
 * divides what is saved, the writers also receive what other ranks have. */
static void snapshots_take_the_time_of_the_slowest_link_that_they_use(void **state)
{
    (void)state;
    static const char *const zero[SETS] = {"zero_optimization.stage=1"},
                             *const tp[SETS] = {"parallel.tensor=2"}, *const none[SETS] = {NULL};
    static const struct {
        const char *machine;
        int ranks;
        const char *const *set;
        double bandwidth;
    } row[] = {{"a100", 1, none, 0.8 * 32e9},         {"h100", 1, none, 0.8 * 64e9},
               {"h100", 8, zero, 0.8 * 64e9},         {"h100", 16, none, 0.8 * 64e9},
               {"h100", 16, zero, 45e9 / (15 / 16.)}, {"a100", 16, tp, 22.5e9 / (1 / 2.)},
               {"cpu", 2, zero, 54e9 * 0.95 / 2 / 2}, {"cpu", 4, zero, 1.1e9 / 2 / (3 / 4.)}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const Hardware h = preset(row[i].machine);
        Plan plan = plan_of(&h, row[i].ranks, row[i].set);
        int64_t most = snapshot_bytes_of_node(plan.config, plan.ranks, 1);
        double bandwidth = row[i].bandwidth;
        if (row[i].set == tp) bandwidth = fmin(bandwidth, 0.8 * 32e9);
        assert_true(most > 0 && most <= plan.snapshot);
        print_message("%s, %d ranks\n", row[i].machine, row[i].ranks);
        near(plan.snapshot_seconds, (double)most / bandwidth);
        end(&plan);
    }
}

/* In every save a writer receives the parts of the tensors that other ranks hold. Training waits
 * for that while the snapshot is taken or, if the save is synchronous (as the last one of a run
 * always is), during the save. Only the writing to disk can be pending. */
static void writers_of_synchronous_saves_also_receive_tensors_of_other_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *machine;
        int ranks;
        const char *set;
        double share, bandwidth;
    } row[] = {{"cpu", 1, "seed=1", 0, 1},
               {"h100", 16, "zero_optimization.stage=0", 0, 1},
               {"h100", 16, "zero_optimization.stage=1", 15 / 16., 45e9},
               {"a100", 16, "parallel.tensor=2", 1 / 2., 22.5e9},
               {"cpu", 4, "zero_optimization.stage=3", 3 / 4., 1.1e9 / 2}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const Hardware h = preset(row[i].machine);
        const char *const set[SETS] = {row[i].set, "checkpoint.async=true"},
                          *const wait[SETS] = {row[i].set, "checkpoint.async=false"};
        Plan async = plan_of(&h, row[i].ranks, set), plan = plan_of(&h, row[i].ranks, wait);
        double disk = fmin((double)plan.nodes * h.node_disk_bandwidth, h.disk_bandwidth),
               most = (double)snapshot_bytes_of_node(async.config, async.ranks, 1),
               written = (double)plan.stage[0].checkpoint_bytes / disk;
        near(plan.save_seconds, written + row[i].share * most / row[i].bandwidth);
        near(async.save_seconds, plan.save_seconds);
        near(plan_pending_seconds(&async, written / 25, 10), written * 15 / 25);
        waits(&plan, 0, 10 * plan.save_seconds);
        PlanSaves saves = plan_saves(&async, written);
        near(saves.snapshots, 9 * async.snapshot_seconds);
        near(saves.written, plan.save_seconds);
        end(&async);
        end(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_waits_for_snapshots_and_until_the_last_save_is_written),
        cmocka_unit_test(training_waits_for_the_disk_if_saves_are_synchronous),
        cmocka_unit_test(the_plan_says_how_much_memory_a_snapshot_lacks),
        cmocka_unit_test(a_save_waits_until_the_previous_save_is_written),
        cmocka_unit_test(snapshots_take_the_time_of_the_slowest_link_that_they_use),
        cmocka_unit_test(writers_of_synchronous_saves_also_receive_tensors_of_other_ranks),
    };
    return cmocka_run_group_tests_name("a plan's saves", tests, NULL, NULL);
}
