/* test_emu_device.c -- error messages about GPUs that cannot be used (missing, too old or broken,
 * as the emulated GPU can be made to be), how ranks share GPUs, and what a view of a device must
 * not do. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/device.h"
#include "model/core/pool.h"
#include "model/kernels/ops.h"
#include "tests/support/files/child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

/* "auto" falls back to the CPU and reports why, unless there is no GPU at all. "cuda" reports it
 * too. */
static void test_a_gpu_that_cannot_be_used_is_reported_with_the_reason(void **state)
{
    static const struct {
        const char *variable, *value;
        bool trouble;
        bool late; /* noticed only when the device is opened */
        const char *words;
    } list[] = {
        {"EMU_DEVICES", "0", false, false, "shows no GPU"},
        {"EMU_DRIVER", "none", false, false, "no NVIDIA driver"},
        {"EMU_DRIVER", "old", true, false, "made for CUDA 12.4 and this program for CUDA 13.0; "},
        {"EMU_DRIVER", "broken", true, false, "the GPU cannot be used: "},
        {"EMU_CAPABILITY", "75", true, false, "compute capability 7.5; 8.0 is the least"},
        {"EMU_LT", "broken", true, true, "cuBLASLt cannot start"},
        {"EMU_LT", "old", true, false,
         "test_emu_device is cuBLASLt 12.1.0, and this program is built "
         "for version 13; install cuBLAS 13 or add "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        Device device;
        char err[512],
            *old = getenv(list[i].variable) ? must_strdup(getenv(list[i].variable)) : NULL;
        DeviceOptions options = {.threads = 1, .local_ranks = 1};
        setenv(list[i].variable, list[i].value, 1);
        assert_false(device_open(&device, "cuda", &options, err, sizeof err));
        assert_non_null(strstr(err, list[i].words));
        assert_string_equal(device.trouble, list[i].trouble ? err : "");
        assert_string_equal(device_choice("auto")->name, list[i].late ? "cuda" : "cpu");
        assert_true((device_choice("cuda") != NULL) == list[i].late);
        assert_true(device_open(&device, "auto", &options, err, sizeof err));
        assert_string_equal(device.backend->name, "cpu");
        if (list[i].trouble)
            assert_non_null(strstr(device.trouble, list[i].words));
        else
            assert_string_equal(device.trouble, "");
        device_close(&device);
        assert_true(device_open(&device, "cpu", &options, err, sizeof err));
        assert_string_equal(device.trouble, "");
        device_close(&device);
        if (old)
            setenv(list[i].variable, old, 1);
        else
            unsetenv(list[i].variable);
        free(old);
    }
}

/* Asking which device would be opened must not allocate on it, so it also works if the GPU is
 * full. */
static void test_device_choice_allocates_no_device_memory(void **state)
{
    Device device;
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    int64_t allocations = emu_count_allocations();
    (void)state;
    setenv("EMU_MEMORY", "1", 1);
    assert_string_equal(device_choice("auto")->name, "cuda");
    assert_string_equal(device_choice("cuda")->name, "cuda");
    assert_string_equal(device_choice("cpu")->name, "cpu");
    assert_null(device_choice("other"));
    assert_int_equal(emu_count_allocations(), allocations);
    unsetenv("EMU_MEMORY");
    assert_true(device_open(&device, "auto", &options, err, sizeof err));
    assert_string_equal(device.backend->name, "cuda");
    assert_true(emu_count_allocations() > allocations);
    device_close(&device);
}

/* The ranks of a machine are distributed over its GPUs, each in its own thread's context. Several
 * ranks may share a GPU. Each has its own streams and counts. */
static void test_ranks_are_distributed_over_gpus_with_separate_streams(void **state)
{
    enum { RANKS = 5, GPUS = 2 };
    Device device[RANKS];
    char err[512];
    (void)state;
    setenv("EMU_DEVICES", "2", 1);
    for (int i = 0; i < RANKS; i++) {
        DeviceOptions options = {.threads = 1, .local_ranks = RANKS, .index = i};
        int current = -1;
        assert_true(device_open(&device[i], i % 2 ? "auto" : "cuda", &options, err, sizeof err));
        assert_int_equal(device[i].index, i % GPUS);
        assert_int_equal(cudaGetDevice(&current), cudaSuccess);
        assert_int_equal(current, i % GPUS);
    }
    for (int i = 0; i < RANKS; i++) {
        const Stream *stream[] = {&device[i].compute, &device[i].copy, &device[i].comm,
                                  &device[i].p2p,     &device[i].tp,   &device[i].update};
        for (size_t a = 0; a < sizeof stream / sizeof *stream; a++) {
            assert_non_null(stream[a]->impl);
            assert_ptr_not_equal(stream[a]->impl, device[(i + 1) % RANKS].compute.impl);
            for (size_t b = 0; b < a; b++)
                assert_ptr_not_equal(stream[a]->impl, stream[b]->impl);
        }
    }
    for (int i = 0; i < RANKS; i++)
        device_close(&device[i]);
    unsetenv("EMU_DEVICES");
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
}

/* The number of host threads is the requested one, or this rank's share of the cores. */
static void test_each_rank_gets_the_requested_threads_or_its_share_of_cores(void **state)
{
    int cores = pool_allowed_cores();
    const struct {
        int threads, ranks, expected;
    } cases[] = {{3, 2, 3}, {0, 1, cores}, {0, 2, cores > 1 ? cores / 2 : 1}, {0, cores + 1, 1}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        Device device;
        char err[512];
        DeviceOptions options = {.threads = cases[i / 2].threads,
                                 .local_ranks = cases[i / 2].ranks};
        assert_true(device_open(&device, i % 2 ? "cpu" : "cuda", &options, err, sizeof err));
        assert_int_equal(pool_threads(device.pool), cases[i / 2].expected);
        device_close(&device);
    }
}

/* ---- devices are looked for in a child process ----------------------------------------------- */

static void look_twice(void *context)
{
    (void)context;
    setenv("EMU_DEVICES", "2", 1);
    int first = device_survey("cuda").count;
    setenv("EMU_DEVICES", "3", 1); /* a second look would find them */
    _exit(10 * first + device_survey("cuda").count);
}

/* "auto" has chosen the GPU, so the driver need not be asked again about "cuda". */
static void look_for_auto_first(void *context)
{
    (void)context;
    setenv("EMU_DEVICES", "2", 1);
    DeviceSurvey first = device_survey("auto");
    setenv("EMU_DEVICES", "3", 1);
    DeviceSurvey second = device_survey("cuda");
    _exit(first.choice == second.choice ? 10 * first.count + second.count : 99);
}

/* "auto" has chosen the CPU, which says nothing about "cuda". */
static void look_for_auto_without_a_gpu(void *context)
{
    (void)context;
    setenv("EMU_DEVICES", "0", 1);
    DeviceSurvey first = device_survey("auto"), second = device_survey("cuda");
    _exit(strcmp(first.choice->name, "cpu") == 0 && second.choice == NULL ? 0 : 99);
}

static void look_at_a_driver_that_hangs(void *context)
{
    (void)context;
    setenv("EMU_DRIVER", "hangs", 1);
    device_survey_set_limit(0.5);
    device_survey("auto");
}

static struct rlimit descriptors;

static void allow_descriptors(void)
{
    setrlimit(RLIMIT_NOFILE, &descriptors);
}

/* Without a descriptor there is no child that could look. At the end of the process,
 * LeakSanitizer needs descriptors. */
static void look_without_a_pipe(void *context)
{
    (void)context;
    getrlimit(RLIMIT_NOFILE, &descriptors);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = descriptors.rlim_max};
    atexit(allow_descriptors);
    setrlimit(RLIMIT_NOFILE, &none);
    device_survey("cuda");
}

static void test_devices_are_looked_for_only_once_and_in_a_child_process(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(child_run(look_twice, NULL, text, sizeof text), 22);
    assert_int_equal(child_run(look_for_auto_first, NULL, text, sizeof text), 22);
    assert_int_equal(child_run(look_for_auto_without_a_gpu, NULL, text, sizeof text), 0);
    assert_int_equal(child_run(look_without_a_pipe, NULL, text, sizeof text), EXIT_SYSTEM);
    assert_non_null(strstr(text, "error[71] the program cannot look for devices: Too many open"));
}

static void test_a_driver_that_does_not_answer_ends_the_program(void **state)
{
    char text[512];
    (void)state;
    double start = seconds_now();
    int code = child_run(look_at_a_driver_that_hangs, NULL, text, sizeof text);
    assert_int_equal(code, EXIT_UNAVAILABLE);
    assert_string_equal(text,
                        "error[69] a device's driver does not answer: the process that looked for "
                        "devices has not ended within 0.5 s; to go on without it write device "
                        "\"cpu\"\n");
    assert_true(seconds_now() - start < 4);
}

/* Each property is the least of the devices that the ranks open; ranks on one device share it. */
static void ask_for_facts(void *context)
{
    static const struct {
        int ranks, capability, mebibytes;
    } cases[] = {{0, 90, 900}, {1, 90, 900}, {2, 90, 500},
                 {3, 80, 500}, {6, 80, 250}, {7, 80, 166}};
    (void)context;
    setenv("EMU_DEVICES", "3", 1);
    setenv("EMU_MEMORY", "900,500,700", 1);
    setenv("EMU_CAPABILITY", "90,100,80", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DeviceFacts facts = device_survey_facts("cuda", cases[i].ranks);
        if (facts.capability != cases[i].capability || facts.bytes >> 20 != cases[i].mebibytes)
            _exit(1 + (int)i);
    }
    DeviceFacts host = device_survey_facts("cpu", 1);
    _exit(host.capability == 0 && host.bytes == 0 ? 0 : 99);
}

static void test_device_survey_facts_are_the_minimum_over_the_devices_of_all_ranks(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(child_run(ask_for_facts, NULL, text, sizeof text), 0);
}

/* Returns the exit code of a child process that runs `body` with a device. */
static int ends_with(void (*body)(Device *))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        setenv("EMU_FORK", "allow", 1);
        Device dev;
        char err[512];
        DeviceOptions options = {.threads = 1, .local_ranks = 1};
        if (!device_open(&dev, "cuda", &options, err, sizeof err)) _exit(1);
        body(&dev);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void sum_squares(Device *dev, Stream stream)
{
    Device view = device_on(dev, stream);
    double *x = device_alloc(dev, 2 * sizeof *x, "two numbers");
    float *grad = device_alloc(dev, 5000 * sizeof *grad, "gradients");
    Tensor gradients = tensor_1d(grad, F32, 5000);
    op_sq_norm(&view, tensor_1d(x, F64, 1), &gradients, 1);
    device_synchronize(dev);
}

static void scratch_on_compute(Device *dev)
{
    sum_squares(dev, dev->compute);
}

static void scratch_on_comm(Device *dev)
{
    sum_squares(dev, dev->comm);
}

static void allocate_through_view(Device *dev)
{
    Device view = device_on(dev, dev->comm);
    device_alloc(&view, 8, "a number");
}

static void wait_through_view(Device *dev)
{
    Device view = device_on(dev, dev->comm);
    device_synchronize(&view);
}

/* A view can only enqueue work: counts and scratch memory belong to the device. */
static void test_using_a_view_for_more_than_enqueuing_work_is_refused(void **state)
{
    (void)state;
    assert_int_equal(ends_with(scratch_on_compute), 0);
    assert_int_equal(ends_with(scratch_on_comm), EXIT_BUG);
    assert_int_equal(ends_with(allocate_through_view), EXIT_BUG);
    assert_int_equal(ends_with(wait_through_view), EXIT_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_choice_allocates_no_device_memory),
        cmocka_unit_test(test_a_gpu_that_cannot_be_used_is_reported_with_the_reason),
        cmocka_unit_test(test_device_survey_facts_are_the_minimum_over_the_devices_of_all_ranks),
        cmocka_unit_test(test_devices_are_looked_for_only_once_and_in_a_child_process),
        cmocka_unit_test(test_a_driver_that_does_not_answer_ends_the_program),
        cmocka_unit_test(test_using_a_view_for_more_than_enqueuing_work_is_refused),
        cmocka_unit_test(test_ranks_are_distributed_over_gpus_with_separate_streams),
        cmocka_unit_test(test_each_rank_gets_the_requested_threads_or_its_share_of_cores),
    };
    return cmocka_run_group_tests_name("emulated devices that fail", tests, NULL, NULL);
}
