/* test_hf_config_refused.c -- tests which config.json files of Hugging Face's libraries are
 * refused, and that each refusal names the key and the reason. */
#include "tests/support/model/hf_configs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *base, *changes, *expected;
} refused[] = {
    {hf_config_llama, "model_type=\"mixtral\"",
     "model_type \"mixtral\" has experts, which are not built"},
    {hf_config_llama, "model_type=\"deepseek_v3\"", "latent vector (MLA)"},
    {hf_config_llama, "model_type=\"gemma2\"", "norms after each half of a block"},
    {hf_config_llama, "model_type=\"smollm3\"", "model_type \"smollm3\" has blocks without RoPE"},
    {hf_config_llama, "model_type=\"phi3\"",
     "model_type \"phi3\" has q, k and v in one matrix, and gate and up in one"},
    {hf_config_llama, "model_type=\"nonesuch\"",
     "model_type \"nonesuch\" is not known here; gpt2, llama"},
    {hf_config_llama, "model_type=-", "model_type is missing"},
    {hf_config_llama, "model_type=7", "model_type is a number, not a string"},
    {hf_config_llama, "num_local_experts=8", "num_local_experts: experts are not built"},
    {hf_config_llama, "kv_lora_rank=512",
     "kv_lora_rank: keys and values from a latent vector (MLA)"},
    {hf_config_llama, "quantization_config={\"quant_method\": \"gptq\"}", "quantised weights"},
    {hf_config_llama, "partial_rotary_factor=0.5", "partial_rotary_factor: RoPE on a part"},
    {hf_config_llama, "hidden_act=\"gelu\"",
     "hidden_act \"gelu\" is not built for this model type"},
    {hf_config_llama, "hidden_act=\"relu\"", "\"silu\" is"},
    {hf_config_gpt2, "activation_function=\"gelu\"", "activation_function \"gelu\" is not built"},
    {hf_config_gpt2, "activation_function=\"relu\"", "\"gelu_new\" is"},
    {hf_config_gpt2, "scale_attn_weights=false",
     "scale_attn_weights: attention that is not scaled"},
    {hf_config_gpt2, "scale_attn_by_inverse_layer_idx=true",
     "attention that each block scales otherwise"},
    {hf_config_gpt2, "add_cross_attention=true", "attention to another text"},
    {hf_config_gpt2, "n_embd=770", "n_embd is not a multiple of n_head"},
    {hf_config_gpt2, "n_embd=-", "config.json:1:1: n_embd is not a multiple of n_head"},
    {hf_config_llama, "rope_scaling={\"type\": \"linear\", \"factor\": 2.0}",
     "rope scaling of type \"linear\" is not built; \"llama3\" is"},
    {hf_config_llama, "rope_scaling={\"type\": \"dynamic\", \"factor\": 2.0}", "type \"dynamic\""},
    {hf_config_llama, "rope_scaling={\"rope_type\": \"yarn\", \"factor\": 4.0}", "type \"yarn\""},
    {hf_config_llama, "rope_parameters={\"rope_type\": \"longrope\"}", "type \"longrope\""},
    {hf_config_llama, "rope_scaling={\"rope_type\": \"llama3\", \"factor\": 8}",
     "low_freq_factor is missing"},
    {hf_config_llama, "rope_scaling=2", "rope_scaling is not an object"},
    {hf_config_llama, "rope_parameters={\"full_attention\": {\"rope_theta\": 1}}",
     "each type of block"},
    {hf_config_llama, "rope_parameters={\"rope_theta\": 5}", "rope_theta and rope_theta differ"},
    {hf_config_llama,
     "rope_theta=-\nrope_scaling={\"rope_theta\": 7}\nrope_parameters={\"rope_theta\": 8}",
     "rope_parameters.rope_theta and rope_theta differ"},
    {hf_config_llama,
     "rope_scaling={\"rope_type\": \"llama3\", " HF_LLAMA3_SCALING "}\n"
     "rope_parameters={\"rope_type\": \"default\"}",
     "rope_parameters and rope_scaling differ"},
    {hf_config_llama,
     "rope_scaling={\"type\": \"default\"}\n"
     "rope_parameters={\"rope_type\": \"llama3\", " HF_LLAMA3_SCALING "}",
     "rope_parameters and rope_scaling differ"},
    {hf_config_llama, "rope_theta=0", "rope_theta is not a positive number"},
    {hf_config_llama, "layer_types=[\"linear_attention\"]", "other attention than full_attention"},
    {hf_config_llama, "vocab_size=-", "vocab_size is missing"},
    {hf_config_llama, "num_hidden_layers=0", "num_hidden_layers is not an integer from 1"},
    {hf_config_llama, "num_hidden_layers=2.5", "num_hidden_layers is not an integer"},
    {hf_config_llama, "hidden_size=1e30", "hidden_size is not an integer"},
    {hf_config_llama, "num_key_value_heads=5", "num_key_value_heads does not divide"},
    {hf_config_llama, "head_dim=63", "the size of a head is odd"},
    {hf_config_llama, "hidden_size=2050", "head_dim is missing"},
    {hf_config_llama, "tie_word_embeddings=1", "tie_word_embeddings is neither true nor false"},
};

static void test_errors_name_the_refused_feature(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char err[2048] = "";
        Architecture a;
        if (hf_config_changed(refused[i].base, refused[i].changes, &a, err, sizeof err))
            fail_msg("%s is read", refused[i].changes);
        if (strstr(err, refused[i].expected) == NULL || strncmp(err, "config.json:1:", 14) != 0)
            fail_msg("%s: %s", refused[i].changes, err);
    }
}

static void test_all_refused_features_are_reported_at_once(void **state)
{
    (void)state;
    char err[2048];
    Architecture a;
    assert_false(hf_config_changed(
        hf_config_llama, "hidden_act=\"gelu\"\nnum_experts=4\nvocab_size=-", &a, err, sizeof err));
    assert_non_null(strstr(err, "hidden_act"));
    assert_non_null(strstr(err, "; config.json:1:1: vocab_size is missing; "));
    assert_non_null(strstr(err, "num_experts"));
    static const char *const broken[] = {"",
                                         "[]",
                                         "7",
                                         "{",
                                         "{\"model_type\": \"llama\",,}",
                                         "{\"a\": 1, \"a\": 2, \"model_type\": \"llama\"}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_false(
            hf_config_parse(&a, "config.json", broken[i], strlen(broken[i]), err, sizeof err));
    assert_non_null(strstr(err, "a is there twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_name_the_refused_feature),
        cmocka_unit_test(test_all_refused_features_are_reported_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
