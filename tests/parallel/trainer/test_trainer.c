/* test_trainer.c -- the training step as a whole: resume, skipped steps, gradient accumulation, and
 * operations that must not affect training. */
#include "optim/lr_schedule.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/trainer/trainer_fixture.h"
#include "tests/support/turns.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 6 };

/* Makes STEPS steps without a break. */
static void uninterrupted(const Folder *p, const char *const *sets, Trained *out)
{
    Opened o;
    *out = (Trained){0};
    trainer_run_open(&o, p, sets);
    trainer_run_steps(&o, out, STEPS);
    trainer_run_read(&o, out);
    trainer_run_close(&o);
}

/* Makes STEPS steps, with a save, a close and a resume after step k. */
static void interrupted(const Folder *p, const char *const *sets, int64_t k, Trained *out)
{
    Opened o;
    char err[1024];
    char *run = text_format("%s/run_%lld", p->folder, (long long)k);
    Checkpoint *c;
    *out = (Trained){0};
    trainer_run_open(&o, p, sets);
    trainer_run_steps(&o, out, k);
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_run_close(&o);
    trainer_run_open(&o, p, sets);
    if (!checkpoint_open_newest(&o.trainer.io, run, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    if (!trainer_load(&o.trainer, c, err, sizeof err)) fail_msg("%s", err);
    checkpoint_close(c);
    assert_int_equal(o.trainer.steps, k);
    trainer_run_steps(&o, out, STEPS);
    trainer_run_read(&o, out);
    trainer_run_close(&o);
    char *command = text_format("rm -rf '%s'", run);
    assert_int_equal(system(command), 0);
    free(command);
    free(run);
}

/* Returns the distance, in steps, between the steps after which a run is interrupted and resumed.
 * An emulated device (TEST_DEVICE) and a sanitizer (TEST_SAMPLE) are slow. With one of them, a run
 * is resumed after one or two of its five steps; with both, after only one. */
static int64_t resume_stride(void)
{
    bool device = getenv("TEST_DEVICE") != NULL, sample = getenv("TEST_SAMPLE") != NULL;
    return device && sample ? STEPS - 1 : device || sample ? STEPS / 2 : 1;
}

/* Resumes after every step, or only after every resume_stride()-th. In the second case the first
 * one depends on `mode` and on the commit (turns.h). */
static void check_resume(const Folder *p, const char *const *sets, int64_t mode, const char *what)
{
    Trained whole, parts;
    int64_t every = resume_stride();
    uninterrupted(p, sets, &whole);
    for (int64_t k = 1 + (mode + turns_first(every)) % every; k < STEPS; k += every) {
        interrupted(p, sets, k, &parts);
        trained_equal(&whole, &parts, what);
        free(parts.bytes);
    }
    free(whole.bytes);
}

/* Settings that change the memory layout or the arithmetic. */
static const char *const modes[][3] = {
    {"seed=1"},
    {"fp64.enabled=true"},
    {"bf16.enabled=true"},
    {"fp16.enabled=true"},
    {"activation_checkpointing.policy=selective"},
    {"activation_checkpointing.policy=full"},
    {"optimizer.type=SGD", "optimizer.params={\"lr\":0.1,\"momentum\":0.9}"}};
enum { MODES = sizeof modes / sizeof *modes };

/* A resumed run must equal the uninterrupted one, at every step and in every dtype (bugs 7, 41, 42,
 * 44, 51). With TEST_EVERY=N, every N-th mode is tested; N must be odd, or else a mode would be
 * resumed only after odd or only after even steps. */
static void test_bug_7_41_42_44_51_a_resume_after_any_step_trains_the_same_bits(void **state)
{
    int64_t every = turns_every(1);
    for (int64_t i = turns_first(every); i < MODES; i += every)
        check_resume(*state, modes[i], i, modes[i][0]);
}

/* Weights without master copies are rounded by random numbers that depend on the number of the
 * update, which a resumed run must continue. */
static const char *const no_masters[] = {"bf16.enabled=true",
                                         "bf16.bf16_master_weights_and_grads=true", NULL};

static void test_bug_42_a_resume_without_master_weights_trains_the_same_bits(void **state)
{
    Trained whole, parts;
    uninterrupted(*state, no_masters, &whole);
    interrupted(*state, no_masters, 3, &parts);
    trained_equal(&whole, &parts, "no masters");
    free(whole.bytes);
    free(parts.bytes);
}

/* The first fp16 steps overflow: skipped steps, hysteresis and the falling loss scale must survive
 * a resume (bugs 8, 11). */
static void test_bug_8_11_42_a_resume_after_skipped_fp16_steps_trains_the_same_bits(void **state)
{
    const char *const sets[] = {"fp16.enabled=true", "fp16.initial_scale_power=30",
                                "fp16.loss_scale_window=2", NULL};
    Trained whole;
    uninterrupted(*state, sets, &whole);
    assert_true(whole.state.skipped > 0);
    assert_int_equal(whole.state.steps, STEPS);
    assert_int_equal(whole.state.updates, STEPS - whole.state.skipped);
    assert_true(whole.state.loss_scale < 0x1p30);
    free(whole.bytes);
    check_resume(*state, sets, 0, "fp16");
}

/* Evaluating and sampling must not change any bit of training (bugs 26, 50). */
static void test_bug_26_50_evaluating_and_sampling_do_not_change_training(void **state)
{
    Opened o;
    Trained whole, with = {0};
    double last = INFINITY;
    uninterrupted(*state, (const char *const[]){NULL}, &whole);
    trainer_run_open(&o, *state, (const char *const[]){NULL});
    for (int64_t s = 1; s <= STEPS; s++) {
        trainer_run_steps(&o, &with, s);
        EvalRecord e = trainer_evaluate(&o.trainer, s % 2 ? 0 : 1);
        EvalRecord again = trainer_evaluate(&o.trainer, s % 2 ? 0 : 1);
        double guessing = log((double)o.data.vocab_size);
        assert_true(e.loss == again.loss && e.bits_per_byte == again.bits_per_byte);
        if (!(e.loss < 1.02 * guessing && (s % 2 || e.loss < last)))
            fail_msg("step %lld: validation loss %g after %g; guessing has %g", (long long)s,
                     e.loss, last, guessing);
        if (s % 2 == 0) last = e.loss; /* loss of the same batch two updates earlier */
        free(trainer_sample(&o.trainer, "the water", 8));
    }
    trainer_run_read(&o, &with);
    trained_equal(&whole, &with, "evaluation");
    free(whole.bytes);
    free(with.bytes);
    trainer_run_close(&o);
}

/* The same global batch in micro-batches of another size gives the same training, up to rounding in
 * f64 (bugs 1, 3, 45). */
static void test_bug_1_3_45_the_micro_batch_size_does_not_change_training(void **state)
{
    const char *const sizes[] = {"train_micro_batch_size_per_gpu=1",
                                 "train_micro_batch_size_per_gpu=2",
                                 "train_micro_batch_size_per_gpu=4"};
    Trained out[3];
    for (int i = 0; i < 3; i++)
        uninterrupted(*state, (const char *const[]){"fp64.enabled=true", sizes[i], NULL}, &out[i]);
    for (int i = 1; i < 3; i++) {
        for (int s = 0; s < STEPS; s++) {
            double a = out[0].record[s].loss, b = out[i].record[s].loss;
            if (!(fabs(a - b) <= 1e-12 * a))
                fail_msg("%s: loss %d is %.17g, not %.17g", sizes[i], s + 1, b, a);
            a = out[0].record[s].grad_norm, b = out[i].record[s].grad_norm;
            assert_true(fabs(a - b) <= 1e-11 * a);
        }
        assert_int_equal(out[i].state.samples, out[0].state.samples);
    }
    for (int i = 0; i < 3; i++)
        free(out[i].bytes);
}

/* A NaN skips the step, changes no weight and has no later effect: the next step is like a first
 * step (bugs 10, 11). */
static void test_bug_10_11_a_nan_loss_skips_the_step_without_further_effect(void **state)
{
    Opened a, b;
    Trained after_skip = {0}, alone = {0};
    trainer_run_open(&a, *state, (const char *const[]){NULL});
    trainer_run_open(&b, *state, (const char *const[]){NULL});
    Device *dev = &a.trainer.session.dev;
    Tensor weight = tensor_1d((float *)a.trainer.weights[1].data.data + 5, F32, 1);
    float kept, nan = NAN;
    device_copy(dev, tensor_1d(&kept, F32, 1), weight);
    Trained before;
    trainer_run_read(&a, &before);
    device_copy(dev, weight, tensor_1d(&nan, F32, 1));
    trainer_run_steps(&a, &after_skip, 1);
    assert_false(after_skip.record[0].applied);
    assert_true(isnan(after_skip.record[0].loss));
    assert_int_equal(after_skip.record[0].skips_in_row, 1);
    device_copy(dev, weight, tensor_1d(&kept, F32, 1));
    Trained unchanged;
    trainer_run_read(&a, &unchanged);
    assert_memory_equal(before.bytes, unchanged.bytes, before.size);
    trainer_run_steps(&a, &after_skip, 2);
    assert_true(after_skip.record[1].applied);
    assert_int_equal(after_skip.record[1].skips_in_row, 0);
    /* This trainer begins with the second batch. */
    b.trainer.samples = b.trainer.position = b.trainer.constants.samples;
    trainer_run_steps(&b, &alone, 1);
    trainer_run_read(&a, &after_skip);
    trainer_run_read(&b, &alone);
    assert_memory_equal(after_skip.bytes, alone.bytes, alone.size);
    assert_true(after_skip.record[1].loss == alone.record[0].loss);
    free(before.bytes);
    free(unchanged.bytes);
    free(after_skip.bytes);
    free(alone.bytes);
    trainer_run_close(&a);
    trainer_run_close(&b);
}

/* The recorded loss must be the mean over all micro-batches (bug 5), and the recorded learning rate
 * that of the schedule (bug 41). */
static void test_bug_5_41_a_record_has_the_mean_loss_and_the_scheduled_lr(void **state)
{
    Opened o;
    Trained out = {0};
    double sum = 0;
    trainer_run_open(&o, *state,
                     (const char *const[]){"fp64.enabled=true", "data.shuffle=false",
                                           "optimizer.params.lr=0", NULL});
    trainer_run_steps(&o, &out, 1);
    /* Each micro-batch alone; with lr 0 the step has not changed the weights. */
    for (int micro = 0; micro < 2; micro++) {
        Batch batch;
        char err[256];
        double nats = 0;
        assert_true(loader_next(o.trainer.train, 0, micro, &batch, err, sizeof err));
        GptBatch b = {tensor_flat(batch.tokens), tensor_flat(batch.targets),
                      tensor_flat(batch.positions), NO_TENSOR};
        int64_t Vp = o.trainer.session.layers.shape.Vp, V = o.trainer.session.layers.shape.V;
        Tensor z = tensor_2d(must_calloc((size_t)(32 * Vp), 8), F64, 32, Vp);
        o.trainer.session.params->step_begin(o.trainer.session.params, NULL, 0);
        model_logits(o.trainer.gpt, &b, z);
        for (int64_t i = 0; i < 32; i++) {
            double total = 0, *row = tensor_row(z, i);
            for (int64_t v = 0; v < V; v++)
                total += exp(row[v]);
            nats += log(total) - row[((int32_t *)b.targets.data)[i]];
        }
        sum += nats / 64;
        free(z.data);
    }
    assert_true(fabs(sum - out.record[0].loss) < 1e-12 * sum);
    assert_true(out.record[0].lr == lr_schedule(o.config, 0));
    assert_int_equal(out.record[0].samples, 4);
    assert_int_equal(out.record[0].tokens, 64);
    trainer_run_close(&o);
}

/* One update must change every parameter (bug 36). With warmup the first update has lr 0, so the
 * scheduler is Constant here. */
static void test_bug_36_one_update_changes_every_parameter(void **state)
{
    Opened o;
    Trained a, b, out = {0};
    trainer_run_open(&o, *state,
                     (const char *const[]){"scheduler.type=Constant", "scheduler.params={}", NULL});
    trainer_run_read(&o, &a);
    trainer_run_steps(&o, &out, 1);
    trainer_run_read(&o, &b);
    size_t at = 0;
    for (int i = 0; i < o.trainer.session.table.n_params; i++) {
        size_t size = tensor_bytes(o.trainer.weights[i].data);
        if (memcmp(a.bytes + at, b.bytes + at, size) == 0)
            fail_msg("%s did not move", o.trainer.weights[i].name);
        at += size;
    }
    free(a.bytes);
    free(b.bytes);
    trainer_run_close(&o);
}

/* The plan must equal what a trainer allocates, to the byte. */
static void test_the_memory_plan_equals_what_is_allocated(void **state)
{
    for (int i = 0; i <= MODES; i++) {
        Opened o;
        trainer_run_open(&o, *state, i < MODES ? modes[i] : no_masters);
        MemoryPlan plan = o.plan;
        GptBytes gpt = gpt_bytes(&o.trainer.session.layers, NULL, 2, 16, GPT_TRAIN);
        assert_int_equal(plan.optimizer, o.trainer.optimizer_bytes.device);
        assert_int_equal(plan.activations, gpt.activations);
        assert_int_equal(plan.scratch, gpt.scratch);
        assert_int_equal(plan.total, o.trainer.session.dev.held);
        assert_int_equal(plan.host, trainer_run_host_bytes(&o));
        trainer_run_close(&o);
    }
}

/* Returns the counter `name` of the emulated CUDA runtime; 0 if it is not linked. */
static int64_t emulated(const char *name)
{
    int64_t (*count)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, name);
    return count ? count() : 0;
}

/* Records are read while the device works: they must be complete, in order, and never waited
 * for. */
static void test_reading_records_never_waits_for_the_device(void **state)
{
    Opened o;
    Trained whole, some = {0};
    uninterrupted(*state, (const char *const[]){NULL}, &whole);
    trainer_run_open(&o, *state, (const char *const[]){NULL});
    const Device *dev = &o.trainer.session.dev;
    while (o.trainer.steps < STEPS) {
        trainer_step(&o.trainer);
        int64_t waits = dev->waits, emu_waits = emulated("emu_count_waits");
        some.n += trainer_read(&o.trainer, some.record + some.n);
        assert_int_equal(dev->waits, waits);
        assert_int_equal(emulated("emu_count_waits"), emu_waits);
    }
    trainer_run_steps(&o, &some, STEPS);
    trainer_run_read(&o, &some);
    trained_equal(&whole, &some, "collected");
    free(whole.bytes);
    free(some.bytes);
    trainer_run_close(&o);
}

/* After the first step has created what is created once, a step only issues work: it allocates no
 * memory and does not wait for the device. The host may be two steps ahead. */
static void test_a_step_neither_waits_nor_allocates(void **state)
{
    static const char *const dtypes[][3] = {
        {"seed=1"},
        {"bf16.enabled=true"},
        {"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true"},
        {"fp16.enabled=true"}};
    for (int i = 0; i < 4; i++) {
        Opened o;
        trainer_run_open(&o, *state, dtypes[i]);
        const Device *dev = &o.trainer.session.dev;
        Trained first = {0};
        trainer_run_steps(&o, &first, 1);
        int64_t waits = dev->waits, allocations = dev->allocations;
        int64_t emu_waits = emulated("emu_count_waits");
        int64_t emu_allocations = emulated("emu_count_allocations");
        trainer_step(&o.trainer);
        trainer_step(&o.trainer);
        assert_int_equal(dev->waits, waits);
        assert_int_equal(dev->allocations, allocations);
        assert_int_equal(emulated("emu_count_waits"), emu_waits);
        assert_int_equal(emulated("emu_count_allocations"), emu_allocations);
        /* For profilers, every op is in a range with its name, and every range must end. */
        assert_int_equal(emulated("emu_ranges_open"), 0);
        assert_int_equal(emulated("emu_ranges_begun") > 0, emulated("emu_count_allocations") > 0);
        trainer_run_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_7_41_42_44_51_a_resume_after_any_step_trains_the_same_bits),
        cmocka_unit_test(test_bug_42_a_resume_without_master_weights_trains_the_same_bits),
        cmocka_unit_test(test_bug_8_11_42_a_resume_after_skipped_fp16_steps_trains_the_same_bits),
        cmocka_unit_test(test_bug_26_50_evaluating_and_sampling_do_not_change_training),
        cmocka_unit_test(test_bug_1_3_45_the_micro_batch_size_does_not_change_training),
        cmocka_unit_test(test_bug_10_11_a_nan_loss_skips_the_step_without_further_effect),
        cmocka_unit_test(test_bug_5_41_a_record_has_the_mean_loss_and_the_scheduled_lr),
        cmocka_unit_test(test_bug_36_one_update_changes_every_parameter),
        cmocka_unit_test(test_the_memory_plan_equals_what_is_allocated),
        cmocka_unit_test(test_reading_records_never_waits_for_the_device),
        cmocka_unit_test(test_a_step_neither_waits_nor_allocates),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
