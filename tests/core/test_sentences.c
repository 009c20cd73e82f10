/* test_sentences.c -- tests error messages: their exit codes, messages that contain very long
 * paths, and bytes that would control a terminal. */
#include "model/core/arena.h"
#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/utf8.h"
#include "tests/support/files/child.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    void (*run)(void);
} Body;

static void run_body(void *context)
{
    ((const Body *)context)->run();
}

/* Runs body in a child process. Returns its exit code and stores what it printed in text. */
static int child(void (*body)(void), char *text, size_t n)
{
    return child_run(run_body, &(Body){body}, text, n);
}

static void fail_with_data(void)
{
    log_set_rank(3, "dp1");
    (fail)(EXIT_DAMAGED, "tokens.bin: %s\033[2J", "torn");
}

static void fail_a_check(void)
{
    int a = 3, b = 4;
    CHECK(a == b, "%d and %d", a, b);
}

static void overrun_an_arena(void)
{
    static char memory[512];
    Arena arena = arena_over(memory, sizeof memory);
    arena_take(&arena, 256);
    arena_take(&arena, 257);
}

static void test_failures_print_a_message_and_exit_with_its_code(void **state)
{
    (void)state;
    char text[1024];
    assert_int_equal(child(fail_with_data, text, sizeof text), EXIT_DAMAGED);
    assert_string_equal(
        /* The escape sequence must be printed as text. */
        text, "error[65] rank 3 dp1: tokens.bin: torn\\x1b[2J\n");
    assert_int_equal(child(fail_a_check, text, sizeof text), EXIT_BUG);
    assert_non_null(strstr(text, "CHECK(a == b) failed"));
    assert_non_null(strstr(text, "3 and 4"));
    assert_int_equal(child(overrun_an_arena, text, sizeof text), EXIT_BUG);
}

/* The system's reason must be recognised through several layers of messages, but not in a file name
 * that contains the same words. */
static void test_a_nested_permission_error_gives_exit_permission(void **state)
{
    (void)state;
    char inner[200], outer[400];
    static const int errors[] = {EACCES, EPERM, ENOENT, ENOSPC, EIO};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        bool permission = errors[i] == EACCES || errors[i] == EPERM;
        ExitCode code = permission ? EXIT_PERMISSION : EXIT_DAMAGED;
        error_set(inner, sizeof inner, "cannot open a/b: %s", strerror(errors[i]));
        error_set(outer, sizeof outer, "c is damaged (%s): remove it", inner);
        assert_int_equal(error_exit_code(inner, EXIT_DAMAGED), code);
        assert_int_equal(error_exit_code(outer, EXIT_DAMAGED), code);
        for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
            assert_int_equal(error_says(outer, errors[k]), k == i);
        error_set(outer, sizeof outer, "%s/file is damaged", strerror(errors[i]));
        assert_int_equal(error_exit_code(outer, EXIT_DAMAGED), EXIT_DAMAGED);
    }
    assert_int_equal(error_exit_code("", EXIT_MISSING), EXIT_MISSING);
}

/* Returns a path of 3,000 two-byte characters; the caller frees. */
static char *long_path(void)
{
    enum { CHARACTERS = 3000 };
    char *path = must_calloc(2 * CHARACTERS + 1, 1);
    for (int i = 0; i < CHARACTERS; i++)
        memcpy(path + 2 * i, "\xc3\xa4", 2);
    return path;
}

/* A message that is too long loses its middle, cut between characters. */
static void test_a_message_that_is_too_long_keeps_both_ends(void **state)
{
    (void)state;
    char *path = long_path(), err[1024], outer[600], small[12];
    static const char begin[] = "cannot open \xc3", end[] = "\xa4: Permission denied";
    for (size_t n = 600; n <= 608; n++) {
        memset(err, 'x', sizeof err);
        error_set(err, n, "cannot open %s: %s", path, strerror(EACCES));
        assert_true(strlen(err) < n && strlen(err) > n - 5);
        assert_int_equal(utf8_invalid((const uint8_t *)err, (int64_t)strlen(err)), -1);
        assert_memory_equal(err, begin, sizeof begin - 1);
        assert_string_equal(err + strlen(err) - (sizeof end - 1), end);
        assert_non_null(strstr(err, "\xa4...\xc3"));
        for (size_t i = n; i < sizeof err; i++)
            assert_int_equal(err[i], 'x');
        assert_int_equal(error_exit_code(err, EXIT_DAMAGED), EXIT_PERMISSION);
        error_set(outer, sizeof outer, "%s is damaged (%s): remove it", path, err);
        assert_int_equal(error_exit_code(outer, EXIT_DAMAGED), EXIT_PERMISSION);
    }
    error_set(small, sizeof small, "0123456789ab");
    assert_string_equal(small, "0123...89ab");
    error_set(small, sizeof small, "0123456789a");
    assert_string_equal(small, "0123456789a");
    error_set(small, 1, "0123456789a");
    assert_string_equal(small, "");
    free(path);
}

static void fail_with_a_long_path(void)
{
    (fail)(EXIT_DAMAGED, "cannot open %s: %s", long_path(), strerror(EACCES));
}

static void warn_of_a_long_path(void)
{
    log_warning("cannot open %s: %s", long_path(), strerror(EACCES));
}

static void test_long_errors_and_warnings_are_printed_to_their_end(void **state)
{
    (void)state;
    char text[8192];
    static const char end[] = "\xa4: Permission denied\n", code[] = "error[77] cannot open ";
    assert_int_equal(child(fail_with_a_long_path, text, sizeof text), EXIT_PERMISSION);
    assert_string_equal(text + strlen(text) - (sizeof end - 1), end);
    assert_memory_equal(text, code, sizeof code - 1);
    assert_int_equal(child(warn_of_a_long_path, text, sizeof text), EXIT_OK);
    assert_string_equal(text + strlen(text) - (sizeof end - 1), end);
}

static void warn_of_bytes(void)
{
    log_warning("%s", "a\tb\x1b[2J\x7f \xc3\xa4 \xc2\x9b"
                      "31m \x9b"
                      "2J \xff \xe2\x82\nend");
}

static void test_control_characters_in_messages_are_printed_escaped(void **state)
{
    (void)state;
    char text[256];
    assert_int_equal(child(warn_of_bytes, text, sizeof text), EXIT_OK);
    assert_string_equal(text, "warning: a\tb\\x1b[2J\\x7f \xc3\xa4 \\xc2\\x9b31m \\x9b2J \\xff "
                              "\\xe2\\x82\\x0aend\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failures_print_a_message_and_exit_with_its_code),
        cmocka_unit_test(test_a_nested_permission_error_gives_exit_permission),
        cmocka_unit_test(test_a_message_that_is_too_long_keeps_both_ends),
        cmocka_unit_test(test_long_errors_and_warnings_are_printed_to_their_end),
        cmocka_unit_test(test_control_characters_in_messages_are_printed_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
