/* test_settle_attention.c -- tests which attention kernels a config gets on which device, and that
 * a run keeps them. */
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Config *parsed(const ConfigContext *context, const char *text, const char *set)
{
    ConfigReport report;
    const Config *c =
        config_parse(context, "c.json", text, strlen(text), set != NULL, &set, &report);
    if (c == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    return c;
}

#define WIDE                                                                                       \
    "{\"model\": {\"vocab_size\": 300, \"hidden_size\": 256, \"num_attention_heads\": 4}, "        \
    "\"data\": {\"text\": \"x\"}, \"bf16\": {\"enabled\": true}"
#define HOPPER WIDE ", \"cuda\": {\"attention\": \"hopper\"}}"

/* Parses the text with the --set `set`, and settles the config for a device. Returns NULL and sets
 * err if config_settle refuses it. */
static const Config *attention_on(const char *text, const char *set, DeviceFacts device,
                                  const Config *run, char *err, size_t n)
{
    const Config *c = parsed(NULL, text, set), *settled;
    settled = config_settle(c, &(ConfigFacts){.known = &device, .run = run}, err, n);
    if (settled == NULL) config_free(c);
    return settled;
}

/* The kernels for Hopper are taken only if they are given, and only where they exist. */
static void hopper_attention_is_used_only_if_given_and_refused_on_other_devices(void **state)
{
    (void)state;
    static const struct {
        const char *text, *set;
        DeviceFacts device;
        const char *error; /* NULL: there is none, and `kernels` are used */
        AttentionKernels kernels;
    } cases[] = {
        {WIDE "}", NULL, {.capability = 90}, NULL, ATTENTION_PORTABLE},
        {WIDE "}", NULL, {.capability = 100}, NULL, ATTENTION_PORTABLE},
        {WIDE "}", NULL, {.capability = 0}, NULL, ATTENTION_PORTABLE},
        {HOPPER, NULL, {.capability = 90}, NULL, ATTENTION_HOPPER},
        {HOPPER,
         NULL,
         {.capability = 0},
         "c.json:1:137: cuda.attention: .* this is a CPU; write",
         0},
        {HOPPER,
         "device=cuda",
         {.capability = 0},
         NULL,
         ATTENTION_HOPPER}, /* accepted, because a config for a GPU can be printed without one */
        {HOPPER, NULL, {.capability = 80}, "a GPU here has 8.0; write \"portable\"", 0},
        {HOPPER, NULL, {.capability = 100}, "a GPU here has 10.0; write \"portable\"", 0},
        {HOPPER,
         NULL,
         {.capability = 90, .lacks_hopper = true},
         "built without 90a in ARCH; write",
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[400] = "";
        const Config *c =
            attention_on(cases[i].text, cases[i].set, cases[i].device, NULL, err, sizeof err);
        if ((c == NULL) != (cases[i].error != NULL)) fail_msg("case %zu: \"%s\"", i, err);
        if (c == NULL) {
            const char *place = strstr(cases[i].error, ".*");
            bool begins =
                place == NULL || strncmp(err, cases[i].error, place - cases[i].error) == 0;
            if (!begins || strstr(err, place ? place + 2 : cases[i].error) == NULL)
                fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err, cases[i].error);
            continue;
        }
        assert_int_equal(c->cuda.attention, cases[i].kernels);
        assert_string_equal(config_origin(c, "cuda.attention"),
                            strcmp(cases[i].text, HOPPER) == 0 ? "c.json:1" : "derived");
        config_free(c);
    }
}

/* A resumed run keeps the kernels that it began with. If the device lacks them, the run is refused.
 * If a --set asks for others, that counts as a change of rounding. */
static void a_resumed_run_keeps_its_attention_kernels(void **state)
{
    (void)state;
    const ConfigContext as_stored = {.stored = true}, resumed = {.resumed = true};
    const DeviceFacts hopper = {.capability = 90}, ampere = {.capability = 80};
    char err[400] = "";
    const Config *run = attention_on(HOPPER, NULL, hopper, NULL, err, sizeof err), *c;
    char *kept = config_text(run);
    const Config *stored = parsed(&as_stored, kept, NULL);
    assert_int_equal(stored->cuda.attention, ATTENTION_HOPPER);
    assert_non_null(c = attention_on(WIDE "}", NULL, hopper, stored, err, sizeof err));
    assert_int_equal(c->cuda.attention, ATTENTION_HOPPER);
    config_free(c);
    assert_null(attention_on(WIDE "}", NULL, ampere, stored, err, sizeof err));
    assert_non_null(strstr(err, "the run began with \"hopper\""));
    /* The stored config of the run gives cuda.attention. */
    c = parsed(&resumed, kept, NULL);
    ConfigFacts facts = {.known = &ampere, .run = stored};
    assert_null(config_settle(c, &facts, err, sizeof err));
    assert_non_null(strstr(err, "which changes rounding only"));
    config_free(c);
    for (int own = 0; own < 2; own++) {
        ConfigDifference *d;
        const char *set = "cuda.attention=portable";
        c = config_settle(own ? parsed(&resumed, kept, set) : parsed(NULL, WIDE "}", set), &facts,
                          err, sizeof err);
        assert_non_null(c);
        int n = config_diff(stored, c, &d), ours = 0;
        for (int k = 0; k < n; k++)
            if (strcmp(d[k].key, "cuda.attention") == 0)
                ours += d[k].effect == EFFECT_ROUNDING && strcmp(d[k].now, "\"portable\"") == 0;
        assert_int_equal(ours, 1);
        config_diff_free(d, n);
        config_free(c);
    }
    config_free(stored);
    config_free(run);
    free(kept);
}

/* A run that is only read takes the kernels that are there, unless a --set asks for others. */
static void a_run_opened_only_for_reading_uses_the_kernels_that_are_available(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        DeviceFacts device;
        bool refused;
        AttentionKernels kernels;
    } cases[] = {
        {NULL, {.capability = 90}, false, ATTENTION_HOPPER},
        {NULL, {.capability = 90, .lacks_hopper = true}, false, ATTENTION_PORTABLE},
        {NULL, {.capability = 80}, false, ATTENTION_PORTABLE},
        {NULL, {.capability = 0}, false, ATTENTION_PORTABLE},
        {"device=cpu", {.capability = 0}, false, ATTENTION_PORTABLE},
        {"bf16.enabled=false", {.capability = 90}, false, ATTENTION_PORTABLE},
        {"cuda.attention=portable", {.capability = 90}, false, ATTENTION_PORTABLE},
        {"cuda.attention=hopper", {.capability = 90}, false, ATTENTION_HOPPER},
        {"cuda.attention=hopper", {.capability = 80}, true, 0},
    };
    const ConfigContext opened = {.stored = true, .opened = 1};
    char err[400] = "";
    const Config *run =
        attention_on(HOPPER, NULL, (DeviceFacts){.capability = 90}, NULL, err, sizeof err);
    char *kept = config_text(run);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *read = parsed(&opened, kept, cases[i].set);
        ConfigFacts facts = {.known = &cases[i].device, .opened = true};
        const Config *c = config_settle(read, &facts, err, sizeof err);
        if ((c == NULL) != cases[i].refused) fail_msg("case %zu: \"%s\"", i, err);
        if (c != NULL && c->cuda.attention != cases[i].kernels)
            fail_msg("case %zu: the kernels are %d", i, (int)c->cuda.attention);
        config_free(c ? c : read);
    }
    config_free(run);
    free(kept);
}

/* What the config itself rules out is refused before a device is asked for. */
static void configs_that_the_hopper_kernels_do_not_support_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error;
    } cases[] = {
        {"model.num_attention_heads=8", "\"hopper\" is for heads of 64 or 128, and model.head_dim "
                                        "is 32; write \"portable\""},
        {"bf16.enabled=false", "and this config in fp32; write \"portable\", or bf16.enabled true"},
        {"device=cpu", "and device is \"cpu\"; write \"portable\", or device \"cuda\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        const char *text = HOPPER;
        assert_null(config_parse(NULL, "c.json", text, strlen(text), 1, &cases[i].set, &report));
        assert_int_equal(report.n_errors, 1);
        if (strncmp(report.error[0], "c.json:1:", 9) != 0 ||
            strstr(report.error[0], cases[i].error) == NULL)
            fail_msg("%s: \"%s\"", cases[i].set, report.error[0]);
        assert_string_equal(report.remedy[0], "cuda.attention=portable");
        config_report_free(&report);
    }
    /* The kernels are refused also for a run that is only read, if a --set asks for them. */
    const ConfigContext opened = {.stored = true, .opened = 1};
    const char *text = WIDE ", \"device\": \"cpu\"}", *set = "cuda.attention=hopper";
    ConfigReport report;
    assert_null(config_parse(&opened, "c.json", text, strlen(text), 1, &set, &report));
    assert_int_equal(report.n_errors, 1);
    assert_non_null(strstr(report.error[0], "and device is \"cpu\""));
    config_report_free(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hopper_attention_is_used_only_if_given_and_refused_on_other_devices),
        cmocka_unit_test(a_resumed_run_keeps_its_attention_kernels),
        cmocka_unit_test(a_run_opened_only_for_reading_uses_the_kernels_that_are_available),
        cmocka_unit_test(configs_that_the_hopper_kernels_do_not_support_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
