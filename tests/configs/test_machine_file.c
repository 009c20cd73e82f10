/* test_machine_file.c -- tests the reader of machine files: the presets, the error message for each
 * mistake, and which part of a CPU each rank has. */
#include "configs/machine_file/embedded.h"
#include "configs/machine_file/keys.h"
#include "tests/support/files/scratch.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const presets[] = {"a100", "b200", "cpu", "h100", "h200", "rtx4090"};
enum { PRESETS = sizeof presets / sizeof *presets };

static const EmbeddedFile *embedded(const char *name)
{
    for (int i = 0; i < embedded_machines; i++)
        if (strcmp(embedded_machine[i].name, name) == 0) return &embedded_machine[i];
    return NULL;
}

/* Fails unless both have the same figures. */
static void assert_same(const Hardware *a, const Hardware *b)
{
    for (int i = 0; i < MACHINE_KEYS; i++) {
        const MachineKey *key = &machine_key[i];
        const char *x = (const char *)a + key->at, *y = (const char *)b + key->at;
        size_t size = key->type == KEY_INT ? sizeof(int) : sizeof(double);
        if (machine_key_is_number(key) && memcmp(x, y, size) != 0) fail_msg("%s", key->name);
    }
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->gpu, b->gpu);
    assert_int_equal(a->cuda, b->cuda);
}

static void each_embedded_preset_equals_its_file(void **state)
{
    (void)state;
    for (int i = 0; i < PRESETS; i++) {
        char path[64], err[4096], *text;
        size_t size;
        ExitCode code;
        Hardware own, read;
        assert_string_equal(hardware_preset(i), presets[i]);
        snprintf(path, sizeof path, "configs/machines/%s.json", presets[i]);
        if (!file_read(path, &text, &size, NULL, err, sizeof err)) fail_msg("%s", err);
        assert_string_equal(embedded(presets[i])->text, text);
        free(text);
        if (!hardware_load(&own, presets[i], &code, err, sizeof err)) fail_msg("%s", err);
        if (!hardware_load(&read, path, &code, err, sizeof err)) fail_msg("%s", err);
        assert_same(&own, &read);
        assert_true(own.peak[BF16] > 0 && own.peak[I32] == 0);
    }
    assert_null(hardware_preset(PRESETS));
    assert_null(hardware_preset(-1));
}

/* The example of each key fits a GPU, and each preset's numbers fit its kind of device. */
static void the_example_of_each_key_is_within_its_limits(void **state)
{
    (void)state;
    for (int i = 0; i < MACHINE_KEYS; i++) {
        const MachineKey *key = &machine_key[i];
        assert_non_null(key->name);
        if (!machine_key_is_number(key)) continue;
        double example = strtod(key->example, NULL);
        HardwareLimits any = hardware_limits(key->name, false),
                       gpu = hardware_limits(key->name, true);
        if (example < gpu.least || example > gpu.most) fail_msg("%s: %g", key->name, example);
        assert_true(any.least == key->least && any.most == key->most);
        assert_true(gpu.least >= any.least && gpu.most <= any.most);
    }
}

/* A change of one text in the preset `of`, and the error message that it must give. */
typedef struct {
    const char *of, *was, *becomes, *message;
} Refusal;

static const Refusal refusals[] = {
    {"h100", "\"peak_bf16\": 989.4e12", "\"peak_bf16\": 989.4",
     "m.json:12:16: peak_bf16: 989.4 does not fit; write FLOP/s from 1e+07 to 1e+17, such as "
     "989e12"},
    {"h100", "\"launch\": 2.5e-6", "\"launch\": 2.5",
     "m.json:16:13: launch: 2.5 does not fit; write seconds from 0 to 2e-05, such as 2.5e-6"},
    {"h100", "\"launch\": 2.5e-6", "\"launch\": \"2.5e-6\"",
     "m.json:16:13: launch: \"2.5e-6\" does not fit; write seconds from 0 to 2e-05, such as "
     "2.5e-6"},
    {"h100", "\"product_most\": 0.84", "\"product_most\": 84",
     "m.json:17:19: product_most: 84 does not fit; write a share of 1 from 0.3 to 0.95, such as "
     "0.84"},
    {"h100", "\"product_edge\": 140", "\"product_edge\": -1",
     "m.json:18:19: product_edge: -1 does not fit; write a number of rows from 0 to 65536, such as "
     "150"},
    {"h100", "\"devices_per_node\": 8", "\"devices_per_node\": 8.5",
     "m.json:29:23: devices_per_node: 8.5 does not fit; write a number of devices from 1 to "
     "65536, such as 8"},
    {"h100", "\"devices_per_node\": 8", "\"devices_per_node\": 0",
     "m.json:29:23: devices_per_node: 0 does not fit; write a number of devices from 1 to 65536, "
     "such as 8"},
    {"h100", "\"capability\": 90", "\"capability\": [9, 0]",
     "m.json:5:17: capability: a list does not fit; write the compute capability times ten, or 0 "
     "for a CPU from 0 to 999, such as 90"},
    {"h100", "\"device\": \"cuda\"", "\"device\": \"gpu\"",
     "m.json:3:13: device: \"gpu\" does not fit; write \"cuda\" or \"cpu\""},
    {"h100", "\"device\": \"cuda\"", "\"device\": 1",
     "m.json:3:13: device: 1 does not fit; write \"cuda\" or \"cpu\""},
    {"h100", "\"name\": \"", "\"name\": \"0123456789012345678901234567890123456789",
     "m.json:2:11: name: \"0123456789012345678901234567890123456789NVIDIA H100 SXM 80...\" does "
     "not fit; write a name of at most 63 bytes"},
    {"h100", "\"launch\": 2.5e-6", "\"launch\": 1e-7",
     "m.json:16:13: launch: 1e-7 does not fit a GPU; write seconds from 1.5e-06 to 1e-05, such as "
     "2.5e-6"},
    {"h100", "\"product_edge\": 140", "\"product_edge\": 256.5",
     "m.json:18:19: product_edge: 256.5 does not fit a GPU; write a number of rows from 0 to 256, "
     "such as 150"},
    {"h100", "\"gpu\": \"",
     "\"gpu\": \"0123456789012345678901234567890123456789012345678901234567890123",
     "m.json:4:10: gpu: \"0123456789012345678901234567890123456789012345678901234567...\" does not "
     "fit; write the name that nvidia-smi shows, or \"\" for a CPU"},
    {"h100", "\"name\": \"NVIDIA H100 SXM 80 GB, nodes of 8\"", "\"name\": \"\"",
     "m.json:2:11: name: \"\" does not fit; write a name of at most 63 bytes"},
    {"h100", "\"capability\": 90", "\"capability\": 0",
     "m.json:5:17: capability: 0 is a CPU, but device is \"cuda\"; write 80 for an A100, 90 for "
     "an H100, or device \"cpu\""},
    {"h100", "\"device\": \"cuda\"", "\"device\": \"cpu\"",
     "m.json:5:17: capability: a CPU has none; write 0, or device \"cuda\"\n"
     "m.json:6:19: device_bytes: a CPU's memory is host_bytes; write 0, or device \"cuda\"\n"
     "m.json:33:21: host_bandwidth: a CPU's memory is the host's; write 0, or device \"cuda\""},
    {"h100", "\"host_bandwidth\": 51.2e9", "\"host_bandwidth\": 0",
     "m.json:33:21: host_bandwidth: 0 does not fit a GPU; write bytes per second each way (of "
     "a CPU 0), which `./train bench machine` measures from 1e+08 to 1e+13, such as 51.2e9"},
    {"h100", "  \"host_bandwidth\": 51.2e9,\n", "",
     "m.json:1:1: host_bandwidth: the key is missing; write bytes per second each way (of a CPU "
     "0), which `./train bench machine` measures, such as \"host_bandwidth\": 51.2e9"},
    {"cpu", "\"device\": \"cpu\",\n  \"gpu\": \"\",\n  \"capability\": 0",
     "\"device\": \"cuda\",\n  \"gpu\": \"\",\n  \"capability\": 80",
     "m.json:6:19: device_bytes: 0 is a CPU, but device is \"cuda\"; write the bytes of a GPU's "
     "memory, or device \"cpu\""},
    {"h100", "\"name\": \"", "\"name\": \"0123456789012345678901234567890",
     "m.json:2:11: name: \"0123456789012345678901234567890NVIDIA H100 SXM 80 GB, node...\" does "
     "not fit; write a name of at most 63 bytes"},
    {"h100", "\"workspace_bytes\": 134217728", "\"workspace_bytes\": 84932978278",
     "m.json:7:22: workspace_bytes: 84932978278 are not less than the memory; write fewer"},
    {"h100", "\"workspace_bytes\": 134217728", "\"workspace_bytes\": 134217728000",
     "m.json:7:22: workspace_bytes: 134217728000 are not less than the memory; write fewer"},
    {"h100", "  \"launch\": 2.5e-6,\n", "",
     "m.json:1:1: launch: the key is missing; write seconds, such as \"launch\": 2.5e-6"},
    {"h100", "  \"launch\": 2.5e-6,\n", "  \"lanch\": 2.5e-6,\n",
     "m.json:1:1: launch: the key is missing; write seconds, such as \"launch\": 2.5e-6\n"
     "m.json:16:3: \"lanch\": unknown key; did you mean \"launch\"?"},
    {"h100", "  \"launch\": 2.5e-6,\n", "  \"launch\": 2.5e-6,\n  \"price\": 3,\n",
     "m.json:17:3: \"price\": unknown key; remove it"},
    {"h100", "  \"launch\": 2.5e-6,\n", "  \"launch\": 2.5e-6,\n  \"launch\": 3e-6,\n",
     "m.json:17:3: \"launch\": the key is there twice; remove one"},
    {"h100", "    \"launch\": \"", "    \"lunch\": \"",
     "m.json:16:3: launch: the number has no source; write where it is from, as \"sources\": "
     "{\"launch\": \"...\"}\n"
     "m.json:46:5: sources.\"lunch\": unknown key; did you mean \"launch\"?"},
    {"h100", "    \"launch\": \"", "    \"name\": \"a\",\n    \"launch\": \"",
     "m.json:46:5: sources.\"name\": unknown key; did you mean \"name\"?"},
    {"h100", "    \"collective\": \"", "    \"collective\": \" \", \"x\": \"",
     "m.json:54:19: sources.collective: write where the number is from, as a string\n"
     "m.json:54:24: sources.\"x\": unknown key; sources has the keys of the file's numbers"},
    {"h100", "\"sources\": {", "\"source\": {",
     "m.json:1:1: sources: the key is missing; write an object that says of each number where it "
     "is from\n"
     "m.json:34:3: \"source\": unknown key; remove it"},
    {"h100", "\"sources\": {", "\"sources\": 1, \"launch\": {",
     "m.json:34:14: sources: a number does not fit; write an object\n"
     "m.json:34:17: \"launch\": the key is there twice; remove one"},
    {"h100", "{\n  \"name\"", "[\n  \"name\"",
     "m.json:2:9: a comma is missing before this (Hjson does without, JSON does not)"},
};

/* Returns the preset's text with the first `was` replaced; the caller frees. */
static char *changed(const Refusal *r)
{
    const char *text = embedded(r->of)->text, *at = strstr(text, r->was);
    if (at == NULL) fail_msg("%s has no %s", r->of, r->was);
    return text_format("%.*s%s%s", (int)(at - text), text, r->becomes, at + strlen(r->was));
}

static void each_mistake_gives_an_error_with_its_position_and_what_to_write(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char err[8192], *text = changed(&refusals[i]);
        Hardware h;
        bool read = hardware_parse(&h, "m.json", text, strlen(text), err, sizeof err);
        if (read || strcmp(err, refusals[i].message) != 0)
            fail_msg("%s becomes %s:\n%s\nnot\n%s", refusals[i].was, refusals[i].becomes,
                     read ? "read" : err, refusals[i].message);
        free(text);
    }
}

static void a_machine_name_of_the_maximum_length_is_read_whole(void **state)
{
    (void)state;
    const Refusal longest = {"h100", "\"name\": \"", "\"name\": \"012345678901234567890123456789",
                             NULL};
    Hardware h;
    char err[512], *text = changed(&longest);
    if (!hardware_parse(&h, "m.json", text, strlen(text), err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(strlen(h.name), sizeof h.name - 1);
    free(text);
}

static void a_text_unlike_a_machine_file_is_refused_with_a_short_message(void **state)
{
    static const char *const row[][2] = {
        {"{\"name\": \"x\", \"devce\": \"cuda\", \"launch\": 1e-6, \"sources\": {}}",
         "m.json:1:1: 30 keys are missing, such as device, gpu, capability; begin with "
         "the "
         "file that `./train bench machine` prints, or with a preset of configs/machines\n"
         "m.json:1:15: \"devce\": unknown key; did you mean \"device\"?\n"
         "m.json:1:32: launch: the number has no source; write where it is from, as \"sources\": "
         "{\"launch\": \"...\"}"},
        {"{\"launch\": 1e-6, \"peak_f64\": 1e9, \"peak_f32\": 1e9,\n\"peak_f16\": 1e9, "
         "\"peak_bf16\": 1e9, \"sources\": {}}",
         "m.json:1:1: 27 keys are missing, such as name, device, gpu; begin with the file "
         "that `./train bench machine` prints, or with a preset of configs/machines\n"
         "m.json:2:47: 5 numbers have no source, such as peak_f64, peak_f32, peak_bf16; write "
         "where each is from, as \"sources\": {\"KEY\": \"...\"}"},
        {"[]", "m.json:1:1: a list is not a machine file; write an object: { ... }"},
        {" 3", "m.json:1:2: a number is not a machine file; write an object: { ... }"},
        {"", "m.json:1:1: the text is empty; write an object: { ... }"},
        {"{\n  \"model\": {\"num_layers\": 2}, \"device\": \"cpu\", \"train_steps\": 3\n}",
         "m.json:1:1: this is a config, not a machine file; write the name of a preset of "
         "configs/machines, or a file that `./train bench machine` prints"},
        {"{\"device\": \"cpu\"}",
         "m.json:1:1: this is a config, not a machine file; write the name of a preset of "
         "configs/machines, or a file that `./train bench machine` prints"}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char err[1024];
        Hardware h;
        assert_false(hardware_parse(&h, "m.json", row[i][0], strlen(row[i][0]), err, sizeof err));
        assert_string_equal(err, row[i][1]);
    }
}

static void a_machine_file_may_have_comments(void **state)
{
    char err[512];
    Hardware h, again;
    (void)state;
    const Refusal comment = {"h100", "{\n", "{ # the whole node\n  /* dense */\n", NULL};
    char *text = changed(&comment);
    assert_true(hardware_parse(&h, "m.json", text, strlen(text), err, sizeof err));
    free(text);
    ExitCode code;
    assert_true(hardware_load(&again, "h100", &code, err, sizeof err));
    assert_same(&h, &again);
}

static void a_missing_machine_file_is_reported_with_the_names_of_presets(void **state)
{
    char err[512];
    Hardware h;
    ExitCode code = EXIT_OK;
    (void)state;
    assert_false(hardware_load(&h, "h10", &code, err, sizeof err));
    assert_int_equal(code, EXIT_MISSING);
    assert_string_equal(err, "h10: there is no such file, and no preset of this name (a100, b200, "
                             "cpu, h100, h200, rtx4090); did you mean \"h100\"?");
    assert_false(hardware_load(&h, "laptop", &code, err, sizeof err));
    assert_string_equal(err,
                        "laptop: there is no such file, and no preset of this name (a100, "
                        "b200, cpu, h100, h200, rtx4090); write the path of a machine file, which "
                        "`./train bench machine` makes");
    assert_false(hardware_load(&h, "no/such.json", &code, err, sizeof err));
    assert_int_equal(code, EXIT_MISSING);
    assert_string_equal(err, "no/such.json cannot be opened: No such file or directory");
    assert_false(hardware_load(&h, "Makefile", &code, err, sizeof err));
    assert_int_equal(code, EXIT_CONFIG);
}

static const char *key_itself(void *context, const char *key)
{
    ++*(int *)context;
    return key;
}

static void a_written_machine_file_is_read_back(void **state)
{
    (void)state;
    for (int i = 0; i < PRESETS; i++) {
        char err[2048], *text;
        size_t size;
        int asked = 0;
        Hardware h, again;
        ExitCode code;
        if (!hardware_load(&h, presets[i], &code, err, sizeof err)) fail_msg("%s", err);
        h.launch = 1.0 / 3 * 1e-5;
        FILE *to = text_stream(&text, &size);
        hardware_print(to, &h, key_itself, &asked);
        fclose(to);
        if (!hardware_parse(&again, "again", text, size, err, sizeof err)) fail_msg("%s", err);
        assert_same(&h, &again);
        assert_int_equal(asked, MACHINE_KEYS - 3);
        assert_non_null(strstr(text, "\"launch\": \"launch\""));
        free(text);
    }
}

/* Ranks on CPUs share the speed of their node; on GPUs, each rank has a whole GPU. */
static void ranks_on_a_cpu_share_its_speed_and_each_rank_has_a_whole_gpu(void **state)
{
    char err[512];
    Hardware h;
    ExitCode code;
    (void)state;
    assert_true(hardware_load(&h, "cpu", &code, err, sizeof err));
    Hardware alone = hardware_of_rank(&h, 1), half = hardware_of_rank(&h, 2),
             many = hardware_of_rank(&h, 64);
    assert_same(&alone, &h);
    assert_true(half.peak[F32] == h.peak[F32] / 2);
    assert_true(half.peak_tf32 == h.peak_tf32 / 2);
    assert_true(half.product.edge == h.product.edge / 2);
    h.peak_tf32 = 1; /* CPUs have no TF32 */
    assert_true(hardware_peak(&h, F32, true) == h.peak[F32]);
    assert_true(half.memory_bandwidth == h.memory_bandwidth / 2);
    assert_true(many.peak[F32] == h.peak[F32] / h.devices_per_node);
    assert_true(hardware_load(&h, "h100", &code, err, sizeof err));
    assert_true(hardware_peak(&h, F32, true) == h.peak_tf32);
    assert_true(hardware_peak(&h, F32, false) == h.peak[F32]);
    assert_true(hardware_peak(&h, BF16, true) == h.peak[BF16]);
    Hardware gpu = hardware_of_rank(&h, 64);
    assert_same(&gpu, &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_embedded_preset_equals_its_file),
        cmocka_unit_test(the_example_of_each_key_is_within_its_limits),
        cmocka_unit_test(each_mistake_gives_an_error_with_its_position_and_what_to_write),
        cmocka_unit_test(a_machine_name_of_the_maximum_length_is_read_whole),
        cmocka_unit_test(a_text_unlike_a_machine_file_is_refused_with_a_short_message),
        cmocka_unit_test(a_machine_file_may_have_comments),
        cmocka_unit_test(a_missing_machine_file_is_reported_with_the_names_of_presets),
        cmocka_unit_test(a_written_machine_file_is_read_back),
        cmocka_unit_test(ranks_on_a_cpu_share_its_speed_and_each_rank_has_a_whole_gpu),
    };
    return cmocka_run_group_tests_name("machine files", tests, NULL, NULL);
}
