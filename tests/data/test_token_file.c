/* test_token_file.c -- tests token shards: both versions, all offsets, damaged headers, and ids
 * outside the vocabulary. */
#include "data/tokens/token_set.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_sentence(const char *got, const char *part)
{
    if (strstr(got, part) == NULL) fail_msg("\"%s\", want \"%s\" in it", got, part);
}

static void check_tokens(const TokenSet *s, int64_t first, int64_t n, int64_t modulo)
{
    char err[512];
    int32_t *ids = must_alloc((size_t)n * sizeof *ids);
    if (!token_set_read(s, first, n, modulo, ids, err, sizeof err)) fail_msg("%s", err);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] != (int32_t)((first + i) % modulo))
            fail_msg("token %lld is %d, want %lld", (long long)first + i, ids[i],
                     (long long)((first + i) % modulo));
    free(ids);
}

static void test_written_shards_of_both_versions_are_read_back_unchanged(void **state)
{
    (void)state;
    static const int64_t vocab[] = {65536, 65537, 300};
    static const int width[] = {2, 4, 2};
    for (int k = 0; k < 3; k++) {
        char *folder = folder_new(), err[512];
        char *path =
            shard_new(folder, "a.bin", vocab[k], 9000, 0, vocab[k] < 9000 ? vocab[k] : 9000);
        TokenSet s;
        if (!token_set_open(&s, &(StringList){1, &path}, err, sizeof err)) fail_msg("%s", err);
        assert_int_equal(s.file[0].width, width[k]);
        assert_int_equal(s.n_tokens, 9000);
        check_tokens(&s, 0, 9000, vocab[k] < 9000 ? vocab[k] : 9000);
        check_tokens(&s, 8999, 1, vocab[k] < 9000 ? vocab[k] : 9000);
        token_set_close(&s);
        free(path);
        folder_drop(folder);
    }
}

static void test_reading_continues_across_shard_files(void **state)
{
    (void)state;
    char *folder = folder_new(), err[512];
    char *path[] = {
        shard_new(folder, "a", 1000, 7, 0, 1000), shard_new(folder, "b", 1000, 0, 7, 1000),
        shard_new(folder, "c", 1000, 1, 7, 1000), shard_new(folder, "d", 70000, 20, 8, 1000)};
    TokenSet s;
    assert_true(token_set_open(&s, &(StringList){4, path}, err, sizeof err));
    assert_int_equal(s.n_tokens, 28);
    for (int64_t first = 0; first < 28; first++)
        for (int64_t n = 1; n <= 28 - first; n++)
            check_tokens(&s, first, n, 1000);
    token_set_close(&s);
    for (int i = 0; i < 4; i++)
        free(path[i]);
    folder_drop(folder);
}

static void test_shards_with_damaged_headers_are_refused(void **state)
{
    (void)state;
    char err[512];
    int32_t h[256] = {TOKEN_FILE_MAGIC_16, 1, 10};
    TokenFileHeader out;
    assert_true(token_file_parse_header("f", h, 1044, &out, err, sizeof err));
    assert_false(token_file_parse_header("f", h, 1043, &out, err, sizeof err));
    check_sentence(
        err, "f is damaged: its header promises 10 tokens, that is 1044 bytes, but it has 1043");
    assert_false(token_file_parse_header("f", h, 1023, &out, err, sizeof err));
    check_sentence(err, "fewer than the 1024");
    h[1] = 2;
    assert_false(token_file_parse_header("f", h, 1044, &out, err, sizeof err));
    check_sentence(err, "version 2; version 1 is understood");
    h[0] = 12;
    assert_false(token_file_parse_header("f", h, 1044, &out, err, sizeof err));
    check_sentence(err, "not a token shard");
    h[0] = TOKEN_FILE_MAGIC_32, h[1] = 7, h[2] = -1;
    assert_false(token_file_parse_header("f", h, 1020, &out, err, sizeof err));
    assert_false(token_file_parse_header("f", h, 1024, &out, err, sizeof err));
    int32_t valid[266] = {TOKEN_FILE_MAGIC_32, 7, 10};
    fuzz_replay(fuzz_tokens, valid, sizeof valid, 41, 5000);
    static const int32_t planted[] = {
        0, 1, 9, 11, -1, INT32_MIN, INT32_MAX, 1 << 30, TOKEN_FILE_MAGIC_16};
    for (size_t p = 0; p < sizeof planted / sizeof *planted; p++)
        for (int word = 0; word < 3; word++) {
            int32_t changed[266] = {TOKEN_FILE_MAGIC_32, 7, 10};
            changed[word] = planted[p];
            fuzz_tokens((const uint8_t *)changed, sizeof changed);
        }
}

static void check_planted(int64_t vocab, int64_t at, int64_t id, const char *sentence)
{
    char *folder = folder_new(), err[512] = "accepted";
    char *path = shard_new(folder, "planted.bin", 70000, 40, id - at + 70000, 70000);
    int32_t ids[40];
    TokenSet s;
    assert_true(token_set_open(&s, &(StringList){1, &path}, err, sizeof err));
    bool good = token_set_read(&s, at, 1, vocab, ids, err, sizeof err);
    if (sentence) check_sentence(err, sentence);
    assert_int_equal(good, sentence == NULL);
    token_set_close(&s);
    free(path);
    folder_drop(folder);
}

static void test_bug_49_a_token_id_outside_the_vocabulary_is_refused(void **state)
{
    (void)state;
    check_planted(500, 0, 0, NULL);
    check_planted(500, 3, 499, NULL);
    check_planted(500, 3, 500,
                  "planted.bin: token id 500 at byte 1036 (token 3) is not in a vocabulary of 500");
    check_planted(500, 39, 65535, "planted.bin: token id 65535 at byte 1180 (token 39)");
    check_planted(65536, 39, 65535, NULL);
}

static void test_bug_49_negative_and_huge_token_ids_are_refused(void **state)
{
    (void)state;
    int32_t file[258] = {TOKEN_FILE_MAGIC_32, 7, 2}, ids[2];
    char *folder = folder_new(), err[512];
    file[256] = 5;
    file[257] = -1;
    char *path = file_new(folder, "a.bin", file, sizeof file);
    TokenSet s;
    assert_true(token_set_open(&s, &(StringList){1, &path}, err, sizeof err));
    assert_false(token_set_read(&s, 0, 2, 100, ids, err, sizeof err));
    check_sentence(err, "token id 4294967295 at byte 1028");
    assert_false(token_set_read(&s, 0, 2, INT32_MAX, ids, err, sizeof err));
    token_set_close(&s);
    free(path);
    folder_drop(folder);
}

/* A shard with the largest token count that a header can hold has 8 GiB; almost all of this one is
 * a hole. */
static void test_bug_48_tokens_beyond_4_gib_are_read_at_the_right_offset(void **state)
{
    (void)state;
    const int64_t count = INT32_MAX, size = token_file_offset(4, count);
    int32_t header[256] = {TOKEN_FILE_MAGIC_32, 7, INT32_MAX}, last[3] = {7, 8, 9}, ids[4];
    char *folder = folder_new(), err[512],
         *path = file_new(folder, "large.bin", header, sizeof header);
    TokenSet s;
    assert_true(size == INT64_C(8589935612));
    assert_true(token_file_offset(4, INT64_C(3) << 31) == INT64_C(1024) + (INT64_C(3) << 33));
    int fd = open(path, O_RDWR);
    if (ftruncate(fd, size) != 0) skip_because("no sparse files of 8 GiB in $TMPDIR");
    assert_int_equal(pwrite(fd, last, sizeof last, size - (int64_t)sizeof last), sizeof last);
    assert_int_equal(pwrite(fd, &(int32_t){5000}, 4, token_file_offset(4, INT64_C(1) << 30)),
                     4); /* at byte 4 GiB + 1024 */
    close(fd);
    if (!token_set_open(&s, &(StringList){1, &path}, err, sizeof err)) fail_msg("%s", err);
    assert_true(token_set_read(&s, count - 4, 4, 6000, ids, err, sizeof err));
    assert_int_equal(ids[0], 0);
    assert_memory_equal(ids + 1, last, sizeof last);
    assert_false(token_set_read(&s, (INT64_C(1) << 30) - 1, 4, 5000, ids, err, sizeof err));
    check_sentence(err, "token id 5000 at byte 4294968320");
    token_set_close(&s);
    free(path);
    folder_drop(folder);
}

static void test_opening_a_missing_shard_names_it_in_the_error(void **state)
{
    (void)state;
    char err[512], *path = "no/such/shard.bin";
    TokenSet s;
    assert_false(token_set_open(&s, &(StringList){1, &path}, err, sizeof err));
    check_sentence(err, "no/such/shard.bin cannot be opened");
    token_set_close(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_written_shards_of_both_versions_are_read_back_unchanged),
    cmocka_unit_test(test_reading_continues_across_shard_files),
    cmocka_unit_test(test_shards_with_damaged_headers_are_refused),
    cmocka_unit_test(test_bug_49_a_token_id_outside_the_vocabulary_is_refused),
    cmocka_unit_test(test_bug_49_negative_and_huge_token_ids_are_refused),
    cmocka_unit_test(test_bug_48_tokens_beyond_4_gib_are_read_at_the_right_offset),
    cmocka_unit_test(test_opening_a_missing_shard_names_it_in_the_error),
};

int main(void)
{
    return cmocka_run_group_tests_name("token files", tests, NULL, NULL);
}
