/* test_hf_damaged.c -- tests that the readers of Hugging Face's texts survive random damage. */
#include "tests/fuzz/fuzz_checkpoint.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define FILE_1 "model-00001-of-00002.safetensors"
#define FILE_2 "model-00002-of-00002.safetensors"

/* Runs the fuzz targets on mutated inputs. */
static void test_randomly_damaged_texts_never_crash_the_readers(void **state)
{
    (void)state;
    static const char index[] =
        "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {\"wte.weight\": \"" FILE_1
        "\", \"wpe.weight\": \"" FILE_2 "\", \"ln_f.bias\": \"" FILE_1 "\"}}";
    static const char config[] =
        "{\"model_type\": \"qwen3\", \"vocab_size\": 320, \"hidden_size\": 48, "
        "\"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 64, "
        "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}}";
    assert_int_equal(fuzz_hf_index((const uint8_t *)index, strlen(index)), 1);
    assert_int_equal(fuzz_hf_config((const uint8_t *)config, strlen(config)), 1);
    fuzz_replay(fuzz_hf_index, index, strlen(index), 281, 5000);
    fuzz_replay(fuzz_hf_config, config, strlen(config), 282, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_randomly_damaged_texts_never_crash_the_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
