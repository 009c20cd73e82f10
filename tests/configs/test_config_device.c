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
static void rules_between_keys_use_the_value_derived_for_bf16_auto(void **state)
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

/* session_on_cuda, which the program uses as ConfigContext.on_cuda, must agree with the device that
 * is opened. */
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

static int asked_for_gpus;

static bool gpus_for_all(const Config *config)
{
    assert_in_range(config->world, 2, 32); /* one rank needs no GPU of its own */
    asked_for_gpus++;
    return config->device != DEVICE_CPU;
}

static const Config *load_on_gpus(const char *keys, int64_t world, ConfigOwnGpus own_gpus)
{
    char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 16%s%s}",
                             *keys ? ", " : "", keys);
    const ConfigContext context = {.world = world, .own_gpus = own_gpus};
    ConfigReport report;
    const Config *c = config_parse(&context, "c.json", text, strlen(text), 0, NULL, &report);
    config_report_free(&report);
    free(text);
    return c;
}

/* If each rank has a GPU of its own, communication overlaps with computation, and up to eight ranks
 * write a checkpoint, unless the file says otherwise. GPUs are looked for once, and only if a
 * default depends on them. */
static void overlap_comm_and_writers_follow_from_a_gpu_for_each_rank(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t world;
        bool overlap;
        int64_t writers;
        int asked;
    } cases[] = {
        {"", 8, true, 8, 1},
        {"", 16, true, 8, 1},
        {"", 2, true, 2, 1},
        {"", 1, false, 1, 0},
        {"\"device\": \"cpu\"", 8, false, 1, 1},
        {"\"zero_optimization\": {\"stage\": 3}", 4, true, 4, 1},
        {"\"zero_optimization\": {\"overlap_comm\": \"auto\"}", 4, true, 4, 1},
        {"\"zero_optimization\": {\"overlap_comm\": false}", 4, false, 4, 1},
        {"\"checkpoint\": {\"writers\": 2}", 4, true, 2, 1},
        {"\"checkpoint\": {\"writers\": 3}, \"zero_optimization\": {\"stage\": 3}", 4, true, 3, 0},
        {"\"checkpoint\": {\"writers\": 1}, \"zero_optimization\": {\"overlap_comm\": false}", 4,
         false, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        asked_for_gpus = 0;
        const Config *c = load_on_gpus(cases[i].keys, cases[i].world, gpus_for_all);
        assert_non_null(c);
        if (c->zero_optimization.overlap_comm != cases[i].overlap ||
            c->checkpoint.writers != cases[i].writers || asked_for_gpus != cases[i].asked)
            fail_msg("case %zu: overlap_comm %d, writers %lld, asked %d times", i,
                     c->zero_optimization.overlap_comm, (long long)c->checkpoint.writers,
                     asked_for_gpus);
        config_free(c);
    }
    asked_for_gpus = 0; /* if a config has an error, no GPUs are looked for */
    assert_null(load_on_gpus("\"seed\": -1", 4, gpus_for_all));
    assert_int_equal(asked_for_gpus, 0);
}

/* The printed config has overlap_comm and writers only in comments, so they are derived again if
 * the run is resumed on another machine. config_diff does not count that as a change. */
static void values_derived_from_gpus_are_printed_as_comments_and_count_as_no_change(void **state)
{
    (void)state;
    ConfigDifference *d;
    const Config *gpus = load_on_gpus("", 4, gpus_for_all), *cpus = load_on_gpus("", 4, NULL),
                 *given = load_on_gpus("\"zero_optimization\": {\"overlap_comm\": true}", 4, NULL);
    char *text = config_text(gpus);
    assert_non_null(strstr(text, "// \"overlap_comm\": true"));
    assert_non_null(strstr(text, "// \"writers\": 4"));
    assert_int_equal(config_diff(cpus, gpus, &d), 0);
    config_diff_free(d, 0);
    assert_int_equal(config_diff(cpus, given, &d), 1);
    assert_string_equal(d[0].key, "zero_optimization.overlap_comm");
    assert_int_equal(d[0].effect, EFFECT_NONE);
    config_diff_free(d, 1);
    free(text);
    config_free(gpus);
    config_free(cpus);
    config_free(given);
}

/* The preset for eight GPUs uses them fully: few micro-batches of many sequences, ZeRO stage 1, and
 * the defaults for ranks with a GPU each. On fewer ranks the same batch takes more
 * micro-batches. */
static void the_8_gpu_preset_overlaps_communication_and_has_large_micro_batches(void **state)
{
    (void)state;
    for (int64_t world = 1; world <= 32; world *= 2) {
        const ConfigContext context = {.world = world, .own_gpus = gpus_for_all};
        ConfigReport report;
        const Config *c = config_load("configs/gpt2_1558m_8gpu.json", 0, NULL, &context, &report);
        if (c == NULL) fail_msg("%lld ranks: %s", (long long)world, report.error[0]);
        assert_int_equal(c->zero_optimization.stage, 1);
        assert_int_equal(c->train_batch_size, 512);
        assert_int_equal(c->train_micro_batch_size_per_gpu, 16);
        assert_int_equal(c->gradient_accumulation_steps, 32 / world);
        assert_int_equal(c->activation_checkpointing.policy, RECOMPUTE_SELECTIVE);
        assert_int_equal(c->zero_optimization.overlap_comm, world > 1);
        assert_int_equal(c->checkpoint.writers, world < 8 ? world : 8);
        config_report_free(&report);
        config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_auto_is_true_if_the_device_is_cuda),
        cmocka_unit_test(rules_between_keys_use_the_value_derived_for_bf16_auto),
        cmocka_unit_test(session_on_cuda_agrees_with_the_opened_device),
        cmocka_unit_test(overlap_comm_and_writers_follow_from_a_gpu_for_each_rank),
        cmocka_unit_test(values_derived_from_gpus_are_printed_as_comments_and_count_as_no_change),
        cmocka_unit_test(the_8_gpu_preset_overlaps_communication_and_has_large_micro_batches),
    };
    return cmocka_run_group_tests_name("config device", tests, NULL, NULL);
}
