/* test_hf_damaged.c -- tests that the readers of Hugging Face's texts survive random damage. */
#include "tests/fuzz/fuzz_checkpoint.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILE_1 "model-00001-of-00002.safetensors"
#define FILE_2 "model-00002-of-00002.safetensors"

static const char index_text[] =
    "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {\"wte.weight\": \"" FILE_1
    "\", \"wpe.weight\": \"" FILE_2 "\", \"ln_f.bias\": \"" FILE_1 "\"}}";

/* An index that is cut anywhere is refused, and one with any bit changed is refused or read as a
 * valid index; the fuzz target checks that. */
static void test_truncated_indexes_are_refused_and_altered_ones_do_no_harm(void **state)
{
    (void)state;
    size_t n = strlen(index_text);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(fuzz_hf_index((const uint8_t *)index_text, cut), 0);
    char longer[sizeof index_text + 1];
    snprintf(longer, sizeof longer, "%s}", index_text);
    assert_int_equal(fuzz_hf_index((const uint8_t *)longer, n + 1), 0);
    int accepted = 0;
    for (size_t at = 0; at < 8 * n; at++) {
        uint8_t text[sizeof index_text];
        memcpy(text, index_text, sizeof text);
        text[at / 8] = (uint8_t)(text[at / 8] ^ 1u << at % 8);
        accepted += fuzz_hf_index(text, n);
    }
    assert_in_range(accepted, 100, 1000); /* another letter in a name is sound */
}

/* Runs the fuzz targets on mutated inputs. */
static void test_randomly_damaged_texts_never_crash_the_readers(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\": \"qwen3\", \"vocab_size\": 320, \"hidden_size\": 48, "
        "\"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 64, "
        "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}}";
    assert_int_equal(fuzz_hf_index((const uint8_t *)index_text, strlen(index_text)), 1);
    assert_int_equal(fuzz_hf_config((const uint8_t *)config, strlen(config)), 1);
    fuzz_replay(fuzz_hf_index, index_text, strlen(index_text), 281, 5000);
    fuzz_replay(fuzz_hf_config, config, strlen(config), 282, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_indexes_are_refused_and_altered_ones_do_no_harm),
        cmocka_unit_test(test_randomly_damaged_texts_never_crash_the_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
