/* test_tokenizer_gpt2.c -- tests GPT-2's own tokenizer files, vocab.bpe and encoder.json, against
 * ids of tiktoken. They are in the folder $GPT2_BPE_DIR; without it these tests are skipped. */
#include "data/tokenizer/tokenizer.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns `text` with the first occurrence of `from` replaced by `to`; the caller frees it. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("\"%s\" is not in the file", from);
    return text_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* The ids that tiktoken gives. */
static const struct {
    const char *text;
    int32_t id[24];
    int n;
} gpt2_pairs[] = {
    {"Hello world", {15496, 995}, 2},
    {"In the beginning God created the heaven and the earth.",
     {818, 262, 3726, 1793, 2727, 262, 9538, 290, 262, 4534, 13},
     11},
    {"  two  spaces, then\n\n\nthree lines\n",
     {220, 734, 220, 9029, 11, 788, 628, 198, 15542, 3951, 198},
     11},
    {"it's we'll I'M don't 'tis they've",
     {270, 338, 356, 1183, 314, 6, 44, 836, 470, 705, 48010, 484, 1053},
     13},
    {"na\303\257ve fa\303\247ade \342\200\224 Gr\303\266\303\237e, 12345 and \302\275",
     {2616, 38776, 24685, 16175, 671, 851, 1902, 9101, 39683, 68, 11, 17031, 2231, 290, 25208},
     15},
    {"\346\227\245\346\234\254\350\252\236\343\201\256\343\203\206\343\202\255\343\202\271\343\203"
     "\210 "
     "\354\225\210\353\205\225\355\225\230\354\204\270\354\232\224",
     {33768, 98,  17312, 105, 45739, 252, 5641, 24336, 25084, 43302, 23821, 243,
      230,   167, 227,   243, 47991, 246, 168,  226,   116,   168,   248,   242},
     24},
    {"tabs\t\tand\r\nreturns   ", {8658, 82, 197, 197, 392, 201, 198, 7783, 82, 220, 220, 220}, 12},
    {"<|endoftext|>", {27, 91, 437, 1659, 5239, 91, 29}, 7},
    {"x", {87}, 1},
    {"\302\240no-break\343\200\200wide\342\200\203em",
     {1849, 3919, 12, 9032, 5099, 222, 4421, 447, 225, 368},
     10},
    {"\360\237\231\202\360\237\231\203 emoji "
     "\360\237\221\251\342\200\215\360\237\221\251\342\200\215\360\237\221\247",
     {8582, 25081, 8582, 247, 225, 44805, 50169, 102, 447, 235, 41840, 102, 447, 235, 41840, 100},
     16},
    {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     {24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794,
      24794, 24794, 24794, 24794, 7252},
     18},
};

/* Returns the path of GPT-2's vocab.bpe in the folder $GPT2_BPE_DIR; skips the test if it is
 * missing. */
static char *gpt2_path(void)
{
    const char *folder = getenv("GPT2_BPE_DIR");
    char *path = text_format("%s/vocab.bpe", folder ? folder : ".");
    if (access(path, R_OK) == 0) return path;
    free(path);
    skip_because("no vocab.bpe in $GPT2_BPE_DIR");
}

static void test_gpt2_vocab_bpe_gives_the_same_ids_as_tiktoken(void **state)
{
    (void)state;
    char err[512], *path = gpt2_path();
    Tokenizer *t;
    if (!tokenizer_load(path, &t, NULL, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(tokenizer_vocab_size(t), 50257);
    assert_int_equal(tokenizer_end_of_text(t), 50256);
    Encoder *e = encoder_create(t);
    for (size_t i = 0; i < sizeof gpt2_pairs / sizeof *gpt2_pairs; i++) {
        TokenBuffer ids = {0};
        const char *text = gpt2_pairs[i].text;
        encoder_encode(e, (const uint8_t *)text, (int64_t)strlen(text), &ids);
        for (int k = 0; k < gpt2_pairs[i].n && k < ids.count; k++)
            if (ids.id[k] != gpt2_pairs[i].id[k])
                fail_msg("\"%s\": id %d is %d, want %d", text, k, ids.id[k], gpt2_pairs[i].id[k]);
        assert_int_equal(ids.count, gpt2_pairs[i].n);
        char *back = tokenizer_decode(t, ids.id, ids.count, false, NULL);
        assert_string_equal(back, text);
        free(back);
        token_buffer_free(&ids);
    }
    encoder_free(e);
    tokenizer_free(t);
    free(path);
}

static void test_an_encoder_json_that_contradicts_gpt2s_merges_is_refused(void **state)
{
    (void)state;
    char err[512], *path = gpt2_path(), *beside = path_beside(path, "encoder.json"), *text;
    size_t size;
    Tokenizer *t, *again;
    assert_true(tokenizer_load(path, &t, NULL, err, sizeof err));
    if (!file_read(beside, &text, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    if (!tokenizer_check_vocab(t, "encoder.json", text, size, err, sizeof err)) fail_msg("%s", err);
    char *changed = replaced(text, "\"the\": 1169", "\"the\": 1170");
    assert_false(
        tokenizer_check_vocab(t, "encoder.json", changed, strlen(changed), err, sizeof err));
    assert_non_null(strstr(err, "encoder.json gives the the id 1170"));
    char *json = tokenizer_to_json(t);
    assert_true(tokenizer_parse("json", json, strlen(json), &again, err, sizeof err));
    assert_true(tokenizer_hash(t) == tokenizer_hash(again));
    tokenizer_free(again);
    tokenizer_free(t);
    free(json);
    free(changed);
    free(text);
    free(beside);
    free(path);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_gpt2_vocab_bpe_gives_the_same_ids_as_tiktoken),
    cmocka_unit_test(test_an_encoder_json_that_contradicts_gpt2s_merges_is_refused),
};

int main(void)
{
    return cmocka_run_group_tests_name("GPT-2's tokenizer", tests, NULL, NULL);
}
