/* test_config_device.c -- tests values that depend on the device of the tensors: bf16 "auto". */
#include "configs/config.h"
#include "model/core/check.h"
#include "parallel/trainer/session.h"
#include "tests/support/files/config_support.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool on_gpu(const Config *config)
{
    (void)config;
    return true;
}

static bool on_cpu(const Config *config)
{
    (void)config;
    return false;
}

static bool never_asked(const Config *config)
{
    fail_msg("asked for device %d", (int)config->device);
    return false;
}

/* Loads a config file with these keys, as the program does. */
static const Config *load(const char *keys, const char *set, ConfigOnCuda on_cuda,
                          ConfigReport *report)
{
    char *folder = folder_new(),
         *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8%s%s}",
                             *keys ? ", " : "", keys),
         *path = text_file_new(folder, "c.json", text);
    const ConfigContext context = {.on_cuda = on_cuda};
    const Config *config = config_load(path, set != NULL, &set, &context, report);
    folder_drop(folder);
    free(text);
    free(path);
    return config;
}

static void bf16_auto_is_true_if_the_device_is_cuda(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        ConfigOnCuda on_cuda;
        bool bf16;
    } cases[] = {
        {"\"bf16\": {\"enabled\": \"auto\"}", NULL, on_gpu, true},
        {"\"bf16\": {\"enabled\": \"auto\"}", NULL, on_cpu, false},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"device\": \"cuda\"", NULL, on_cpu, false},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"device\": \"cuda\"", NULL, NULL, true},
        {"\"bf16\": {\"enabled\": \"auto\"}", NULL, NULL, false},
        {"", "bf16.enabled=auto", on_gpu, true},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": true}", NULL, never_asked,
         false},
        {"\"bf16\": {\"enabled\": \"auto\"}, \"fp64\": {\"enabled\": true}", NULL, never_asked,
         false},
        {"\"bf16\": {\"enabled\": true}", NULL, never_asked, true},
        {"", NULL, never_asked, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        const Config *c = load(cases[i].keys, cases[i].set, cases[i].on_cuda, &report);
        if (c == NULL) fail_msg("%s", report.error[0]);
        if (c->bf16.enabled != cases[i].bf16) fail_msg("case %zu: %d", i, c->bf16.enabled);
        config_report_free(&report);
        config_free(c);
    }
}

/* The rules between keys use the derived bf16 value. If the config has an error anyway, no device
 * is looked for. */
static void rules_between_keys_see_the_value_derived_for_bf16_auto(void **state)
{
    (void)state;
    static const char both[] = "\"model\": {\"fused_gelu\": true}, \"bf16\": {\"enabled\": "
                               "\"auto\"}, \"activation_checkpointing\": {\"policy\": "
                               "\"selective\"}";
    ConfigReport report;
    assert_null(load(both, NULL, on_gpu, &report));
    assert_int_equal(report.n_errors, 1);
    assert_non_null(strstr(report.error[0], "in bf16 write"));
    config_report_free(&report);
    config_free(load(both, NULL, on_cpu, &report));
    assert_int_equal(report.n_errors, 0);
    config_report_free(&report);
    assert_null(
        load("\"bf16\": {\"enabled\": \"auto\"}, \"seed\": -1", NULL, never_asked, &report));
    config_report_free(&report);
}

/* session_on_cuda, which the program uses here, must agree with the device that is opened. */
static void session_on_cuda_agrees_with_the_opened_device(void **state)
{
    (void)state;
    static const char *const keys[] = {"", "\"device\": \"cpu\"", "\"fp64\": {\"enabled\": true}"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        Device device;
        char err[2048];
        const Config *c = config_test_keys(*keys[i] ? keys[i] : "\"seed\": 1");
        assert_true(session_open_device(&device, c, NULL, err, sizeof err));
        assert_int_equal(session_on_cuda(c), strcmp(device.backend->name, "cuda") == 0);
        device_close(&device);
        config_free(c);
    }
    const Config *c = config_test_keys("\"device\": \"cuda\"");
    /* without a CUDA device, opening it fails later with exit code 69 */
    assert_true(session_on_cuda(c));
    config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_auto_is_true_if_the_device_is_cuda),
        cmocka_unit_test(rules_between_keys_see_the_value_derived_for_bf16_auto),
        cmocka_unit_test(session_on_cuda_agrees_with_the_opened_device),
    };
    return cmocka_run_group_tests_name("config device", tests, NULL, NULL);
}
