/* test_offload.c -- training with the optimizer's states in host memory
 * (zero_optimization.offload_optimizer) computes the same bits as without, on one rank and on
 * several, through saves and resumes, and holds what the memory plan says. On the CPU, and on a
 * device if TEST_DEVICE names one. */
#include "model/core/check.h"
#include "tests/support/files/child.h"
#include "tests/support/support.h"
#include "tests/support/trainer/rank_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KEY "zero_optimization.offload_optimizer."

enum { SETS = 5, STEPS = 6, SAVED_AT = 3 };

static const char *device_setting(void)
{
    const char *device = getenv("TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0 ? "device=cuda" : "device=cpu";
}

/* ---- the same bits --------------------------------------------------------------------------- */

/* With fp16 and a large loss scale the first steps overflow and are skipped. */
static const char *const modes[][SETS] = {
    {"zero_optimization.stage=0"},
    {"bf16.enabled=true", "zero_optimization.stage=1"},
    {"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true", "zero_optimization.stage=3",
     "zero_optimization.stage3_param_persistence_threshold=200"},
    {"bf16.enabled=true", "bf16.bf16_optimizer_states=true", "zero_optimization.stage=2"},
    {"optimizer.type=SGD", "optimizer.params.momentum=0.9", "zero_optimization.stage=2"},
    {"fp16.enabled=true", "fp16.initial_scale_power=31", "zero_optimization.stage=2",
     "zero_optimization.overlap_comm=false"},
};
enum { MODES = sizeof modes / sizeof *modes };

/* Trains with the settings of a mode and a ratio; ratio NULL: without offload. */
static void train(const Folder *folder, int ranks, int mode, const char *ratio, RankRun *run)
{
    const char *sets[SETS + 6] = {device_setting(), "gradient_accumulation_steps=2"};
    char text[80];
    int n = 2;
    for (int i = 0; i < SETS && modes[mode][i]; i++)
        sets[n++] = modes[mode][i];
    snprintf(text, sizeof text, KEY "ratio=%s", ratio ? ratio : "");
    if (ratio) sets[n++] = KEY "device=cpu";
    if (ratio) sets[n++] = text;
    *run = (RankRun){0};
    rank_run_open(run, folder, ranks, sets);
    rank_run_train(run);
}

static bool skips(const Trained *result)
{
    bool found = false;
    for (int i = 0; i < result->n; i++)
        found |= !result->record[i].applied;
    return found;
}

static void optimizer_states_in_host_memory_change_no_bit(void **state)
{
    static const char *const ratios[] = {"1", "0", "0.4"};
    if (strcmp(device_setting(), "device=cuda") == 0) cuda_needed();
    /* A sample, for slow devices, has one number of ranks and two of the ratios for each mode. */
    bool sample = getenv("TEST_SAMPLE") != NULL;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int mode = 0; mode < MODES; mode++) {
            if (sample && ranks != 1 + (mode + 1) % 2) continue;
            RankRun off, on;
            train(*state, ranks, mode, NULL, &off);
            assert_int_equal(skips(&off.result[0]), mode == MODES - 1);
            for (int r = 0; r < (sample ? 2 : 3); r++) {
                train(*state, ranks, mode, ratios[(mode + r) % 3], &on);
                rank_runs_equal(&off, &on);
                rank_run_close(&on);
            }
            rank_run_close(&off);
        }
}

/* ---- saves ----------------------------------------------------------------------------------- */

/* Trains until `until`, from the newest checkpoint of `run` if `load`, and saves there if `save`.
 */
static void part(const Folder *folder, const char *offload, const char *run, bool load, bool save,
                 int64_t until, Trained *out)
{
    Opened o;
    char err[1024];
    Checkpoint *c = NULL;
    trainer_run_open(&o, folder, (const char *const[]){device_setting(), offload, NULL});
    if (load) {
        if (!checkpoint_open_newest(&o.trainer.io, run, &c, err, sizeof err) || c == NULL)
            fail_msg("%s", err);
        if (!trainer_load(&o.trainer, c, err, sizeof err)) fail_msg("%s", err);
        checkpoint_close(c);
    }
    trainer_run_steps(&o, out, until);
    if (save && !trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_run_read(&o, out);
    trainer_run_close(&o);
}

static void a_run_resumes_with_offload_on_off_or_at_another_ratio(void **state)
{
    static const char *const keys[] = {KEY "device=none", KEY "device=cpu", KEY "device=none"};
    const Folder *folder = *state;
    if (strcmp(device_setting(), "device=cuda") == 0) cuda_needed();
    Trained whole = {0};
    part(folder, keys[0], "", false, false, STEPS, &whole);
    for (int i = 0; i < 2; i++) {
        char *run = text_format("%s/flipped-%d", folder->folder, i);
        Trained parts = {0};
        part(folder, keys[i], run, false, true, SAVED_AT, &parts);
        free(parts.bytes);
        part(folder, keys[i + 1], run, true, false, STEPS, &parts);
        trained_equal(&whole, &parts, keys[i + 1]);
        free(parts.bytes);
        free(run);
    }
    free(whole.bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define BF16       "bf16.enabled=true"
#define MASTERLESS "bf16.bf16_master_weights_and_grads=true"

/* Opens a trainer of one rank and compares what it holds with its plan. Returns the plan. */
static MemoryPlan held(const Folder *folder, const char *device, const char *ratio,
                       const char *const *types)
{
    Opened o;
    trainer_run_open(
        &o, folder,
        (const char *const[]){device_setting(), device, ratio, types[0], types[1], types[2], NULL});
    MemoryPlan plan = o.plan;
    assert_int_equal(plan.offloaded, o.trainer.host_states.bytes);
    assert_int_equal(plan.total, o.trainer.session.dev.held);
    assert_int_equal(plan.host, trainer_run_host_bytes(&o));
    trainer_run_close(&o);
    return plan;
}

static void the_memory_plan_equals_what_a_trainer_holds_on_device_and_host(void **state)
{
    static const struct {
        const char *types[3];
        size_t each; /* bytes of an element's states */
    } row[] = {{{"fp64.enabled=false"}, 8},
               {{BF16, "bf16.bf16_optimizer_states=false"}, 12},
               {{BF16, "bf16.bf16_optimizer_states=true"}, 8},
               {{BF16, MASTERLESS, "bf16.bf16_optimizer_states=false"}, 8},
               {{BF16, MASTERLESS, "bf16.bf16_optimizer_states=true"}, 4}};
    size_t elements = 0;
    if (strcmp(device_setting(), "device=cuda") == 0) cuda_needed();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *const *types = row[i].types;
        MemoryPlan off = held(*state, KEY "device=none", KEY "ratio=1", types),
                   all = held(*state, KEY "device=cpu", KEY "ratio=1", types),
                   none = held(*state, KEY "device=cpu", KEY "ratio=0", types),
                   part = held(*state, KEY "device=cpu", KEY "ratio=0.4", types);
        size_t states = all.offloaded;
        assert_true(off.offloaded == 0 && none.offloaded == 0 && none.optimizer == off.optimizer);
        /* Where something is rounded stochastically, the tables of segments stay on the device. */
        assert_int_equal(states + all.optimizer, off.optimizer);
        assert_int_equal(all.optimizer > 0, i >= 2);
        if (i == 0) elements = states / row[0].each;
        assert_int_equal(states, elements * row[i].each);
        assert_int_equal(part.offloaded + part.optimizer, off.optimizer);
        assert_true((double)(part.optimizer - all.optimizer) <= 0.6 * (double)states &&
                    (double)part.offloaded >= 0.4 * (double)states);
        /* The share that a plan prints is a share of the states, without these tables. */
        assert_true(memory_offloaded_share(&none) == 0 && memory_offloaded_share(&all) == 1);
        assert_true(memory_offloaded_share(&part) == (double)part.offloaded / (double)states);
    }
}

/* ---- memory that is refused ------------------------------------------------------------------ */

typedef struct {
    const Folder *folder;
    int at; /* the call that is refused, from 1 */
} Refusal;
static int calls, refused_call;

static void *refuse(Device *device, size_t bytes)
{
    static const Backend *real;
    if (real == NULL) real = device_choice("cpu");
    return ++calls == refused_call ? NULL : real->host_alloc(device, bytes);
}

/* Opens a trainer whose at-th allocation of host memory is refused. */
static void open_refused(void *context)
{
    const Refusal *r = context;
    Training training;
    Trainer t;
    training_of_text(&training, r->folder, 1,
                     (const char *const[]){"device=cpu", KEY "device=cpu", NULL});
    training_lay_out(&t, NULL, &training);
    Backend own = *t.session.dev.backend;
    own.host_alloc = refuse;
    t.session.dev.backend = &own;
    calls = 0;
    refused_call = r->at;
    training_allocate(&t, &training);
    _exit(0);
}

/* On the CPU, because a process that has used CUDA cannot start children that do. Whichever
 * allocation is refused, the program ends and its message names the allocation; for optimizer
 * states it also names the config's key. */
static void refused_host_memory_ends_the_program_with_a_reason(void **state)
{
    char said[4096];
    int code = EXIT_NO_MEMORY, of_states = 0, units = 0;
    Opened o;
    trainer_run_open(&o, *state, (const char *const[]){"device=cpu", NULL});
    units = o.trainer.session.table.n_units;
    trainer_run_close(&o);
    for (int at = 1; code == EXIT_NO_MEMORY; at++) {
        Refusal r = {*state, at};
        code = child_run(open_refused, &r, said, sizeof said);
        if (code == 0) break;
        assert_int_equal(code, EXIT_NO_MEMORY);
        assert_non_null(strstr(said, "host memory for "));
        assert_non_null(strstr(said, "refused"));
        of_states += strstr(said, "lower zero_optimization.offload_optimizer.ratio") != NULL;
    }
    assert_int_equal(code, 0);
    assert_int_equal(of_states, units);
}

/* ---- the host -------------------------------------------------------------------------------- */

/* A step neither waits for the device nor allocates. */
static void a_step_does_not_make_the_host_wait(void **state)
{
    Opened o;
    if (strcmp(device_setting(), "device=cuda") == 0) cuda_needed();
    trainer_run_open(
        &o, *state,
        (const char *const[]){device_setting(), KEY "device=cpu", KEY "ratio=0.7", NULL});
    Device *dev = &o.trainer.session.dev;
    int64_t waits = dev->waits, allocations = dev->allocations;
    trainer_step(&o.trainer);
    trainer_step(&o.trainer);
    assert_int_equal(dev->waits, waits);
    assert_int_equal(dev->allocations, allocations);
    trainer_run_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_states_in_host_memory_change_no_bit),
        cmocka_unit_test(a_run_resumes_with_offload_on_off_or_at_another_ratio),
        cmocka_unit_test(the_memory_plan_equals_what_a_trainer_holds_on_device_and_host),
        cmocka_unit_test(refused_host_memory_ends_the_program_with_a_reason),
        cmocka_unit_test(a_step_does_not_make_the_host_wait),
    };
    return cmocka_run_group_tests_name("offload", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
