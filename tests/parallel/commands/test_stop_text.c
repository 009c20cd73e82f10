/* test_stop_text.c -- tests that a text ends before its first stop text, wherever its tokens are
 * divided. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "parallel/commands/stop_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64 };

/* Returns where the text ends: before the stop text that is complete first; of several that end at
 * the same byte, before the longest. */
static size_t end_expected(const char *text, size_t n, const ArgList *stops)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int i = 0; i < stops->count; i++) {
            size_t m = strlen(stops->item[i]);
            if (m <= end && m > longest && strncmp(text + end - m, stops->item[i], m) == 0)
                longest = m;
        }
        if (longest > 0) return end - longest;
    }
    return n;
}

/* Gives the text in pieces of 1 to `most` bytes, drawn from `seed`. Writes what is printed to
 * out. Checks after each piece that what is held back may begin a stop text. */
static void print_in_pieces(const char *text, size_t n, const ArgList *stops, uint64_t seed,
                            uint64_t most, char *out)
{
    StopText t = {.stops = stops};
    size_t printed = 0;
    for (size_t at = 0; at < n && !t.found;) {
        size_t piece = 1 + rng_bits(seed, 7, at) % most;
        if (piece > n - at) piece = n - at;
        size_t ready = stop_text_add(&t, (const uint8_t *)text + at, (int64_t)piece);
        assert_true(ready <= t.count);
        memcpy(out + printed, t.held, ready);
        printed += ready;
        stop_text_drop(&t, ready);
        bool begins = t.count == 0 || t.found;
        for (int i = 0; i < stops->count; i++)
            begins |=
                t.count < strlen(stops->item[i]) && strncmp(t.held, stops->item[i], t.count) == 0;
        assert_true(begins);
        at += piece;
    }
    if (!t.found && t.count > 0) memcpy(out + printed, t.held, t.count);
    if (!t.found) printed += t.count;
    out[printed] = '\0';
    stop_text_free(&t);
}

static void test_a_text_ends_before_its_first_stop_text(void **state)
{
    (void)state;
    static const char *const set[][3] = {{"ab"},          {"a", "ba"}, {"aab", "ab", "b"},
                                         {"abab", "bb"},  {"aaaa"},    {"bab", "abba", "c"},
                                         {"abcabd", "cc"}};
    int ended = 0, whole = 0;
    for (uint64_t k = 0; k < 2000; k++) {
        char text[MOST + 1], out[MOST + 1];
        const char *items[3] = {0};
        ArgList stops = {.item = items};
        for (int i = 0; i < 3 && set[k % ARG_ROWS(set)][i]; i++)
            items[stops.count++] = set[k % ARG_ROWS(set)][i];
        size_t n = rng_bits(1, k, 0) % MOST;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_bits(2, k, i) % 4);
        size_t end = end_expected(text, n, &stops);
        print_in_pieces(text, n, &stops, k, 1 + k / 7 % 9, out);
        text[end] = '\0';
        assert_string_equal(out, text);
        ended += end < n;
        whole += end == n;
    }
    assert_true(ended > 500 && whole > 200);
}

static void test_stop_text_restart_forgets_the_held_back_bytes(void **state)
{
    (void)state;
    const char *items[] = {"xy"};
    ArgList stops = {.item = items, .count = 1};
    StopText t = {.stops = &stops};
    assert_int_equal(stop_text_add(&t, (const uint8_t *)"x", 1), 0);
    stop_text_restart(&t);
    assert_int_equal(stop_text_add(&t, (const uint8_t *)"y", 1), 1);
    assert_false(t.found);
    stop_text_free(&t);
}

static void test_without_stop_texts_all_bytes_are_printed_at_once(void **state)
{
    (void)state;
    ArgList none = {0};
    StopText t = {.stops = &none};
    assert_int_equal(stop_text_add(&t, (const uint8_t *)"a\0b", 3), 3);
    assert_memory_equal(t.held, "a\0b", 3);
    stop_text_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text_ends_before_its_first_stop_text),
        cmocka_unit_test(test_stop_text_restart_forgets_the_held_back_bytes),
        cmocka_unit_test(test_without_stop_texts_all_bytes_are_printed_at_once),
    };
    return cmocka_run_group_tests_name("stop_text", tests, NULL, NULL);
}
