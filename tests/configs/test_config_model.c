/* test_config_model.c -- tests keys of the section model that depend on each other: biases, and the
 * scaling of RoPE. */
#include "configs/config.h"
#include "model/core/check.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void check_biases(const char *keys, bool norm, AttentionBias attention, bool mlp)
{
    char *model = text_format("\"model\": {%s}", keys);
    const Config *c = config_test_keys(model);
    assert_int_equal(c->model.bias, norm);
    assert_int_equal(c->model.attention_bias, attention);
    assert_int_equal(c->model.mlp_bias, mlp);
    /* Printed and read again, the config is the same; derived values are derived again. */
    char *text = config_text(c);
    const Config *again = config_test_parse(text, 0, NULL);
    ConfigDifference *d;
    int n = config_diff(c, again, &d);
    assert_int_equal(n, 0);
    config_diff_free(d, n);
    config_free(again);
    free(text);
    config_free(c);
    free(model);
}

static void biases_of_linear_layers_follow_model_bias_unless_given(void **state)
{
    (void)state;
    check_biases("", true, ATTENTION_BIAS_ALL, true);
    check_biases("\"bias\": false", false, ATTENTION_BIAS_NONE, false);
    check_biases("\"bias\": false, \"attention_bias\": \"qkv\"", false, ATTENTION_BIAS_QKV, false);
    check_biases("\"attention_bias\": \"none\"", true, ATTENTION_BIAS_NONE, true);
    check_biases("\"attention_bias\": \"auto\", \"mlp_bias\": false", true, ATTENTION_BIAS_ALL,
                 false);
    check_biases("\"bias\": false, \"mlp_bias\": true, \"attention_bias\": \"all\"", false,
                 ATTENTION_BIAS_ALL, true);
    /* Biases that are not given also follow a model.bias that --set gives. */
    const Config *c = config_test_set("model.bias=false");
    assert_int_equal(c->model.attention_bias, ATTENTION_BIAS_NONE);
    assert_string_equal(config_origin(c, "model.attention_bias"), "derived");
    config_free(c);
}

/* --set model.rope_scaling.type=none drops the other keys that the file gives in this section. */
static void rope_scaling_prints_back_to_itself_and_a_set_option_replaces_it(void **state)
{
    (void)state;
    static const char keys[] =
        "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, \"model\": {\"position\": "
        "\"rope\", "
        "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
        "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}}";
    static const char *const none[] = {"model.rope_scaling.type=none"};
    const Config *c = config_test_parse(keys, 0, NULL);
    const RopeScaling *s = &c->model.rope_scaling;
    assert_int_equal(s->type, ROPE_SCALING_LLAMA3);
    assert_true(s->factor == 8 && s->low_freq_factor == 1 && s->high_freq_factor == 4);
    assert_int_equal(s->original_max_position_embeddings, 8192);
    char *text = config_text(c);
    const Config *again = config_test_parse(text, 0, NULL);
    assert_memory_equal(&again->model.rope_scaling, s, sizeof *s);
    config_free(again);
    free(text);
    config_free(c);
    c = config_test_parse(keys, 1, none);
    assert_int_equal(c->model.rope_scaling.type, ROPE_SCALING_NONE);
    config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biases_of_linear_layers_follow_model_bias_unless_given),
        cmocka_unit_test(rope_scaling_prints_back_to_itself_and_a_set_option_replaces_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
