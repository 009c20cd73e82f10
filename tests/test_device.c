/* test_device.c -- what a run promises on a device with memory of its own: everything is used once
 * before the first step, the plan covers what opening takes, and saving neither allocates nor waits
 * for more than its copy. Where CUDA is not built in, or there is no device, nothing is to be
 * tested here. */
#include "parallel/trainer.h"
#include "tests/data_support.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { STEPS = 3, MAX_SETS = 8 };

static const char base[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"position\": "
    "\"rope\"}, \"data\": {\"tokenizer_vocab_size\": 270, \"seq_length\": 16},"
    " \"device\": \"cuda\", \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2,"
    " \"train_steps\": 40, \"gradient_clipping\": 1.0, \"eval\": {\"sample_tokens\": 4, "
    "\"sample_prompt\": \"of the sea\"}}";

typedef struct {
    char *folder, *text, *cache;
} Folder;

typedef struct {
    Config *config;
    DataSet data;
    Trainer trainer;
} Opened;

static bool device_is_there(void)
{
    Device device;
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    bool there = device_open(&device, "cuda", &options, err, sizeof err);
    if (there)
        device_close(&device);
    else
        print_message("skipped: %s\n", err);
    return there;
}

static int place_open(void **state)
{
    Folder *p = must_calloc(1, sizeof *p);
    char *words = drawn_text(5, 4000);
    p->folder = folder_new();
    char *path = text_file_new(p->folder, "text.txt", words);
    p->text = text_format("data.text=%s", path);
    p->cache = text_format("data.cache=%s/cache", p->folder);
    free(path);
    free(words);
    *state = p;
    return 0;
}

static int place_close(void **state)
{
    Folder *p = *state;
    folder_drop(p->folder);
    free(p->text);
    free(p->cache);
    free(p);
    return 0;
}

/* A trainer on the device; one more setting than the base's, or NULL. */
static void run_open(Opened *o, const Folder *p, const char *set)
{
    const char *sets[MAX_SETS] = {p->text, p->cache, set};
    char err[1024];
    ExitCode code;
    ConfigReport report = {0};
    o->config = config_parse("test", base, strlen(base), set ? 3 : 2, sets, &report);
    if (o->config == NULL) config_report_print(&report, true, stderr);
    assert_non_null(o->config);
    config_report_free(&report);
    if (!data_open(o->config, &o->data, err, sizeof err, &code)) fail_msg("%s", err);
    if (!config_set_vocab(o->config, o->data.vocab_size, "test", err, sizeof err))
        fail_msg("%s", err);
    if (!trainer_open(&o->trainer, o->config, &o->data, err, sizeof err, &code))
        fail_msg("%s", err);
}

static void run_close(Opened *o)
{
    trainer_close(&o->trainer);
    data_close(&o->data);
    config_free(o->config);
}

/* What the emulated CUDA runtime has counted under `name`; 0 on a GPU. */
static int64_t emulated(const char *name)
{
    int64_t (*count)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, name);
    return count ? count() : 0;
}

/* ---- warming up ------------------------------------------------------------------------------ */

static const char *const modes[] = {NULL, "fp16.enabled=true"};
enum { MODES = sizeof modes / sizeof *modes };

/* All that a run leaves: records, state, and every tensor of a checkpoint. */
typedef struct {
    StepRecord record[STEPS];
    StepState state;
    unsigned char *bytes;
    size_t size;
} Outcome;

static void steps(Opened *o, Outcome *out)
{
    Trainer *t = &o->trainer;
    int n = t->session.table.n_params, at = (int)t->steps;
    while (t->steps < STEPS)
        trainer_step(t);
    assert_int_equal(trainer_drain(t, out->record + at), STEPS - at);
    out->state = trainer_state(t);
    out->bytes = NULL;
    out->size = 0;
    for (int i = 0; i < n + t->n_slots; i++) {
        Tensor x = (i < n ? &t->weights[i] : &t->slots[i - n])->tensor;
        size_t bytes = tensor_bytes(x);
        out->bytes = must_realloc(out->bytes, out->size + bytes);
        device_copy(&t->session.dev, tensor_1d(out->bytes + out->size, x.dtype, tensor_count(x)),
                    tensor_flat(x));
        device_synchronize(&t->session.dev);
        out->size += bytes;
    }
}

static void check_equal(const Outcome *a, const Outcome *b, const char *what)
{
    assert_int_equal(a->size, b->size);
    if (memcmp(a->record, b->record, sizeof a->record) != 0) fail_msg("%s: other records", what);
    if (memcmp(a->bytes, b->bytes, a->size) != 0) fail_msg("%s: other weights or slots", what);
    if (memcmp(&a->state, &b->state, sizeof a->state) != 0) fail_msg("%s: another state", what);
}

/* Runs one step, saves and ends; then goes on in a new trainer that is warmed up first. */
static void resumed(const Folder *p, const char *mode, Outcome *out)
{
    Opened o;
    Checkpoint *c = NULL;
    char err[1024], *run = text_format("%s/run", p->folder);
    run_open(&o, p, mode);
    trainer_step(&o.trainer);
    trainer_drain(&o.trainer, out->record);
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    run_close(&o);
    run_open(&o, p, mode);
    trainer_warm_up(&o.trainer);
    if (!checkpoint_open_newest(&o.trainer.io, run, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    if (!trainer_load(&o.trainer, c, err, sizeof err)) fail_msg("%s", err);
    checkpoint_close(c);
    steps(&o, out);
    run_close(&o);
    char *command = text_format("rm -rf '%s'", run);
    assert_int_equal(system(command), 0);
    free(command);
    free(run);
}

/* A fresh and a resumed run have the bits of one that was never warmed up. */
static void warming_up_changes_no_bit(void **state)
{
    if (!device_is_there()) skip();
    for (int i = 0; i < MODES; i++) {
        const char *what = modes[i] ? modes[i] : "f32";
        Opened o;
        Outcome cold, warm, again;
        run_open(&o, *state, modes[i]);
        steps(&o, &cold);
        run_close(&o);
        run_open(&o, *state, modes[i]);
        trainer_warm_up(&o.trainer);
        steps(&o, &warm);
        run_close(&o);
        resumed(*state, modes[i], &again);
        check_equal(&cold, &warm, what);
        check_equal(&cold, &again, what);
        free(cold.bytes);
        free(warm.bytes);
        free(again.bytes);
    }
}

/* The first step already finds all that it needs: it plans no product, takes no memory, launches
 * nothing for the first time, and the host waits for nothing; nor does a sample or an evaluation
 * plan, take or load anything. */
static void the_first_step_plans_and_allocates_nothing(void **state)
{
    if (!device_is_there()) skip();
    for (int i = 0; i < MODES; i++) {
        Opened o;
        size_t before, after, total;
        run_open(&o, *state, modes[i]);
        Device *dev = &o.trainer.session.dev;
        assert_int_equal(device_plans(dev), 0);
        emulated("emu_forget_kernels");
        trainer_warm_up(&o.trainer);
        int64_t kernels = emulated("emu_count_kernels");
        int64_t plans = device_plans(dev), waits = dev->waits, allocations = dev->allocations;
        int64_t emu_waits = emulated("emu_count_waits");
        int64_t emu_allocations = emulated("emu_count_allocations");
        assert_true(plans > 0);
        assert_true(device_memory(dev, &before, &total));
        trainer_step(&o.trainer);
        trainer_step(&o.trainer);
        assert_int_equal(dev->waits, waits);
        assert_int_equal(emulated("emu_count_waits"), emu_waits);
        free(trainer_sample(&o.trainer, o.config->eval.sample_prompt, 3));
        if (o.trainer.val) trainer_evaluate(&o.trainer, 0);
        assert_true(device_memory(dev, &after, &total));
        assert_int_equal(device_plans(dev), plans);
        assert_int_equal(dev->allocations, allocations);
        assert_int_equal(emulated("emu_count_allocations"), emu_allocations);
        assert_int_equal(before, after);
        assert_int_equal(emulated("emu_count_kernels"), kernels);
        run_close(&o);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What opening a trainer takes of the device's memory is the plan: to the byte where the runtime is
 * emulated; a GPU gives whole pages. */
static void the_plan_is_what_opening_takes(void **state)
{
    if (!device_is_there()) skip();
    for (int i = 0; i < MODES; i++) {
        Opened o;
        Device bare;
        char err[512];
        DeviceOptions options = {.threads = 1, .local_ranks = 1};
        size_t alone, with, total;
        assert_true(device_open(&bare, "cuda", &options, err, sizeof err));
        assert_true(device_memory(&bare, &alone, &total));
        assert_true(alone < total); /* its scratch is taken off */
        device_close(&bare);
        run_open(&o, *state, modes[i]);
        assert_true(device_memory(&o.trainer.session.dev, &with, &total));
        size_t plan = memory_plan(o.config).total;
        if (dlsym(RTLD_DEFAULT, "emu_count_allocations"))
            assert_int_equal(alone - with, plan);
        else
            assert_in_range(alone - with, plan, plan + ((size_t)64 << 20));
        run_close(&o);
    }
}

/* A save takes no memory, page-locked or of the device, and waits for its own copies only: the
 * state, then piece by piece. */
static void saving_neither_allocates_nor_drains_the_device(void **state)
{
    if (!device_is_there()) skip();
    const Folder *p = *state;
    Opened o;
    char err[1024], *run = text_format("%s/saved", p->folder);
    run_open(&o, p, NULL);
    Device *dev = &o.trainer.session.dev;
    StepRecord record[TRAINER_HISTORY];
    trainer_step(&o.trainer);
    trainer_drain(&o.trainer, record);
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_step(&o.trainer);
    trainer_drain(&o.trainer, record);
    int64_t waits = dev->waits, allocations = dev->allocations;
    int64_t emu_waits = emulated("emu_count_waits");
    int64_t emu_allocations = emulated("emu_count_allocations");
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(dev->waits, waits + 1);
    assert_int_equal(dev->allocations, allocations);
    assert_int_equal(emulated("emu_count_allocations"), emu_allocations);
    /* The state comes to pageable memory, and a device is drained stream by stream; a piece's copy
     * waits at most once, and not at all where streams do not lag. */
    int64_t pieces = o.trainer.session.table.n_params + o.trainer.n_slots;
    const char *streams = getenv("EMU_STREAMS");
    bool lags = streams != NULL && strcmp(streams, "deferred") == 0;
    assert_in_range(emulated("emu_count_waits") - emu_waits, 0, 4 + (lags ? pieces : 0));
    run_close(&o);
    free(run);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Rows farther apart than CUDA's largest pitch, 2^31 - 1 bytes: of memory that is never touched
 * between them. */
static void rows_far_apart_are_copied(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 5 };
    const int64_t LD = ((int64_t)1 << 29) + 64;
    const size_t bytes = (size_t)((ROWS - 1) * LD + COLS) * sizeof(float);
    if (!device_is_there()) skip();
    Device dev;
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    char err[512];
    assert_true(device_open(&dev, "cuda", &options, err, sizeof err));
    float *wide = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(wide != MAP_FAILED);
    float back[ROWS * COLS] = {0};
    Tensor from = tensor_2d(wide, F32, ROWS, COLS), to = tensor_2d(back, F32, ROWS, COLS);
    Tensor there = tensor_2d(device_alloc(&dev, sizeof back, "rows"), F32, ROWS, COLS);
    from.ld = LD;
    there.place = dev.backend->place;
    for (int i = 0; i < ROWS * COLS; i++)
        wide[i / COLS * LD + i % COLS] = (float)(i + 1);
    device_copy(&dev, there, from);
    device_copy(&dev, to, there);
    device_synchronize(&dev);
    for (int i = 0; i < ROWS * COLS; i++)
        assert_true(back[i] == (float)(i + 1));
    munmap(wide, bytes);
    device_release(&dev, there.data, sizeof back);
    device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warming_up_changes_no_bit),
        cmocka_unit_test(the_first_step_plans_and_allocates_nothing),
        cmocka_unit_test(the_plan_is_what_opening_takes),
        cmocka_unit_test(saving_neither_allocates_nor_drains_the_device),
        cmocka_unit_test(rows_far_apart_are_copied),
    };
    return cmocka_run_group_tests_name("device", tests, place_open, place_close);
}
