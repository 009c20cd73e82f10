/* test_choice_file.c -- tests multiple-choice files: what they contain, how their rows become
 * sequences, how choices are scored, and that damage and foreign ids are refused. */
#include "data/tokens/choice_file.h"
#include "model/core/check.h"
#include "tests/support/files/choice_support.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 300 };

/* Two examples: a context of two tokens with three completions, and a context of one token with
 * two. Their sizes in bytes are 0 here and are filled in by `stream`. */
static const uint16_t examples[] = {65535, 0, 0, 2, 3, 2, 10, 11, 1, 20, 2, 21, 22, 1, 299,
                                    65535, 0, 1, 0, 2, 1, 7,  4,  1, 2,  3, 4,  1,  8};
static const int32_t first_tokens[] = {10, 11, 21, 0, 0, 0},
                     first_targets[] = {-1, 21, 22, -1, -1, -1};

/* Writes the examples to `out`, with their sizes in bytes filled in; returns the number of
 * words. */
static int64_t stream(uint16_t *out)
{
    enum { FIRST = 15, WORDS = sizeof examples / sizeof *examples };
    memcpy(out, examples, sizeof examples);
    out[1] = 2 * FIRST;
    out[FIRST + 1] = 2 * (WORDS - FIRST);
    return WORDS;
}

/* Returns the bytes of a valid file with these examples; the caller frees them. */
static uint8_t *valid(size_t *size)
{
    uint16_t word[64];
    int64_t words = stream(word);
    return choice_bytes(word, words, 2, 30, size);
}

static void check_refused(const uint8_t *bytes, size_t size, const char *part)
{
    ChoiceFile f;
    char err[512] = "";
    assert_false(choice_file_parse(&f, "c.bin", bytes, size, VOCABULARY, err, sizeof err));
    if (strncmp(err, "c.bin", 5) != 0 || strstr(err, part) == NULL)
        fail_msg("\"%s\", want \"%s\" in it", err, part);
    assert_null(f.word);
    choice_file_close(&f);
}

static void open_valid(ChoiceFile *f)
{
    size_t size;
    char err[512];
    uint8_t *bytes = valid(&size);
    if (!choice_file_parse(f, "c.bin", bytes, size, VOCABULARY, err, sizeof err))
        fail_msg("%s", err);
    free(bytes);
}

static void test_a_valid_file_gives_the_expected_examples_and_sequences(void **state)
{
    (void)state;
    ChoiceFile f;
    int32_t tokens[6], targets[6];
    open_valid(&f);
    assert_int_equal(f.n_examples, 2);
    assert_int_equal(f.n_rows, 5);
    assert_int_equal(f.example[0].label, 2);
    assert_int_equal(f.example[1].first_row, 3);
    assert_int_equal(f.example[1].rows, 2);
    assert_int_equal(choice_file_longest(&f), 4);
    choice_file_sequence(&f, 1, 6, tokens, targets);
    assert_memory_equal(tokens, first_tokens, sizeof tokens);
    assert_memory_equal(targets, first_targets, sizeof targets);
    choice_file_close(&f);
}

static void test_a_context_that_is_too_long_loses_its_first_tokens(void **state)
{
    (void)state;
    ChoiceFile f;
    int32_t tokens[4], targets[4];
    int64_t cut;
    char err[512];
    open_valid(&f);
    assert_true(choice_file_fits(&f, 4, &cut, err, sizeof err));
    assert_int_equal(cut, 0);
    assert_false(choice_file_fits(&f, 3, &cut, err, sizeof err));
    assert_non_null(strstr(err, "c.bin: the completion at byte 1068 has 4 tokens, and the model "
                                "reads 3"));
    f.n_rows = 3; /* without the second example */
    assert_true(choice_file_fits(&f, 2, &cut, err, sizeof err));
    assert_int_equal(cut, 1);
    choice_file_sequence(&f, 1, 2, tokens, targets);
    assert_int_equal(tokens[0], 11);
    assert_int_equal(tokens[1], 21);
    assert_int_equal(targets[0], 21);
    assert_int_equal(targets[1], 22);
    choice_file_close(&f);
}

static void test_the_completion_with_the_lowest_loss_per_token_is_chosen(void **state)
{
    (void)state;
    ChoiceFile f;
    open_valid(&f);
    /* The right completion of the first example (row 2) has the lowest loss by both measures; that
     * of the second (row 3, 4 tokens) has it per token only. */
    double nats[] = {3, 7, 2.5, 4, 3};
    ChoiceScore s = choice_file_score(&f, nats);
    assert_int_equal(s.right, 2);
    assert_int_equal(s.right_by_sum, 1);
    assert_true(fabs(s.loss - (2.5 + 4) / 5) < 1e-15); /* one token and four */
    nats[0] = 2.5;                                     /* equal losses: the first is chosen */
    s = choice_file_score(&f, nats);
    assert_int_equal(s.right, 1);
    assert_int_equal(s.right_by_sum, 0);
    nats[0] = NAN;
    assert_int_equal(choice_file_score(&f, nats).right, 2);
    nats[2] = NAN;
    assert_int_equal(choice_file_score(&f, nats).right, 1);
    choice_file_close(&f);
}

static void test_a_truncated_file_is_refused(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = valid(&size);
    for (size_t n = 0; n < size; n++) {
        uint8_t *exact = must_alloc(n ? n : 1);
        memcpy(exact, bytes, n);
        check_refused(exact, n, "");
        free(exact);
    }
    check_refused(bytes, size + 1, "odd"); /* reads no byte after the header */
    free(bytes);
}

/* A flipped bit is refused, except in the words that the format does not use. In the examples, it
 * is accepted only if a token or a label becomes another valid one. */
static void test_a_file_with_a_flipped_bit_is_refused_or_still_valid(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = valid(&size);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        ChoiceFile f;
        char err[512];
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        bool good = choice_file_parse(&f, "c.bin", bytes, size, VOCABULARY, err, sizeof err);
        if (bit / 8 < 16) assert_false(good);
        if (bit / 8 >= 16 && bit / 8 < CHOICE_FILE_HEADER) assert_true(good);
        if (good) assert_int_equal(f.n_rows, 5);
        choice_file_close(&f);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    free(bytes);
}

/* A change of one word of the examples, and a part of the error message. */
static const struct {
    int at;
    uint16_t value;
    const char *part;
} changes[] = {
    {0, 65534, "at byte 1024 there is 65534, 30, 0, not the begin of example 0"},
    {2, 1, "not the begin of example 0"},
    {1, 31, "example 0 at byte 1024 has 31 bytes"},
    {1, 28, "the completion at byte 1050 has 1 tokens, but its example ends at byte 1052"},
    {1, 32, "example 0 has 2 bytes after its last completion, at byte 1054"},
    {3, 3, "has 3 completions and the label 3"},
    {4, 1, "has 1 completions"},
    {4, 4, "its example ends at byte 1054, before a completion"},
    {4, 60000, "60000 completions in 30 bytes"},
    {5, 0, "the context at byte 1034 has no token"},
    {8, 0, "the completion at byte 1040 has no token"},
    {14, 300, "token 300 at byte 1052, but the vocabulary has 300 ids"},
    {6, 65535, "token 65535 at byte 1036"},
};

static void test_errors_name_the_byte_offset_of_the_damage(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        size_t size;
        uint16_t word[64];
        int64_t words = stream(word);
        word[changes[i].at] = changes[i].value;
        uint8_t *bytes = choice_bytes(word, words, 2, 30, &size);
        check_refused(bytes, size, changes[i].part);
        free(bytes);
    }
    size_t size;
    uint16_t word[64];
    int64_t words = stream(word);
    uint8_t *bytes = choice_bytes(word, words, 1, 30, &size);
    check_refused(bytes, size, "after its 1 examples there are 28 bytes, at byte 1054");
    free(bytes);
    bytes = choice_bytes(word, words, 2, 28, &size);
    check_refused(bytes, size, "promises a longest example of 28 bytes, but that has 30");
    free(bytes);
}

static void test_mutated_choice_files_are_read_or_refused_without_a_crash(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = valid(&size);
    fuzz_replay(fuzz_choices, bytes, size, 28, 20000);
    /* Most changes hit the header, which is mostly unused; these hit the examples. */
    for (uint64_t i = 0; i < 20000; i++) {
        uint8_t *copy = must_alloc(size);
        memcpy(copy, bytes, size);
        for (uint64_t k = 0; k <= drawn(29, i) % 3; k++)
            copy[CHOICE_FILE_HEADER + drawn(30 + k, i) % (size - CHOICE_FILE_HEADER)] =
                (uint8_t)(drawn(40 + k, i) % 7);
        fuzz_choices(copy, size);
        free(copy);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_valid_file_gives_the_expected_examples_and_sequences),
        cmocka_unit_test(test_a_context_that_is_too_long_loses_its_first_tokens),
        cmocka_unit_test(test_the_completion_with_the_lowest_loss_per_token_is_chosen),
        cmocka_unit_test(test_a_truncated_file_is_refused),
        cmocka_unit_test(test_a_file_with_a_flipped_bit_is_refused_or_still_valid),
        cmocka_unit_test(test_errors_name_the_byte_offset_of_the_damage),
        cmocka_unit_test(test_mutated_choice_files_are_read_or_refused_without_a_crash),
    };
    return cmocka_run_group_tests_name("choice_file", tests, NULL, NULL);
}
