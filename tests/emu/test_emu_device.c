/* test_emu_device.c -- what is said of a GPU that cannot be used. The emulated one can be taken
 * away, grow old and break. */
#include "model/core/check.h"
#include "model/core/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

/* "auto" goes on with the CPU and says why, unless there simply is no GPU; "cuda" says it, too. */
static void a_gpu_that_cannot_be_used_is_said(void **state)
{
    static const struct {
        const char *variable, *value;
        bool trouble;
        bool late; /* it shows in opening alone */
        const char *words;
    } list[] = {
        {"EMU_DEVICES", "0", false, false, "shows no GPU"},
        {"EMU_DRIVER", "none", false, false, "no NVIDIA driver"},
        {"EMU_DRIVER", "old", true, false, "made for CUDA 12.4"},
        {"EMU_DRIVER", "broken", true, false, "the GPU cannot be used: "},
        {"EMU_CAPABILITY", "75", true, false, "compute capability 7.5; 8.0 is the least"},
        {"EMU_LT", "broken", true, true, "cuBLASLt cannot start"},
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

/* To ask which device would be opened takes nothing of it: a GPU that is full answers, too. */
static void asking_takes_nothing(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asking_takes_nothing),
        cmocka_unit_test(a_gpu_that_cannot_be_used_is_said),
    };
    return cmocka_run_group_tests_name("emulated devices that fail", tests, NULL, NULL);
}
