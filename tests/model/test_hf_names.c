/* test_hf_names.c -- tests the names of weights in Hugging Face's files: some known pairs of names,
 * and that every name in a model's parameter table is converted to theirs and back. */
#include "model/core/check.h"
#include "model/layers.h"
#include "model/weights/hf_names.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_known_parameters_map_to_their_hugging_face_names(void **state)
{
    (void)state;
    static const struct {
        ArchitectureKind kind;
        const char *ours, *theirs;
        int part;
        bool transposed;
    } table[] = {
        {ARCHITECTURE_GPT2, "token.weight", "transformer.wte.weight", -1, false},
        {ARCHITECTURE_GPT2, "position.weight", "transformer.wpe.weight", -1, false},
        {ARCHITECTURE_GPT2, "block.0.attn.norm.bias", "transformer.h.0.ln_1.bias", -1, false},
        {ARCHITECTURE_GPT2, "block.11.attn.q.weight", "transformer.h.11.attn.c_attn.weight", 0,
         true},
        {ARCHITECTURE_GPT2, "block.11.attn.k.bias", "transformer.h.11.attn.c_attn.bias", 1, false},
        {ARCHITECTURE_GPT2, "block.11.attn.v.weight", "transformer.h.11.attn.c_attn.weight", 2,
         true},
        {ARCHITECTURE_GPT2, "block.3.attn.out.weight", "transformer.h.3.attn.c_proj.weight", -1,
         true},
        {ARCHITECTURE_GPT2, "block.3.mlp.norm.weight", "transformer.h.3.ln_2.weight", -1, false},
        {ARCHITECTURE_GPT2, "block.3.mlp.up.weight", "transformer.h.3.mlp.c_fc.weight", -1, true},
        {ARCHITECTURE_GPT2, "block.3.mlp.down.bias", "transformer.h.3.mlp.c_proj.bias", -1, false},
        {ARCHITECTURE_GPT2, "final_norm.weight", "transformer.ln_f.weight", -1, false},
        {ARCHITECTURE_GPT2, "head.weight", "lm_head.weight", -1, false},
        {ARCHITECTURE_LLAMA, "token.weight", "model.embed_tokens.weight", -1, false},
        {ARCHITECTURE_LLAMA, "block.7.attn.norm.weight", "model.layers.7.input_layernorm.weight",
         -1, false},
        {ARCHITECTURE_LLAMA, "block.7.attn.q.weight", "model.layers.7.self_attn.q_proj.weight", -1,
         false},
        {ARCHITECTURE_LLAMA, "block.7.attn.out.weight", "model.layers.7.self_attn.o_proj.weight",
         -1, false},
        {ARCHITECTURE_LLAMA, "block.7.mlp.norm.weight",
         "model.layers.7.post_attention_layernorm.weight", -1, false},
        {ARCHITECTURE_LLAMA, "block.7.mlp.gate.weight", "model.layers.7.mlp.gate_proj.weight", -1,
         false},
        {ARCHITECTURE_LLAMA, "block.7.mlp.down.weight", "model.layers.7.mlp.down_proj.weight", -1,
         false},
        {ARCHITECTURE_LLAMA, "final_norm.weight", "model.norm.weight", -1, false},
        {ARCHITECTURE_QWEN2, "block.7.attn.k.bias", "model.layers.7.self_attn.k_proj.bias", -1,
         false},
        {ARCHITECTURE_QWEN3, "block.7.attn.q_norm.weight", "model.layers.7.self_attn.q_norm.weight",
         -1, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        HfPlace place;
        assert_true(hf_name_of(table[i].kind, table[i].ours, &place));
        assert_string_equal(place.name, table[i].theirs);
        assert_int_equal(place.part, table[i].part);
        assert_int_equal(place.transposed, table[i].transposed);
    }
}

static void test_unknown_names_map_to_no_parameter(void **state)
{
    (void)state;
    HfPart part[HF_MOST_PARTS];
    HfPlace place;
    static const char *const theirs[] = {"h.0.attn.c_attn",
                                         "h.0.attn.c_attn.weights",
                                         "h..attn.c_attn.weight",
                                         "h.07.attn.c_attn.weight",
                                         "h.1234567.attn.c_attn.weight",
                                         "h.0.ln_f.weight",
                                         "ln_1.weight",
                                         "model.embed_tokens.weight",
                                         "transformer.transformer.wte.weight",
                                         ".weight",
                                         ""};
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        assert_int_equal(hf_names_in(ARCHITECTURE_GPT2, theirs[i], part), 0);
    assert_int_equal(hf_names_in(ARCHITECTURE_GPT2, "wte.weight", part), 1);
    assert_int_equal(hf_names_in(ARCHITECTURE_LLAMA, "wte.weight", part), 0);
    assert_int_equal(hf_names_in(ARCHITECTURE_LLAMA, "layers.0.mlp.up_proj.weight", part), 1);
    assert_string_equal(part[0].name, "block.0.mlp.up.weight");
    assert_false(hf_name_of(ARCHITECTURE_LLAMA, "position.weight", &place));
    assert_false(hf_name_of(ARCHITECTURE_GPT2, "block.0.mlp.gate.weight", &place));
    assert_false(hf_name_of(ARCHITECTURE_GPT2, "block.0.attn.q.master", &place));
    assert_true(hf_name_is_buffer(ARCHITECTURE_GPT2, "transformer.h.3.attn.bias"));
    assert_true(hf_name_is_buffer(ARCHITECTURE_GPT2, "h.3.attn.masked_bias"));
    assert_false(hf_name_is_buffer(ARCHITECTURE_GPT2, "h.3.attn.c_attn.bias"));
    assert_false(hf_name_is_buffer(ARCHITECTURE_GPT2, "attn.bias"));
    assert_true(
        hf_name_is_buffer(ARCHITECTURE_LLAMA, "model.layers.3.self_attn.rotary_emb.inv_freq"));
    assert_false(hf_name_is_buffer(ARCHITECTURE_LLAMA, "model.layers.3.self_attn.q_proj.weight"));
}

static void check_table(ArchitectureKind kind, const char *keys)
{
    const Config *config = config_test_keys(keys);
    GptShape shape = gpt_shape(config, 1);
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
    for (int i = 0; i < table.n_params; i++) {
        HfPlace place;
        HfPart part[HF_MOST_PARTS];
        if (!hf_name_of(kind, table.param[i].name, &place)) fail_msg("%s", table.param[i].name);
        int n = hf_names_in(kind, place.name, part), found = -1;
        assert_int_equal(n, place.part < 0 ? 1 : 3);
        for (int k = 0; k < n; k++)
            if (strcmp(part[k].name, table.param[i].name) == 0) found = k;
        assert_true(found >= 0);
        assert_int_equal(part[found].part, place.part);
        assert_int_equal(part[found].transposed, place.transposed);
        assert_int_equal(place.transposed, kind == ARCHITECTURE_GPT2 && table.param[i].ndim == 2 &&
                                               strncmp(table.param[i].name, "block.", 6) == 0);
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
    config_free(config);
}

static void test_every_parameter_name_maps_to_hugging_face_and_back(void **state)
{
    (void)state;
    check_table(ARCHITECTURE_GPT2, "\"model\": {\"vocab_size\": 300, \"num_layers\": 2, "
                                   "\"tie_word_embeddings\": false}");
    check_table(ARCHITECTURE_QWEN3,
                "\"model\": {\"vocab_size\": 300, \"num_layers\": 11, \"norm\": \"rmsnorm\", "
                "\"position\": \"rope\", \"activation\": \"swiglu\", \"qk_norm\": true, "
                "\"tie_word_embeddings\": false}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_parameters_map_to_their_hugging_face_names),
        cmocka_unit_test(test_unknown_names_map_to_no_parameter),
        cmocka_unit_test(test_every_parameter_name_maps_to_hugging_face_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
