/* test_safetensors.c -- tests which headers of safetensors files are read, written and refused; it
 * needs no files. */
#include "model/core/check.h"
#include "model/weights/safetensors.h"
#include "tests/fuzz/fuzz_checkpoint.h"
#include "tests/support/files/mutate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns the bytes of a file header with this JSON text. */
static char *with_length(const char *json, size_t *n)
{
    size_t length = strlen(json);
    char *file = must_alloc(length + 8);
    memcpy(file + 8, json, length);
    for (size_t i = 0, rest = length; i < 8; i++, rest >>= 8)
        file[i] = (char)(rest & 0xff);
    *n = length + 8;
    return file;
}

static bool parses(const char *json, int64_t data_bytes, char *err, size_t err_n)
{
    size_t n;
    Safetensors s;
    char *file = with_length(json, &n);
    bool good = safetensors_parse(&s, file, n, (int64_t)n + data_bytes, err, err_n);
    if (good) safetensors_free(&s);
    free(file);
    return good;
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to \
    "]}"

static void test_valid_headers_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int64_t data_bytes;
    } table[] = {
        {"{}", 0},
        {"{}   ", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{" T("a", "F32", "2,3", 0, 24) "}", 24},
        {"{" T("a", "F32", "", 0, 4) "}", 4},
        {"{" T("a", "F32", "0,7", 0, 0) "}", 0},
        {"{" T("b", "BF16", "1", 4, 6) "," T("a", "F32", "1", 0, 4) "}", 6},
        {"{ \"a\" : { \"data_offsets\" : [ 0 , 8 ] , \"shape\" : [ 1 ] , \"dtype\" : \"F64\" } }",
         8},
        {"{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u00e9\\ud83d\\ude00\\n\"}," T(
             "a", "U8", "3", 0, 3) "}",
         3},
        {"{" T("a.b-c_9", "I64", "1,1,1,1", 0, 8) "}", 8},
        {"{" T("mask", "BOOL", "3,3", 0, 9) "}", 9},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[300] = "";
        bool good = parses(table[i].json, table[i].data_bytes, err, sizeof err);
        if (!good) print_error("%s: %s\n", table[i].json, err);
        assert_true(good);
    }
}

static void test_damaged_and_hostile_headers_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int64_t data_bytes;
        const char *says;
    } table[] = {
        {"[]", 0, "begin"},
        {" {}", 0, "begin"},
        {"{}x", 0, "end"},
        {"{ ", 0, "needed"},
        {"{" T("a", "F32", "2", 0, 8) "}", 7, "take 8"},
        {"{" T("a", "F32", "2", 0, 8) "}", 9, "take 8"},
        {"{" T("a", "F32", "2", 0, 8) ",}", 8, "needed"},
        {"{" T("a", "F32", "2", 4, 12) "}", 12, "starts at byte 4"},
        {"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "2", 4, 12) "}", 12, "starts at byte 4"},
        {"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "1", 12, 16) "}", 16, "starts at byte 12"},
        {"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "0", 4, 4) "}", 8, "starts at byte 4"},
        {"{" T("a", "F32", "2", 0, 8) "," T("a", "F32", "1", 8, 12) "}", 12, "twice"},
        {"{" T("a", "F32", "2", 0, 8) "," T("\\u0061", "F32", "1", 8, 12) "}", 12, "twice"},
        {"{" T("a", "F32", "2", 8, 0) "}", 8, "backwards"},
        {"{" T("a", "F32", "2", -8, 0) "}", 8, "backwards"},
        {"{" T("a", "F32", "-2", 0, 8) "}", 8, "negative"},
        {"{" T("a", "F32", "3", 0, 8) "}", 8, "12 bytes"},
        {"{" T("a", "F32", "4611686018427387904", 0, 0) "}", 0, "overflows"},
        {"{" T("a", "F32", "2147483648,2147483648,4", 0, 0) "}", 0, "overflows"},
        {"{" T("a", "U8", "9223372036854775808", 0, 0) "}", 0, "64 bits"},
        {"{" T("a", "F32", "1,1,1,1,1", 0, 4) "}", 4, "four dimensions"},
        {"{" T("a", "F32", "1.0", 0, 4) "}", 4, "integer"},
        {"{" T("a", "F32", "1e0", 0, 4) "}", 4, "integer"},
        {"{" T("a", "F32", "01", 0, 4) "}", 4, "leading zero"},
        {"{" T("a", "C64", "1", 0, 8) "}", 8, "C64"},
        {"{" T("../a", "F32", "1", 0, 4) "}", 4, "name"},
        {"{" T("", "F32", "1", 0, 4) "}", 4, "name"},
        {"{" T("a\\u0000b", "F32", "1", 0, 4) "}", 4, "NUL"},
        {"{" T("\\ud800", "F32", "1", 0, 4) "}", 4, "surrogate"},
        {"{" T("\xff", "F32", "1", 0, 4) "}", 4, "UTF-8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "repeated"},
        {"{\"a\":{\"dtype\":\"F32\",\"x\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "needed"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "repeated"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"{\"__metadata__\":{\"a\":\"\n\"}}", 0, "control"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[300] = "";
        bool good = parses(table[i].json, table[i].data_bytes, err, sizeof err);
        if (good || strstr(err, table[i].says) == NULL)
            print_error("%s: %s, not '%s'\n", table[i].json, good ? "accepted" : err,
                        table[i].says);
        assert_false(good);
        assert_non_null(strstr(err, table[i].says));
    }
}

static void test_header_lengths_beyond_the_file_are_refused(void **state)
{
    (void)state;
    static const uint64_t length[] = {
        0, 1, 3, 100, SAFETENSORS_MAX_HEADER + 1, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7};
    char err[300];
    Safetensors s;
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        char file[10] = "01234567{}";
        memcpy(file, &length[i], 8);
        assert_false(safetensors_parse(&s, file, sizeof file, 10, err, sizeof err));
        assert_false(safetensors_parse(&s, file, sizeof file, INT64_MAX, err, sizeof err));
    }
    for (size_t n = 0; n < 10; n++) {
        char file[10] = "\2\0\0\0\0\0\0\0{}";
        assert_false(safetensors_parse(&s, file, n, (int64_t)n, err, sizeof err));
    }
}

static void test_written_headers_align_the_data_and_read_back(void **state)
{
    (void)state;
    SafetensorsEntry entry[] = {
        {.name = "half", .dtype = BF16, .ndim = 1, .dim = {3}},
        {.name = "wide", .dtype = F64, .ndim = 2, .dim = {3, 5}},
        {.name = "byte", .dtype = U8, .ndim = 1, .dim = {7}},
        {.name = "float", .dtype = F32, .ndim = 3, .dim = {1, 3, 1}},
        {.name = "half.2", .dtype = F16, .ndim = 2, .dim = {1, 1}},
        {.name = "int", .dtype = I64, .ndim = 0},
        {.name = "word", .dtype = U16, .ndim = 4, .dim = {1, 1, 1, 1}},
        {.name = "i", .dtype = I32, .ndim = 1, .dim = {1}},
    };
    enum { N = sizeof entry / sizeof *entry };
    static const char *const metadata[] = {"format", "pt", "quote", "\"\\\n\x01"};
    int64_t total = 0;
    for (int i = 0; i < N; i++) {
        assert_true(safetensors_size(entry[i].dtype, entry[i].ndim, entry[i].dim, &entry[i].bytes));
        total += entry[i].bytes;
    }
    size_t n;
    char err[300] = "", *file = safetensors_header(entry, N, metadata, 2, &n);
    Safetensors s;
    assert_int_equal(n % 8, 0);
    char *json = text_format("%.*s", (int)(n - 8), file + 8);
    assert_non_null(strstr(json, "\"dtype\":\"F64\",\"shape\":[3,5],\"data_offsets\":"));
    assert_non_null(strstr(json, "\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":"));
    free(json);
    assert_true(safetensors_parse(&s, file, n, (int64_t)n + total, err, sizeof err));
    assert_int_equal(s.n, N);
    assert_string_equal(safetensors_metadata(&s, "quote"), metadata[3]);
    assert_null(safetensors_metadata(&s, "pt"));
    for (int i = 0; i < N; i++) {
        assert_string_equal(s.entry[i].name, entry[i].name);
        assert_int_equal(s.entry[i].dtype, entry[i].dtype);
        assert_int_equal(s.entry[i].ndim, entry[i].ndim);
        assert_memory_equal(s.entry[i].dim, entry[i].dim, sizeof entry[i].dim);
        assert_int_equal(s.entry[i].offset, entry[i].offset);
        assert_int_equal(s.entry[i].offset % (int64_t)dtype_size(entry[i].dtype), 0);
    }
    safetensors_free(&s);
    free(file);
}

/* Runs the fuzz target on mutated headers. */
static void test_randomly_damaged_headers_never_crash_the_reader(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "{\"__metadata__\":{\"format\":\"pt\",\"save_id\":\"0123456789abcdef\"}," T(
            "a", "F32", "2,3", 0, 24) "}",
        "{" T("b", "BF16", "4", 16, 24) "," T("a", "F64", "2", 0, 16) "}",
        "{" T("a\\u0062", "U8", "24", 0, 24) "," T("z", "F32", "0", 24, 24) "}",
    };
    int accepted = 0, rounds = 20000;
    for (size_t k = 0; k < 3; k++) {
        assert_int_equal(fuzz_safetensors((const uint8_t *)seeds[k], strlen(seeds[k])), 1);
        for (int round = 0; round < rounds; round++) {
            size_t n;
            uint8_t *text = mutate(seeds[k], strlen(seeds[k]), 1000 + k, (uint64_t)round, &n);
            accepted += fuzz_safetensors(text, n);
            free(text);
        }
    }
    assert_in_range(accepted, 100, 3 * rounds / 2); /* some headers are accepted and some refused */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid_headers_are_read),
        cmocka_unit_test(test_damaged_and_hostile_headers_are_refused_with_the_reason),
        cmocka_unit_test(test_header_lengths_beyond_the_file_are_refused),
        cmocka_unit_test(test_written_headers_align_the_data_and_read_back),
        cmocka_unit_test(test_randomly_damaged_headers_never_crash_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
