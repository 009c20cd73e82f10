/* test_hopper_choice.c -- tests which attention kernels run on a device that was opened for the
 * kernels for Hopper, and that models train with these kernels as with others: gradients,
 * recomputation, reruns, resumed runs, several ranks. On a GPU it needs compute capability 9.0 and
 * a program with code for sm_90a. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/support/device/hopper_needed.h"
#include "tests/support/model/exact_gradients.h"
#include "tests/support/support.h"
#include "tests/support/trainer/rank_run.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t (*launches_of_emulated(void))(const char *)
{
    return (int64_t(*)(const char *))dlsym(RTLD_DEFAULT, "emu_count_launches_of");
}

/* How many attention kernels of each kind an emulated device was given: for Hopper, portable ones
 * with tensor cores, and plain ones. */
typedef struct {
    int64_t hopper, flash, plain;
} Kinds;

static Kinds kinds_now(void)
{
    int64_t (*of)(const char *) = launches_of_emulated();
    Kinds k = {of("hopper_"), of("flash_"), of("attention_forward") + of("attention_backward")};
    return k;
}

static void open_cuda(Device *dev, bool hopper)
{
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1, .hopper_attention = hopper};
    if (!device_open(dev, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* A call of attention, forward and backward, whose operands begin `shift` elements after a multiple
 * of 16 bytes. */
typedef struct {
    bool opened; /* the device was opened for the kernels for Hopper */
    DType dtype;
    int64_t head_size, shift;
    char kind; /* h: for Hopper, f: flash, p: plain */
} Choice;

static void attend(Device *dev, const Choice *c)
{
    enum { T = 3, HEADS = 2, TENSORS = 8 };
    int64_t cols = HEADS * c->head_size, count = T * cols + 8;
    size_t bytes = (size_t)count * dtype_size(c->dtype);
    Tensor x[TENSORS], lse = tensor_3d(device_alloc(dev, 256, "lse"), F32, 1, HEADS, T);
    char *memory[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        memory[i] = device_alloc(dev, bytes, "operand");
        x[i] = tensor_3d(memory[i] + (size_t)c->shift * dtype_size(c->dtype), c->dtype, 1, T, cols);
    }
    Attention a = {.heads = HEADS, .kv_heads = HEADS, .head_size = c->head_size, .scale = 0.1f};
    op_attention_forward(dev, x[3], lse, x[0], x[1], x[2], a, (Tensor){0});
    AttentionTensors t = {.q = x[0],
                          .k = x[1],
                          .v = x[2],
                          .o = x[3],
                          .dout = x[4],
                          .dq = x[5],
                          .dk = x[6],
                          .dv = x[7],
                          .lse = lse};
    op_attention_backward(dev, &t, false, a);
    device_synchronize(dev);
    for (int i = 0; i < TENSORS; i++)
        device_release(dev, memory[i], bytes);
    device_release(dev, lse.data, 256);
}

static void the_device_and_the_operands_determine_the_attention_kernels(void **state)
{
    (void)state;
    static const Choice cases[] = {{true, BF16, 64, 0, 'h'},  {true, F16, 128, 0, 'h'},
                                   {true, BF16, 32, 0, 'f'},  {true, BF16, 96, 0, 'f'},
                                   {true, BF16, 64, 1, 'p'},  {true, F32, 64, 0, 'p'},
                                   {false, BF16, 64, 0, 'f'}, {false, F16, 128, 0, 'f'}};
    hopper_needed();
    if (launches_of_emulated() == NULL) skip_because("only the emulated device counts launches");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Choice *c = &cases[i];
        Device dev;
        open_cuda(&dev, c->opened);
        Kinds before = kinds_now();
        attend(&dev, c);
        Kinds after = kinds_now();
        device_close(&dev);
        int64_t hopper = after.hopper - before.hopper, flash = after.flash - before.flash,
                plain = after.plain - before.plain;
        if ((hopper > 0) != (c->kind == 'h') || (flash > 0) != (c->kind == 'f') ||
            (plain > 0) != (c->kind == 'p'))
            fail_msg("case %zu: %lld kernels for Hopper, %lld flash and %lld plain", i,
                     (long long)hopper, (long long)flash, (long long)plain);
    }
}

/* A device that cannot run the kernels for Hopper cannot be opened for them. */
static void devices_that_cannot_run_hopper_kernels_are_refused(void **state)
{
    (void)state;
    cuda_needed();
    if (launches_of_emulated() == NULL)
        skip_because("only the emulated device has any compute capability");
    for (int i = 0; i < 2; i++) {
        Device dev;
        char err[512] = "";
        DeviceOptions options = {.threads = 1, .local_ranks = 1, .hopper_attention = true};
        setenv("EMU_CAPABILITY", i ? "100" : "80", 1);
        assert_false(device_open(&dev, "cuda", &options, err, sizeof err));
        unsetenv("EMU_CAPABILITY");
        assert_non_null(strstr(err, i ? "has 10.0; write" : "has 8.0; write"));
    }
}

/* ---- whole models ---------------------------------------------------------------------------- */

/* The error of each gradient is at most 1.5 times that of the portable kernels, at both head sizes.
 * T is more than a tile of queries. */
static void gradients_are_as_exact_as_with_portable_kernels(void **state)
{
    enum { B = 1, T = 136, MICROS = 1 };
    (void)state;
    hopper_needed();
    for (int i = 0; i < (getenv("TEST_SAMPLE") ? 1 : 2); i++) {
        DType dtype = i ? F16 : BF16;
        Fixture exact, portable, hopper;
        GptShape s = i ? fixture_shape() : fixture_llama_shape();
        s.D = i ? 128 : 64;
        s.C = s.H * s.D;
        s.F = 136;
        s.P = T;
        GptShape wide = fixture_with_dtype(s, F64);
        s = fixture_with_dtype(s, dtype);
        fixture_open_on(&portable, "cuda", &s, B, T, MICROS, 1, 0);
        fixture_open_on(&hopper, "hopper", &s, B, T, MICROS, 1, 0);
        fixture_open_on(&exact, "cpu", &wide, B, T, MICROS, 1, 0);
        gradients_copy_weights(&exact, &portable);
        gradients_copy_weights(&hopper, &portable);
        double want = fixture_backward(&exact), here = fixture_backward(&portable),
               there = fixture_backward(&hopper);
        gradients_check_loss(there, here, want, dtype, dtype_name(dtype));
        gradients_check(&hopper, &portable, &exact, 1.5, dtype, dtype_name(dtype));
        fixture_close(&exact);
        fixture_close(&hopper);
        fixture_close(&portable);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* Saves, closes and opens the run again with the same settings. */
static void resume(Opened *o, const Folder *folder, const char *const *sets)
{
    char err[1024] = "there is no checkpoint";
    char *run = text_format("%s/resumed", folder->folder);
    Checkpoint *c;
    if (!trainer_save(&o->trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_run_close(o);
    trainer_run_open(o, folder, sets);
    if (!checkpoint_open_newest(&o->trainer.io, run, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    if (!trainer_load(&o->trainer, c, err, sizeof err)) fail_msg("%s", err);
    checkpoint_close(c);
    free(run);
}

/* Trains STEPS steps. With `resumes`, the run is saved and resumed after the first of them. */
static void train(Trained *out, const Folder *folder, const char *attention, const char *policy,
                  bool resumes)
{
    enum { STEPS = 2 };
    Opened o;
    char kernels[64], recompute[64];
    snprintf(kernels, sizeof kernels, "cuda.attention=%s", attention);
    snprintf(recompute, sizeof recompute, "activation_checkpointing.policy=%s", policy);
    const char *const sets[] = {"device=cuda",
                                "bf16.enabled=true",
                                kernels,
                                recompute,
                                "model.hidden_size=128",
                                "model.num_attention_heads=2",
                                "model.num_key_value_heads=1",
                                "model.num_layers=1",
                                "data.seq_length=72",
                                NULL};
    trainer_run_open(&o, folder, sets);
    if (resumes) {
        trainer_run_steps(&o, out, 1);
        resume(&o, folder, sets);
    } else {
        trainer_warm_up(&o.trainer);
    }
    trainer_run_steps(&o, out, STEPS);
    trainer_run_read(&o, out);
    trainer_run_close(&o);
}

/* Requires similar losses and similar norms of the gradients in both runs. The losses of so few
 * steps hardly depend on attention; the norms do. */
static void losses_near(const Trained *a, const Trained *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        double x = a->record[i].loss, y = b->record[i].loss;
        if (!(fabs(x - y) <= 1e-2 * fabs(y))) fail_msg("step %d: loss %g, not %g", i + 1, x, y);
        x = a->record[i].grad_norm, y = b->record[i].grad_norm;
        if (!(fabs(x - y) <= 2e-2 * fabs(y))) fail_msg("step %d: norm %g, not %g", i + 1, x, y);
    }
}

/* Reruns, recomputation and a resumed run have the same bits. The losses must also be about the
 * same as with the portable kernels; with TEST_SAMPLE this comparison is left out. */
static void training_with_hopper_attention_is_reproducible_bit_for_bit(void **state)
{
    static const char *const policies[] = {"none", "selective", "full"};
    Trained first = {0};
    hopper_needed();
    int64_t (*of)(const char *) = launches_of_emulated();
    int64_t flash = of ? of("flash_") : 0, hopper = of ? of("hopper_") : 0;
    train(&first, *state, "hopper", "none", false);
    for (int i = getenv("TEST_SAMPLE") ? 2 : 0; i < 4; i++) {
        Trained again = {0};
        const char *policy = i < 3 ? policies[i] : "none";
        train(&again, *state, "hopper", policy, i == 3);
        trained_equal(&first, &again, i < 3 ? policy : "resumed");
        free(again.bytes);
    }
    if (of) assert_true(of("flash_") == flash && of("hopper_") > hopper);
    if (!getenv("TEST_SAMPLE")) {
        Trained portable = {0};
        train(&portable, *state, "portable", "none", false);
        if (of) assert_true(of("flash_") > flash);
        losses_near(&first, &portable);
        free(portable.bytes);
    }
    free(first.bytes);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Trains on `ranks` ranks that share a GPU, with these settings on top of those of all runs. */
static void train_ranks(RankRun *run, const Folder *folder, int ranks, const char *const *sets)
{
    const char *all[16] = {
        "device=cuda",           "bf16.enabled=true",           "cuda.attention=hopper",
        "model.hidden_size=256", "model.num_attention_heads=4", "model.num_key_value_heads=2",
        "model.num_layers=2",    "data.seq_length=24",          "optimizer.params.lr=1e-4"};
    int n = 9;
    for (; *sets; sets++)
        all[n++] = *sets;
    all[n] = NULL;
    int64_t (*of)(const char *) = launches_of_emulated();
    int64_t flash = of ? of("flash_") : 0, hopper = of ? of("hopper_") : 0;
    rank_run_open(run, folder, ranks, all);
    rank_run_train(run);
    if (of && !(of("hopper_") > hopper && of("flash_") == flash))
        fail_msg("%s: not all attention was computed by the kernels for Hopper", run->name);
}

/* Heads of size 64. Each of two tensor-parallel ranks has two query heads and one kv head. In bf16
 * the ranks' partial sums are rounded, so losses are about the same; the learning rate is small
 * because AdamW amplifies what rounding changes. */
static void ranks_with_hopper_attention_train_like_a_single_rank(void **state)
{
    static const char *const one[] = {"train_batch_size=2", "gradient_accumulation_steps=2", NULL};
    static const char *const grids[][5] = {
        {"train_batch_size=2", "gradient_accumulation_steps=2", "parallel.tensor=2"},
        {"train_batch_size=2", "gradient_accumulation_steps=2", "parallel.pipeline=2"},
        {"train_batch_size=2", "zero_optimization.stage=3",
         "zero_optimization.stage3_param_persistence_threshold=0"},
    };
    RankRun single = {0};
    hopper_needed();
    if (getenv("TEST_SAMPLE")) skip_because("four whole runs; TEST_SAMPLE is set");
    train_ranks(&single, *state, 1, one);
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        RankRun run = {0};
        train_ranks(&run, *state, 2, grids[i]);
        const Trained *a = &run.result[0], *b = &single.result[0];
        /* The fewer micro-batches a run accumulates, the more steps it may take (rank_run.c). Only
         * steps that both runs have are compared. */
        for (int k = 0; k < a->n && k < b->n; k++) {
            double x = a->record[k].loss, y = b->record[k].loss;
            if (!(fabs(x - y) <= 1e-2 * fabs(y)))
                fail_msg("%s: step %d: loss %g, not %g", run.name, k + 1, x, y);
            x = a->record[k].grad_norm, y = b->record[k].grad_norm;
            if (!(fabs(x - y) <= 2e-2 * fabs(y)))
                fail_msg("%s: step %d: norm %g, not %g", run.name, k + 1, x, y);
        }
        rank_run_close(&run);
    }
    rank_run_close(&single);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_and_the_operands_determine_the_attention_kernels),
        cmocka_unit_test(devices_that_cannot_run_hopper_kernels_are_refused),
        cmocka_unit_test(gradients_are_as_exact_as_with_portable_kernels),
        cmocka_unit_test(training_with_hopper_attention_is_reproducible_bit_for_bit),
        cmocka_unit_test(ranks_with_hopper_attention_train_like_a_single_rank),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
