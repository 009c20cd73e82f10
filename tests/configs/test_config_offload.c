/* test_config_offload.c -- tests DeepSpeed's keys that say what is stored on the host or divided
 * among ranks: which have an effect, which are accepted with a notice, and which are refused. */
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ZERO(keys) "\"zero_optimization\": {" keys "}"

/* Fails unless the config with these keys is refused with an error that has `words`. */
static void refuses(const char *keys, const char *words)
{
    char text[512];
    ConfigReport report;
    snprintf(text, sizeof text, "{\"data\": {\"text\": \"a\"}, \"train_batch_size\": 8, %s}", keys);
    const Config *c = config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report);
    if (c != NULL || strstr(report.error[0], words) == NULL)
        fail_msg("%s: %s", keys, c ? "it is read" : report.error[0]);
    config_report_free(&report);
}

static OffloadConfig read_offload(const char *keys, const char *set, const char *says)
{
    const Config *c = config_test_says(keys, set, says);
    OffloadConfig offload = c->zero_optimization.offload_optimizer;
    config_free(c);
    return offload;
}

/* The keys are read at every ZeRO stage, also on one rank. */
static void offload_optimizer_keys_are_read_with_their_defaults(void **state)
{
    (void)state;
    OffloadConfig none = read_offload("", NULL, "");
    assert_true(none.device == OFFLOAD_NONE && none.ratio == 1 && none.pin_memory);
    OffloadConfig all =
        read_offload(ZERO("\"offload_optimizer\": {\"device\": \"cpu\"}"), NULL, "");
    assert_true(all.device == OFFLOAD_CPU && all.ratio == 1);
    OffloadConfig some =
        read_offload(ZERO("\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.4, "
                          "\"pin_memory\": \"true\"}"),
                     NULL, "");
    assert_true(some.device == OFFLOAD_CPU && some.ratio == 0.4 && some.pin_memory);
    OffloadConfig automatic = read_offload(
        ZERO("\"offload_optimizer\": {\"device\": \"auto\", \"ratio\": \"auto\", \"pin_memory\": "
             "\"auto\"}"),
        NULL, "");
    assert_true(automatic.device == OFFLOAD_NONE && automatic.ratio == 1);
}

/* cpu_offload is an old key of DeepSpeed. It is read as the present key, with a notice. */
static void cpu_offload_true_is_read_as_offload_optimizer_device_cpu(void **state)
{
    (void)state;
    OffloadConfig old = read_offload(ZERO("\"cpu_offload\": true"), NULL,
                                     "c.json:2:23: notice: zero_optimization.cpu_offload: read as "
                                     "zero_optimization.offload_optimizer.device \"cpu\"");
    assert_int_equal(old.device, OFFLOAD_CPU);
    assert_int_equal(read_offload(ZERO("\"cpu_offload\": false"), NULL, "").device, OFFLOAD_NONE);
    assert_int_equal(
        read_offload(ZERO("\"cpu_offload\": true"), "zero_optimization.cpu_offload=false", "")
            .device,
        OFFLOAD_NONE);
    /* Both names may be given if they mean the same. */
    OffloadConfig both = read_offload(
        ZERO("\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"cpu\"}"), NULL,
        "c.json:2:23: notice: zero_optimization.cpu_offload: read as "
        "zero_optimization.offload_optimizer.device \"cpu\"");
    assert_int_equal(both.device, OFFLOAD_CPU);
}

/* A file in which the two names contradict each other is refused, as in DeepSpeed. */
static void cpu_offload_that_contradicts_the_device_is_refused(void **state)
{
    (void)state;
    refuses(ZERO("\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"none\"}"),
            "another name of zero_optimization.offload_optimizer.device, which is given");
    refuses(ZERO("\"cpu_offload\": 1"), "write true or false");
}

/* What cannot be stored elsewhere stays on the device, and a notice says what would help. */
static void offload_keys_without_effect_give_a_notice_with_the_reason(void **state)
{
    (void)state;
    OffloadConfig nvme = read_offload(
        ZERO("\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/n\"}"), NULL,
        "c.json:2:45: notice: zero_optimization.offload_optimizer.device: accepted, without effect "
        "here (kept on the device; \"cpu\" would keep it on the host)");
    assert_int_equal(nvme.device, OFFLOAD_NVME);
    read_offload(ZERO("\"offload_param\": {\"device\": \"cpu\", \"pin_memory\": true, "
                      "\"buffer_size\": 1e8}"),
                 NULL,
                 "c.json:2:41: notice: zero_optimization.offload_param.device: accepted, without "
                 "effect here (parameters stay on the device)");
    read_offload(
        ZERO("\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": false}"), NULL,
        "c.json:2:62: notice: zero_optimization.offload_optimizer.pin_memory: accepted, "
        "without effect here (states on the host are always page-locked, which a GPU needs "
        "to reach them)");
    read_offload(
        ZERO("\"offload_optimizer\": {\"ratio\": 0.3}"), NULL,
        "c.json:2:45: notice: zero_optimization.offload_optimizer.ratio: accepted, without effect "
        "here (states are kept on the device; zero_optimization.offload_optimizer.device \"cpu\" "
        "puts this part of them on the host)");
}

/* A notice gives a reason that is true wherever the optimizer states are: it does not speak of
 * states on the host if none are there. */
static void reasons_in_notices_are_true_for_every_offload_device(void **state)
{
    static const char update[] = "no CPU update: the device updates states wherever they are",
                      buffers[] = "no buffers: the device reads and writes states wherever they "
                                  "are",
                      there[] = "states on the host are always page-locked, which a GPU needs to "
                                "reach them",
                      away[] = "states are kept on the device; on the host they would be "
                               "page-locked";
    static const struct {
        const char *leaf, *value, *on_host, *elsewhere;
    } row[] = {{"pin_memory", "false", there, away},
               {"buffer_count", "5", buffers, buffers},
               {"super_offload", "true", update, update},
               {"cpuadam_cores_perc", "0.5", update, update},
               {"fast_init", "true", "nothing is kept on a disk", "nothing is kept on a disk"}};
    static const char *const devices[] = {"cpu", "nvme", "none"};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int d = 0; d < 3; d++) {
            ConfigReport report;
            char *text =
                text_format("{\"data\": {\"text\": \"a\"}, \"train_batch_size\": 8,\n" ZERO(
                                "\"offload_optimizer\": {\"%s\": %s, \"device\": "
                                "\"%s\"}") "}",
                            row[i].leaf, row[i].value, devices[d]);
            char *says = text_format("c.json:2:45: notice: zero_optimization.offload_optimizer.%s: "
                                     "accepted, without effect here (%s)",
                                     row[i].leaf, d == 0 ? row[i].on_host : row[i].elsewhere);
            const Config *c = config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report);
            bool said = false;
            for (int k = 0; k < report.n_notices; k++)
                said |= strcmp(report.notice[k], says) == 0;
            if (c == NULL || !said)
                fail_msg("%s: not \"%s\" but \"%s\"", text, says,
                         report.n_notices ? report.notice[0] : "");
            config_free(c);
            config_report_free(&report);
            free(says);
            free(text);
        }
}

/* The error that refuses a key names the key that helps instead. */
static void errors_about_unimplemented_keys_name_the_key_to_use_instead(void **state)
{
    (void)state;
    refuses(ZERO("\"zero_quantized_gradients\": true"),
            "write false; communication_data_type sends gradients in 16 bits");
    refuses(ZERO("\"zero_quantized_weights\": true"), "write false; parallel.shard keeps");
    refuses(ZERO("\"zenflow\": {\"topk_ratio\": 0.1}"),
            "remove it; with offload_optimizer.device \"cpu\"");
}

/* partition_activations asks that each rank keep only its own part of the activations. This is so
 * with one tensor-parallel rank, or if the ranks divide the rows. */
static void partitioned_activations_are_honoured_where_rows_are_divided(void **state)
{
    (void)state;
    static const struct {
        const char *parallel;
        bool said;
    } row[] = {{"{}", false},
               {"{\"tensor\": 2}", true},
               {"{\"tensor\": 2, \"sequence_parallel\": true}", false}};
    for (size_t i = 0; i < 3; i++) {
        char text[512];
        ConfigReport report;
        ConfigContext context = {.world = 2};
        snprintf(text, sizeof text,
                 "{\"data\": {\"text\": \"a\"}, \"train_batch_size\": 8, \"parallel\": %s, "
                 "\"activation_checkpointing\": {\"partition_activations\": true}}",
                 row[i].parallel);
        const Config *c = config_parse(&context, "c.json", text, strlen(text), 0, NULL, &report);
        bool said = false;
        for (int k = 0; k < report.n_notices; k++)
            said |= strstr(report.notice[k], "partition_activations: accepted, without effect here "
                                             "(parallel.sequence_parallel cuts") != NULL;
        if (c == NULL || said != row[i].said) fail_msg("%s: %d", row[i].parallel, said);
        config_free(c);
        config_report_free(&report);
    }
    refuses("\"activation_checkpointing\": {\"partition_activations\": 3}", "write true or false");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offload_optimizer_keys_are_read_with_their_defaults),
        cmocka_unit_test(cpu_offload_true_is_read_as_offload_optimizer_device_cpu),
        cmocka_unit_test(cpu_offload_that_contradicts_the_device_is_refused),
        cmocka_unit_test(offload_keys_without_effect_give_a_notice_with_the_reason),
        cmocka_unit_test(reasons_in_notices_are_true_for_every_offload_device),
        cmocka_unit_test(errors_about_unimplemented_keys_name_the_key_to_use_instead),
        cmocka_unit_test(partitioned_activations_are_honoured_where_rows_are_divided),
    };
    return cmocka_run_group_tests_name("keys of what lies on the host", tests, NULL, NULL);
}
