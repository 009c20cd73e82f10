/* test_config_known.c -- tests configs as users of DeepSpeed have them, read on one rank: which
 * keys without effect are accepted, and the notices about them. The values that are refused are in
 * golden/config_errors.txt. */
#include "configs/config.h"
#include "configs/reader/options.h"
#include "model/core/check.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *keys, *set, *notice;
} without_effect[] = {
    {"\"compile\": {\"enabled\": true}", NULL,
     "c.json:2:13: notice: compile.enabled: accepted, without effect here (torch.compile)"},
    {"\"compile\": {\"backend\": \"inductor\"}", NULL,
     "c.json:2:13: notice: compile.backend: accepted, without effect here (torch.compile)"},
    {"\"compile\": {\"enabled\": false, \"deepcompile\": false}", NULL, ""},
    {"", "compile.passes=[1]",
     "--set compile.passes=[1]: notice: compile.passes: accepted, without effect here "
     "(torch.compile)"},
    {"", "aio.block_size=4096",
     "--set aio.block_size=4096: notice: aio.block_size: accepted, without effect here (no "
     "NVMe offload)"},
    {"\"aio.block_size\": 4096", NULL,
     "c.json:2:1: notice: aio.block_size: accepted, without effect here (no NVMe offload)"},
    {"\"bf16\": {\"bf16_optimizer_states\": true}", NULL,
     "c.json:2:10: notice: bf16.bf16_optimizer_states: accepted, without effect here (it is about "
     "moments of bf16 weights, and bf16.enabled is false)"},
    /* The notice names the key as the file has it and, in brackets, the option that it stands
     * for. */
    {"\"optimizer.params\": {\"fp32_optimizer_states\": false}", NULL,
     "c.json:2:22: notice: optimizer.params.fp32_optimizer_states (bf16.bf16_optimizer_states): "
     "accepted, without effect here (it is about moments of bf16 weights, and bf16.enabled is "
     "false)"},
    {"\"optimizer.params\": {\"fp32_optimizer_states\": false}", "bf16.bf16_optimizer_states=true",
     "--set bf16.bf16_optimizer_states=true: notice: bf16.bf16_optimizer_states: accepted, without "
     "effect here (it is about moments of bf16 weights, and bf16.enabled is false)"},
    {"\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}, "
     "\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}",
     NULL,
     "c.json:2:80: notice: bf16.bf16_optimizer_states: accepted, without effect here (it is about "
     "AdamW's and Adam's moments, and optimizer.type is SGD)"},
    {"", "zero_optimization.leaf_module.names=[\"a\"]",
     "--set zero_optimization.leaf_module.names=[\"a\"]: notice: "
     "zero_optimization.leaf_module.names: accepted, without effect here (modules of Hugging "
     "Face models)"},
    {"", "amp.opt_level=O2",
     "--set amp.opt_level=O2: notice: amp.opt_level: accepted, without effect here (NVIDIA "
     "Apex; bf16 does without)"},
    {"\"amp\": {\"opt_level\": \"O2\"}", NULL, ""}, /* accepted silently, because amp is off */
    {"\"amp\": {\"enabled\": false}", "amp.enabled=false", ""},
    {"\"weight_quantization\": {\"enabled\": false, \"post_init_quant\": {}}", NULL, ""},
    {"\"zero_optimization\": {\"zero_quantized_weights\": \"auto\"}", NULL,
     "c.json:2:23: notice: zero_optimization.zero_quantized_weights: \"auto\" is read as the "
     "default, which is false (ZeRO++ weight quantisation is not built yet)"},
    {"\"zero_optimization\": {\"zenflow\": \"auto\"}", NULL,
     "c.json:2:23: notice: zero_optimization.zenflow: \"auto\" is read as the default, which "
     "is absent (asynchronous offload is not built yet)"},
    {"\"pipeline\": {\"stages\": \"auto\"}", NULL, ""}, /* this is DeepSpeed's default */
    {"\"zero_optimization\": {\"round_robin_gradients\": true}", NULL,
     "c.json:2:23: notice: zero_optimization.round_robin_gradients: accepted, without effect "
     "here (no gradients are copied to the host)"},
    {"\"zero_optimization\": {\"sub_group_size\": 1e12}", NULL,
     "c.json:2:23: notice: zero_optimization.sub_group_size: accepted, without effect here "
     "(the update works in place and needs no room by the size of its group)"},
    {"\"prescale_gradients\": true", NULL,
     "c.json:2:1: notice: prescale_gradients: accepted, without effect: the loss is divided by "
     "the whole batch where it is computed, so sums over ranks need no factor"},
    {"\"gradient_predivide_factor\": 2", "zero_optimization.reduce_scatter=false",
     "c.json:2:1: notice: gradient_predivide_factor: accepted, without effect: the loss is "
     "divided by the whole batch where it is computed, so sums over ranks need no factor"},
    {"\"gradient_predivide_factor\": 1.0, \"prescale_gradients\": false", NULL, ""},
    {"\"communication_data_type\": null, \"gradient_allreduce_op\": \"sum\"", NULL, ""},
    {"\"comms_logger\": {\"enabled\": true, \"verbose\": false, \"prof_ops\": []}", NULL,
     "c.json:2:18: notice: comms_logger.enabled: one rank sends nothing, so there is nothing "
     "to "
     "print"},
    {"\"zero_optimization\": {\"overlap_comm\": null, \"reduce_bucket_size\": \"auto\"}", NULL, ""},
    {"\"seed\": null", NULL, "c.json:2:9: notice: seed: null is read as the default, 1337"},
    {"\"seed\": 3", "seed=null", ""},
    {"\"data_efficiency\": {\"seed\": \"x\"}", NULL, ""},
    {"\"compression_training\": {\"layer_reduction\": {\"enabled\": false}}", NULL, ""},
    {"\"compression_training\": {}", "compression_training.x.y=1", ""},
    {"\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
     "\"/n\"}}",
     NULL,
     "c.json:2:41: notice: zero_optimization.offload_param.device: accepted, without effect "
     "here (parameters stay on the device)"},
    {"\"wandb\": {\"enabled\": true, \"project\": \"p\"}", NULL,
     "c.json:2:11: notice: wandb.enabled: accepted, without effect here (metrics.jsonl in the "
     "run folder has every number)"},
    {"\"autotuning\": {\"enabled\": true, \"fast\": true}", NULL,
     "c.json:2:16: notice: autotuning.enabled: accepted, without effect here (nothing is "
     "searched; the config is taken as it is)"},
    {"", "autotuning.enabled=true",
     "--set autotuning.enabled=true: notice: autotuning.enabled: accepted, without effect here "
     "(nothing is searched; the config is taken as it is)"},
    /* The file has no section "model", so it was written for DeepSpeed. */
    {"\"cuda_visible_devices\": 0", NULL,
     "c.json:2:1: notice: cuda_visible_devices: unknown key, without effect (DeepSpeed does "
     "not "
     "read it either)"},
    {"\"learning_rate\": 1", NULL,
     "c.json:2:1: notice: learning_rate: unknown key, without effect (DeepSpeed does not read "
     "it either); here it is \"optimizer.params.lr\""},
    {"\"optimizer\": {\"params\": {\"freeze_step\": 4}}", "optimizer.type=AdamW", ""},
};

static void keys_without_effect_are_accepted_with_a_notice(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof without_effect / sizeof *without_effect; i++)
        config_free(config_test_says(without_effect[i].keys, without_effect[i].set,
                                     without_effect[i].notice));
}

/* "bfloat16" is read as a section of the file, as a dotted key in the file, and in a --set. */
static void bfloat16_is_read_as_the_old_name_of_bf16(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set, *notice;
    } cases[] = {
        {"\"bfloat16\": {\"enabled\": true}", NULL,
         "c.json:2:1: notice: bfloat16: the old name of bf16, read as such"},
        {"\"bfloat16.enabled\": true", NULL,
         "c.json:2:1: notice: bfloat16: the old name of bf16, read as such"},
        {"", "bfloat16.enabled=true",
         "--set bfloat16.enabled=true: notice: bfloat16: the old name of bf16, read as such"},
        {"", "bfloat16={\"enabled\": true}",
         "--set bfloat16={\"enabled\": true}: notice: bfloat16: the old name of bf16, read as "
         "such"},
        {"\"bf16\": {\"enabled\": false}", "bfloat16.enabled=true",
         "--set bfloat16.enabled=true: notice: bfloat16: the old name of bf16, read as such"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = config_test_says(cases[i].keys, cases[i].set, cases[i].notice);
        assert_true(c->bf16.enabled);
        config_free(c);
    }
}

static void a_set_option_replaces_a_value_of_the_file_that_would_be_refused(void **state)
{
    (void)state;
    config_free(config_test_says("\"weight_quantization\": {\"post_init_quant\": {}}",
                                 "weight_quantization.enabled=false", ""));
    config_free(config_test_says("\"amp\": {\"enabled\": true}", "amp.enabled=false", ""));
    config_free(config_test_says("\"zero_optimization\": {\"overlap_comm\": \"banana\"}",
                                 "zero_optimization.overlap_comm=null", ""));
}

/* Doubles below 2.2e-308 are denormal and go down to 4.9e-324. */
static void denormal_numbers_and_all_spellings_of_zero_are_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *lr;
        double value;
    } cases[] = {{"0", 0},           {"-0.0e-999", 0},
                 {"0.000E5", 0},     {"5e-324", 0x1p-1074},
                 {"1e-300", 1e-300}, {"0.00000001e-100", 1e-108}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[80];
        snprintf(keys, sizeof keys, "\"optimizer\": {\"params\": {\"lr\": %s}}", cases[i].lr);
        const Config *c = config_test_says(keys, NULL, "");
        assert_true(c->optimizer.params.lr == cases[i].value);
        config_free(c);
    }
}

static void config_explain_says_that_qk_norm_is_an_rmsnorm(void **state)
{
    (void)state;
    char *text, near[100];
    size_t length;
    FILE *to = open_memstream(&text, &length);
    assert_true(config_explain("model.qk_norm", to, near, sizeof near));
    fclose(to);
    assert_non_null(strstr(text, "by an RMSNorm whatever model.norm is"));
    free(text);
}

/* For every ignored key, the type of its value is known; every alias refers to an existing key. */
static void every_ignored_key_has_a_type_and_every_alias_a_target(void **state)
{
    (void)state;
    for (int i = 0; i < known_count; i++) {
        const KnownKey *k = &known_table[i];
        if (k->kind == KNOWN_IGNORED && strchr("\"tf-0123456789", known_example(k)[0]) == NULL)
            fail_msg("%s takes %s", k->key, known_example(k));
        if (k->stands_for != NULL && k->kind == KNOWN_IGNORED)
            assert_true(known_find(k->stands_for) >= 0);
        if (k->kind == KNOWN_SHORT || k->kind == KNOWN_ALIAS)
            assert_true(option_find(k->stands_for) >= 0);
    }
}

/* A key without an explanation of its own has that of its feature. No key's own explanation repeats
 * the text of a feature. */
static void every_known_key_has_its_own_explanation_or_a_feature(void **state)
{
    (void)state;
    for (int i = 0; i < known_count; i++) {
        const KnownKey *k = &known_table[i];
        const char *why = known_why(k);
        if (why == NULL || *why == '\0') fail_msg("%s: nothing says why", k->key);
        for (int f = FEATURE_NONE + 1; k->why != NULL && f < FEATURE_COUNT; f++) {
            const KnownFeature *feature = &known_feature[f];
            if ((feature->asks && strcmp(k->why, feature->asks) == 0) ||
                (feature->idle && strcmp(k->why, feature->idle) == 0))
                fail_msg("%s repeats a feature's words: %s", k->key, k->why);
        }
    }
}

/* Returns a value of the right type for an ignored key that is not one of its inert values. */
static const char *odd_value(const KnownKey *k)
{
    const char *example = known_example(k);
    return *example == '"'   ? "\"odd\""
           : *example == 't' ? "false"
           : *example == 'f' ? "true"
                             : "77";
}

static void known_keys_are_accepted_or_refused_as_their_kind_says(void **state)
{
    (void)state;
    for (int i = 0; i < known_count; i++) {
        const KnownKey *k = &known_table[i];
        int with_null, with_odd, n_notices;
        if (strcmp(k->key, "scheduler.params.decay_mom_rate") == 0) continue;
        /* the grid decides whether it is honoured: test_config_offload */
        if (strcmp(k->key, "activation_checkpointing.partition_activations") == 0) continue;
        with_null = config_test_errors(k->key, "null", &n_notices);
        /* every_alias_of_a_zero_key_sets_the_key covers aliases */
        if (k->kind == KNOWN_ALIAS) continue;
        bool passes = k->kind == KNOWN_TOOL;
        bool is_switch = k->kind == KNOWN_SWITCH || k->kind == KNOWN_ON_SWITCH || passes ||
                         k->kind == KNOWN_DEEP_SWITCH;
        with_odd = config_test_errors(k->key,
                                      is_switch                  ? "{\"enabled\": true}"
                                      : k->kind == KNOWN_TREE    ? "{\"x\": 1}"
                                      : k->kind == KNOWN_IGNORED ? odd_value(k)
                                                                 : "77",
                                      &n_notices);
        bool refuses = k->kind == KNOWN_UNBUILT || (is_switch && !passes) ||
                       k->kind == KNOWN_WRONG || k->kind == KNOWN_SHORT;
        if (with_null != (k->kind == KNOWN_WRONG)) fail_msg("%s: null", k->key);
        /* the keys of this section have rows of their own */
        if (strcmp(k->key, "compile") == 0) continue;
        if (with_odd != refuses) fail_msg("%s: %d errors", k->key, with_odd);
        if (k->kind == KNOWN_IGNORED &&
            (n_notices != 2 || config_test_errors(k->key, "[1]", &n_notices) != 1))
            fail_msg("%s: %d notices, or a list passes", k->key, n_notices);
        if (is_switch &&
            config_test_errors(k->key, "{\"enabled\": false, \"x\": [1]}", &n_notices) != 0)
            fail_msg("%s: off", k->key);
        for (const char *at = k->inert; at != NULL && at[1] != '\0'; at = strchr(at + 1, '|')) {
            char *value = text_format("%.*s", (int)strcspn(at + 1, "|"), at + 1);
            if (config_test_errors(k->key, value, &n_notices) != 0 || n_notices != 1)
                fail_msg("%s: %s is inert", k->key, value);
            free(value);
        }
    }
}

/* Returns what config_report_print prints for a config that must be valid. */
static char *printed(const char *keys, const char *set, bool verbose)
{
    ConfigReport report;
    char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8%s\n%s}",
                             *keys ? "," : "", keys);
    char *out = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&out, &size);
    const Config *c = config_parse(&(ConfigContext){.world = 1}, "c.json", text, strlen(text),
                                   set != NULL, &set, &report);
    if (c == NULL) fail_msg("%s\n%s", text, report.error[0]);
    config_report_print(&report, verbose, to);
    fclose(to);
    config_report_free(&report);
    config_free(c);
    free(text);
    return out;
}

/* A notice about a given key is printed without --verbose; a notice that a default was used is
 * not, and keys without effect are counted. */
static void notices_about_given_keys_are_printed_without_verbose(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        const char *shown; /* part of the first line; "": nothing is printed */
        bool more;
    } cases[] = {
        {"", NULL, "", false},
        {"\"bf16\": {\"enabled\": \"auto\"}", NULL, "", false},
        {"\"bfloat16\": {\"enabled\": true}, \"gradient_clipping\": 1", NULL, "", false},
        {"\"train_micro_batch_size_per_gpu\": \"auto\"", NULL, "", false},
        {"\"zero_optimization\": {\"stage\": 2}", NULL, "one rank has nothing to shard", true},
        {"\"gradient_clipping\": 1", "zero_optimization.stage=3", "one rank has nothing to shard",
         false},
        {"\"scheduler\": {\"type\": \"WarmupLR\"}, \"train_steps\": 9", NULL,
         "the run ends before the warmup does", true},
        {"", "data.train=x.bin", "set aside for --set data.train", true},
        {"\"seed\": null, \"gradient_clipping\": 1", NULL, "null is read as the default, 1337",
         false},
        /* A key without effect gives a notice if it is on the command line; in a file it is only
         * counted. */
        {"", "compile.enabled=true", "accepted, without effect here", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *quiet = printed(cases[i].keys, cases[i].set, false),
             *all = printed(cases[i].keys, cases[i].set, true);
        const char *line = strstr(quiet, cases[i].shown), *end = strchr(quiet, '\n');
        const char *rest = end ? end + 1 : "";
        bool as_wanted =
            *cases[i].shown ? line != NULL && end != NULL && line < end : *quiet == '\0';
        if (!as_wanted || strcmp(rest, cases[i].more ? "1 more notice (--verbose)\n" : "") != 0 ||
            strstr(all, cases[i].shown) == NULL || strstr(all, "(--verbose)") != NULL)
            fail_msg("%s %s:\n%s", cases[i].keys, cases[i].set ? cases[i].set : "", quiet);
        free(quiet);
        free(all);
    }
    char *counted = printed("\"compile\": {\"enabled\": true}", NULL, false),
         *both = printed("\"compile\": {\"enabled\": true, \"backend\": \"x\"}", NULL, false);
    assert_string_equal(counted, "1 key has no effect here; --verbose lists it\n");
    assert_string_equal(both, "2 keys have no effect here; --verbose lists them\n");
    free(counted);
    free(both);
    char *all = printed("\"bf16\": {\"enabled\": \"auto\"}", NULL, true);
    assert_non_null(strstr(all, "\"auto\" is false here"));
    assert_non_null(strstr(all, "1.0 taken"));
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_without_effect_are_accepted_with_a_notice),
        cmocka_unit_test(notices_about_given_keys_are_printed_without_verbose),
        cmocka_unit_test(bfloat16_is_read_as_the_old_name_of_bf16),
        cmocka_unit_test(a_set_option_replaces_a_value_of_the_file_that_would_be_refused),
        cmocka_unit_test(denormal_numbers_and_all_spellings_of_zero_are_accepted),
        cmocka_unit_test(config_explain_says_that_qk_norm_is_an_rmsnorm),
        cmocka_unit_test(every_ignored_key_has_a_type_and_every_alias_a_target),
        cmocka_unit_test(every_known_key_has_its_own_explanation_or_a_feature),
        cmocka_unit_test(known_keys_are_accepted_or_refused_as_their_kind_says),
    };
    return cmocka_run_group_tests_name("config known", tests, NULL, NULL);
}
