/* test_hardware.c -- tests what is done with measured figures of hardware: numbers are clamped to
 * the limits of their keys, and a GPU is given the preset of its name. */
#include "configs/machine_file/hardware.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void measured_numbers_are_clamped_to_the_limits_of_their_keys(void **state)
{
    char err[512];
    Hardware h;
    ExitCode code;
    (void)state;
    assert_true(hardware_load(&h, "h100", &code, err, sizeof err));
    h.memory_efficiency = 1.3;
    h.product.edge = -2;
    h.inside.latency = (double)NAN;
    h.launch = 1e-7;
    hardware_limit(&h);
    assert_true(h.memory_efficiency == 0.95 && h.product.edge == 0 && h.inside.latency == 0);
    assert_true(h.launch == 1.5e-6);
    h.cuda = false;
    h.memory_efficiency = 1.3;
    h.launch = 1e-7;
    hardware_limit(&h);
    assert_true(h.memory_efficiency == 1 && h.launch == 1e-7);
    assert_true(h.memory_bandwidth == 3.35e12);
}

/* Presets are found by the whole name of the GPU. */
static void a_gpu_gets_the_preset_with_its_name(void **state)
{
    static const struct {
        const char *description, *gpu, *preset;
    } row[] = {
        {"cuda: NVIDIA A100-SXM4-80GB (sm_80), cuBLASLt 12", "NVIDIA A100-SXM4-80GB", "a100"},
        {"cuda: NVIDIA H100 80GB HBM3 (sm_90), cuBLASLt 12", "NVIDIA H100 80GB HBM3", "h100"},
        {"cuda: NVIDIA H200 (sm_90), cuBLASLt 13", "NVIDIA H200", "h200"},
        {"cuda: NVIDIA B200 (sm_100), cuBLASLt 13", "NVIDIA B200", "b200"},
        {"cuda: NVIDIA H200 NVL (sm_90), cuBLASLt 13", "NVIDIA H200 NVL", NULL},
        {"cuda: NVIDIA (sm_90), cuBLASLt 13", "NVIDIA", NULL},
        {"cuda: odd", "", NULL},
        {"cpu: 2 threads (sm_90)", "", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char name[64];
        hardware_gpu_name(row[i].description, name);
        assert_string_equal(name, row[i].gpu);
        const char *preset = hardware_preset_of(name);
        if (row[i].preset == NULL)
            assert_null(preset);
        else
            assert_string_equal(preset, row[i].preset);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_numbers_are_clamped_to_the_limits_of_their_keys),
        cmocka_unit_test(a_gpu_gets_the_preset_with_its_name),
    };
    return cmocka_run_group_tests_name("hardware", tests, NULL, NULL);
}
