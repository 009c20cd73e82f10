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

/* "auto" goes on with the CPU and says why, unless there simply is no GPU; "cuda" says it, too. */
static void a_gpu_that_cannot_be_used_is_said(void **state)
{
    static const struct {
        const char *variable, *value;
        bool trouble;
        const char *words;
    } list[] = {
        {"EMU_DEVICES", "0", false, "shows no GPU"},
        {"EMU_DRIVER", "none", false, "no NVIDIA driver"},
        {"EMU_DRIVER", "old", true, "made for CUDA 12.4"},
        {"EMU_DRIVER", "broken", true, "the GPU cannot be used: "},
        {"EMU_CAPABILITY", "75", true, "compute capability 7.5; 8.0 is the least"},
        {"EMU_LT", "broken", true, "cuBLASLt cannot start"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_that_cannot_be_used_is_said),
    };
    return cmocka_run_group_tests_name("emulated devices that fail", tests, NULL, NULL);
}
