/* test_data.c -- tests text files and corpora: what is accepted, what is refused with which error
 * message, and identities of data. */
#include "data/identity.h"
#include "data/text/corpus.h"
#include "data/text/text.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_sentence(const char *got, const char *part)
{
    if (strstr(got, part) == NULL) fail_msg("\"%s\", want \"%s\" in it", got, part);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void check_text(const char *name, const char *contents, size_t size, const char *want)
{
    char err[512];
    Text t = {0};
    if (!text_add_file(&t, name, contents, size, NULL, err, sizeof err)) fail_msg("%s", err);
    if (t.size != (int64_t)strlen(want) || memcmp(t.bytes, want, strlen(want)) != 0)
        fail_msg("\"%.*s\", want \"%s\"", (int)t.size, (char *)t.bytes, want);
    text_free(&t);
}

static void check_refused(const char *name, const char *contents, size_t size, const char *sentence)
{
    char err[512] = "accepted";
    Text t = {0};
    text_add_file(&t, name, contents, size, NULL, err, sizeof err);
    check_sentence(err, sentence);
    text_free(&t);
}

#define BYTES(literal) (literal), sizeof(literal) - 1

static void test_crlf_becomes_lf_and_the_byte_order_mark_is_dropped(void **state)
{
    (void)state;
    check_text("a.txt", BYTES("one\r\ntwo\r\n"), "one\ntwo\n");
    check_text("a.txt", BYTES("one\r\r\ntwo\rthree\r"), "one\ntwo\rthree\r");
    check_text("a.txt", BYTES("\xEF\xBB\xBFone\n"), "one\n");
    check_text("a.txt", BYTES("caf\303\251\n"), "caf\303\251\n");
    check_text(
        "a.jsonl",
        BYTES("\xEF\xBB\xBF{\"text\": \"a\\r\\nb\"}\r\n\r\n{\"text\":\"\\u00e9\\ud83d\\ude42\"}"),
        "a\nb\303\251\360\237\231\202");
}

static void test_bytes_that_are_not_text_are_refused_with_their_position(void **state)
{
    (void)state;
    check_refused("a.txt", "", 0, "a.txt is empty");
    check_refused("a.txt", BYTES("ab\0c"), "a.txt: byte 2 is NUL");
    check_refused("a.txt", BYTES("abc\xE9 d"),
                  "a.txt: byte 3 (0xe9) is not valid UTF-8; convert the file");
    check_refused("a.txt", BYTES("\xED\xA0\x80"), "byte 0 (0xed)");
    check_refused("a.txt", BYTES("x\xC0\xAF"), "byte 1 (0xc0)");
    check_refused("a.txt", BYTES("xy\xF0\x9F\x99"), "byte 2 (0xf0)");
    check_refused("a.txt", BYTES("\xF4\x90\x80\x80"), "byte 0 (0xf4)");
    check_refused("a.jsonl", BYTES("{\"text\":\"a\"}\n{\"text\":3}\n"),
                  "a.jsonl:2 has no string called \"text\"");
    check_refused("a.jsonl", BYTES("{\"text\":\"a\"}\n\n{\"text\"\n"),
                  "a.jsonl:3 is not a JSON object");
    check_refused("a.jsonl", BYTES("{\"text\":\"a\"} x\n"), "a.jsonl:1 is not a JSON object");
    check_refused("a.jsonl", BYTES("[1]\n"), "a.jsonl:1 is not a JSON object");
    check_refused("a.json", BYTES("{\"text\":\"a\\u0000\"}\n"), "a.json:1 has the escape \\u0000");
    check_refused("a.jsonl", BYTES("{\"text\":\"\\ud800\"}\n"), "a.jsonl:1 is not a JSON object");
    check_refused("a.jsonl", BYTES("{\"text\":\"\xFF\"}\n"), "a.jsonl:1: byte 9 (0xff)");
    check_refused("a.jsonl", BYTES("\n \n"), "a.jsonl has no lines");
    check_text("a.jsonl", BYTES("{\"text\":\"a\\\\u0000\"}\n"), "a\\u0000");
}

static void test_text_files_are_read_in_the_order_of_their_patterns(void **state)
{
    (void)state;
    char *folder = folder_new(), err[512];
    char *b = text_file_new(folder, "b.txt", "second\n"),
         *a = text_file_new(folder, "a.txt", "first\n");
    char *c = text_file_new(folder, "c.jsonl", "{\"body\":\"third\"}\n{\"body\":\"fourth\"}\n");
    char *glob = text_format("%s/*.txt", folder), *missing = text_format("%s/*.md", folder);
    char *items[] = {glob, c, missing};
    Text t = {0};
    ExitCode code;
    if (!text_read_files(&t, &(StringList){2, items}, &(TextOptions){.text_key = "body"}, err,
                         sizeof err, &code))
        fail_msg("%s", err);
    assert_int_equal(t.n_documents, 4);
    assert_memory_equal(t.bytes, "first\nsecond\nthirdfourth", 24);
    assert_int_equal(t.document_end[2], 18);
    assert_false(text_read_files(&t, &(StringList){3, items}, &(TextOptions){.text_key = "body"},
                                 err, sizeof err, &code));
    assert_int_equal(code, EXIT_MISSING);
    check_sentence(err, "no file matches");
    assert_false(text_read_files(&t, &(StringList){2, items}, &(TextOptions){.text_key = "text"},
                                 err, sizeof err, &code));
    assert_int_equal(code, EXIT_DAMAGED);
    text_free(&t);
    free(a);
    free(b);
    free(c);
    free(glob);
    free(missing);
    folder_drop(folder);
}

/* The end of an empty document is recorded like that of any other. */
static void test_a_text_that_begins_with_an_empty_document_is_accepted(void **state)
{
    (void)state;
    char err[256];
    Text t = {0};
    assert_true(text_add_document(&t, "a", 0, (const uint8_t *)"", 0, err, sizeof err));
    assert_non_null(t.bytes);
    assert_int_equal(t.size, 0);
    assert_true(text_add_file(&t, "a.jsonl", BYTES("{\"text\":\"\"}\n{\"text\":\"b\"}"), NULL, err,
                              sizeof err));
    assert_int_equal(t.n_documents, 3);
    assert_int_equal(t.size, 1);
    text_free(&t);
}

static int64_t split_of(const char *text, double fraction)
{
    char err[256];
    Text t = {0};
    int64_t at;
    assert_true(text_add_file(&t, "a.txt", text, strlen(text), NULL, err, sizeof err));
    at = text_split(&t, fraction);
    text_free(&t);
    return at;
}

static void test_text_split_falls_on_the_end_of_a_line_or_document(void **state)
{
    (void)state;
    assert_int_equal(split_of("aaaa\nbbbb\ncccc\n", 0.5), 10);
    assert_int_equal(split_of("aaaa\nbbbb\ncccc\n", 0.0), 15);
    assert_int_equal(split_of("aaaa\nbbbb\ncccc\n", 0.67), 5);
    /* one line only: the split is exactly at this byte */
    assert_int_equal(split_of("aaaabbbb", 0.5), 4);
    /* the split is never inside a character */
    assert_int_equal(split_of("\303\251\303\251\303\251", 0.5), 4);
    char err[256];
    Text t = {0};
    assert_true(text_add_file(&t, "a.jsonl", BYTES("{\"text\":\"aaaa\"}\n{\"text\":\"bbbbbb\"}"),
                              NULL, err, sizeof err));
    assert_int_equal(text_split(&t, 0.8), 4); /* the split moves to the end of the document */
    assert_int_equal(text_split(&t, 0.6), 4); /* this byte is the end of the document */
    /* inside the last document, which is one line: exactly at this byte */
    assert_int_equal(text_split(&t, 0.5), 5);
    assert_true(
        text_add_file(&t, "b.jsonl", BYTES("{\"text\":\"c\\ncc\\n\"}"), NULL, err, sizeof err));
    /* the end of a document comes before the next end of a line */
    assert_int_equal(text_split(&t, 0.66), 10);
    assert_int_equal(text_split(&t, 0.2), 12);
    text_free(&t);
}

static void test_mutated_text_is_accepted_or_refused_without_a_crash(void **state)
{
    (void)state;
    const char *plain =
        "\xEF\xBB\xBFIn the beginning\r\ncaf\303\251 \342\200\224 \360\237\231\202\n  it's\t\n";
    const char *lines =
        "{\"text\":\"a\\r\\nb \\u00e9 "
        "\\\\u0000\"}\r\n\n{\"id\":[1,{\"x\":null}],\"text\":\"\\ud83d\\ude42 c\"}\n";
    fuzz_replay(fuzz_text, plain, strlen(plain), 31, 3000);
    fuzz_replay(fuzz_text, lines, strlen(lines), 32, 3000);
}

/* ---- corpora --------------------------------------------------------------------------------- */

static void test_the_bible_corpus_has_all_verses_without_labels(void **state)
{
    (void)state;
    char err[512];
    ExitCode code;
    Text t = {0};
    if (!corpus_read(&t, "bible-kjv", &corpus_limits, err, sizeof err, &code)) {
        assert_int_equal(code, EXIT_MISSING);
        skip_because("%s", err);
    }
    static const char first[] =
        "In the beginning God created the heaven and the earth.\nAnd the earth was without form";
    assert_true(t.size > 4000000);
    assert_memory_equal(t.bytes, first, sizeof first - 1);
    assert_int_equal(t.n_documents, 1);
    int64_t lines = 0;
    for (int64_t i = 0; i < t.size; i++)
        lines += t.bytes[i] == '\n';
    assert_int_equal(lines, 31102); /* the number of verses in the King James Bible */
    text_free(&t);
}

static void test_a_missing_corpus_program_is_refused_with_the_package_name(void **state)
{
    (void)state;
    char err[512], *folder = folder_new(), *path = must_strdup(getenv("PATH"));
    ExitCode code;
    Text t = {0};
    assert_false(corpus_read(&t, "koran", &corpus_limits, err, sizeof err, &code));
    assert_int_equal(code, EXIT_MISSING);
    setenv("PATH", folder, 1);
    bool found = corpus_read(&t, "bible-kjv", &corpus_limits, err, sizeof err, &code);
    setenv("PATH", path, 1);
    assert_false(found);
    assert_int_equal(code, EXIT_MISSING);
    check_sentence(err, "apt-get install bible-kjv");
    check_sentence(err, "data.text");
    text_free(&t);
    free(path);
    folder_drop(folder);
}

/* Reads the corpus with this shell script instead of the real program; returns whether it was
 * accepted. */
static bool read_from(const char *script, const CorpusLimits *limits, char *err, size_t n)
{
    char *folder = folder_new(), *path = must_strdup(getenv("PATH"));
    char *program = text_file_new(folder, "bible", script);
    ExitCode code;
    Text t = {0};
    assert_int_equal(chmod(program, 0755), 0);
    setenv("PATH", folder, 1);
    bool found = corpus_read(&t, "bible-kjv", limits, err, n, &code);
    setenv("PATH", path, 1);
    assert_int_equal(code, EXIT_DAMAGED);
    text_free(&t);
    free(program);
    free(path);
    folder_drop(folder);
    return found;
}

static void test_a_corpus_program_that_fails_or_prints_other_text_is_refused(void **state)
{
    (void)state;
    char err[512];
    assert_false(
        read_from("#!/bin/sh\necho Ge1:1 In the beginning\n", &corpus_limits, err, sizeof err));
    check_sentence(err, "something else than the whole text");
    /* If the caller ignores SIGCHLD, the program's failure must still be detected. */
    for (int ignored = 0; ignored < 2; ignored++) {
        void (*own)(int) = ignored ? SIG_IGN : SIG_DFL;
        signal(SIGCHLD, own);
        assert_false(read_from("#!/bin/sh\nexit 3\n", &corpus_limits, err, sizeof err));
        check_sentence(err, "the program \"bible\" ended with exit code 3");
        assert_ptr_equal(signal(SIGCHLD, SIG_DFL), own);
    }
}

/* No process is left running, and none is waited for longer than its limit. */
static void test_a_corpus_program_that_exceeds_its_limits_is_killed(void **state)
{
    (void)state;
    static const struct {
        const char *script;
        CorpusLimits limits;
        const char *sentence;
    } cases[] = {
        {"#!/bin/sh\nwhile :; do echo Ge1:1 In the beginning; done\n",
         {.bytes = 100000, .seconds = 3600},
         "was ended after 1"},
        {"#!/bin/sh\nexec /bin/sleep 3600\n",
         {.bytes = 100000, .seconds = 0},
         "was ended after 0 bytes: a text of at most 100000 bytes within 0 seconds"},
        {"#!/bin/sh\nexec /bin/sleep 3600 >/dev/null 2>/dev/null\n",
         {.bytes = 100000, .seconds = 3600, .ending = 0},
         "was ended by signal 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[512] = "taken";
        alarm(20);
        assert_false(read_from(cases[i].script, &cases[i].limits, err, sizeof err));
        alarm(0);
        check_sentence(err, cases[i].sentence);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    }
}

/* ---- identity of data ------------------------------------------------------------------------ */

/* Returns the identity of one shard with 200000 tokens, of which token `at` is changed (-1: none
 * is). `whole`: the shard counts as prepared from text, so all its bytes are hashed. */
static char *identity_with(const char *folder, bool whole, int64_t at)
{
    char err[512];
    char *path = shard_new(folder, "x.bin", 500, 200000, 0, 499);
    DataSet d = {.prepared = whole};
    if (at >= 0) {
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, (long)token_file_offset(2, at), SEEK_SET), 0);
        assert_int_equal(fwrite("\1\1", 1, 2, f), 2);
        fclose(f);
    }
    if (!token_set_open(&d.train, &(StringList){1, &path}, err, sizeof err)) fail_msg("%s", err);
    char *identity = data_identity(&d, err, sizeof err);
    if (identity == NULL) fail_msg("%s", err);
    data_close(&d);
    free(path);
    return identity;
}

static void test_different_contents_have_different_identities(void **state)
{
    (void)state;
    char *folder = folder_new();
    for (int whole = 0; whole < 2; whole++) {
        const int64_t at[] = {-1, 0, 100000, 199999};
        char *none = identity_with(folder, whole, -1);
        check_sentence(none, "tokenizer none; train 200000 tokens ");
        for (int i = 0; i < 4; i++) {
            char *other = identity_with(folder, whole, at[i]);
            /* If only the ends of a shard are hashed, a change in its middle does not matter. */
            bool same = at[i] < 0 || (at[i] == 100000 && !whole);
            char *difference = data_identity_difference(none, other);
            if (same != (difference == NULL))
                fail_msg("whole %d, token %d: %s and %s", whole, (int)at[i], none, other);
            if (difference) check_sentence(difference, " -> train 200000 tokens ");
            free(difference);
            free(other);
        }
        free(none);
    }
    folder_drop(folder);
}

static void test_the_difference_of_two_identities_lists_the_changed_parts(void **state)
{
    (void)state;
    const char *a = "tokenizer 1; train 5 tokens 2; val none";
    const struct {
        const char *is, *difference;
        bool tokenizer;
    } cases[] = {
        {a, NULL, false},
        {"tokenizer 9; train 5 tokens 2; val none", "tokenizer 1 -> tokenizer 9", true},
        {"tokenizer none; train 5 tokens 2; val none", "tokenizer 1 -> tokenizer none", false},
        {"tokenizer 1; train 6 tokens 3; val 1 tokens 4",
         "train 5 tokens 2 -> train 6 tokens 3, val none -> val 1 tokens 4", false},
        {"", "tokenizer 1 -> , train 5 tokens 2 -> , val none -> ", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got = data_identity_difference(a, cases[i].is);
        if ((got == NULL) != (cases[i].difference == NULL) ||
            (got && strcmp(got, cases[i].difference) != 0))
            fail_msg("\"%s\", not \"%s\"", got, cases[i].difference);
        assert_int_equal(data_identity_other_tokenizer(a, cases[i].is), cases[i].tokenizer);
        free(got);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_different_contents_have_different_identities),
    cmocka_unit_test(test_the_difference_of_two_identities_lists_the_changed_parts),
    cmocka_unit_test(test_crlf_becomes_lf_and_the_byte_order_mark_is_dropped),
    cmocka_unit_test(test_bytes_that_are_not_text_are_refused_with_their_position),
    cmocka_unit_test(test_text_files_are_read_in_the_order_of_their_patterns),
    cmocka_unit_test(test_a_text_that_begins_with_an_empty_document_is_accepted),
    cmocka_unit_test(test_text_split_falls_on_the_end_of_a_line_or_document),
    cmocka_unit_test(test_mutated_text_is_accepted_or_refused_without_a_crash),
    cmocka_unit_test(test_the_bible_corpus_has_all_verses_without_labels),
    cmocka_unit_test(test_a_missing_corpus_program_is_refused_with_the_package_name),
    cmocka_unit_test(test_a_corpus_program_that_fails_or_prints_other_text_is_refused),
    cmocka_unit_test(test_a_corpus_program_that_exceeds_its_limits_is_killed),
};

int main(void)
{
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
