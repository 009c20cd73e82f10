/* test_text_files.c -- tests the files of a text: folders, packed files, files that are not text,
 * JSON lines that are bad, what a run reports as changed, and a text that is kept in a file. */
#include "data/text/text.h"
#include "data/text/text_stream.h"
#include "data/text/unpack.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char packed_gz[] = "tests/fuzz/corpus/text/packed.txt.gz",
                  packed_zst[] = "tests/fuzz/corpus/text/packed.txt.zst";

static void check_sentence(const char *got, const char *part)
{
    if (strstr(got, part) == NULL) fail_msg("\"%s\", want \"%s\" in it", got, part);
}

static bool read_one(Text *t, const char *path, const TextOptions *options, char *err, size_t n,
                     ExitCode *code)
{
    char *item = must_strdup(path);
    bool good = text_read_files(t, &(StringList){1, &item}, options, err, n, code);
    free(item);
    return good;
}

static void check_refused(const char *path, ExitCode want, const char *sentence)
{
    char err[600] = "";
    ExitCode code = EXIT_OK;
    Text t = {0};
    assert_false(read_one(&t, path, &(TextOptions){0}, err, sizeof err, &code));
    check_sentence(err, sentence);
    assert_int_equal(code, want);
    text_free(&t);
}

/* Writes the file with these contents and reads it. The message must begin with its path. */
static void check_contents_refused(const char *name, const char *bytes, size_t size,
                                   const char *after_name)
{
    char *folder = folder_new(), *path = file_new(folder, name, bytes, size),
         *sentence = text_format("%s%s", path, after_name);
    check_refused(path, EXIT_DAMAGED, sentence);
    free(sentence);
    free(path);
    folder_drop(folder);
}

#define REFUSED(name, bytes, after_name)                                                           \
    check_contents_refused(name, bytes, sizeof(bytes) - 1, after_name)

static void the_error_about_a_file_that_is_not_text_says_what_kind_it_is(void **state)
{
    (void)state;
    REFUSED("a.txt", "\xFF\xFEt\0h\0e\0", " is UTF-16, not UTF-8; convert it: iconv -f utf-16 -t");
    REFUSED("a.txt", "\xFE\xFF\0t\0h\0e", " is UTF-16, not UTF-8; convert it: iconv -f utf-16 -t");
    REFUSED("a.jsonl", "{\0\"\0t\0e\0", " is UTF-16, not UTF-8; convert it: iconv -f utf-16le");
    REFUSED("a.txt", "\0{\0\"\0t\0e", " is UTF-16, not UTF-8; convert it: iconv -f utf-16be");
    REFUSED("a.txt", "\xFF\xFE\0\0t\0\0\0", " is UTF-32, not UTF-8; convert it: iconv -f utf-32");
    REFUSED("a.txt",
            "\xFD"
            "7zXZ\0",
            " is an xz archive, not text; unpack it first: xz -d");
    REFUSED("a.txt", "PK\x03\x04", " is a zip archive, not text; unpack it first: unzip");
    REFUSED("a.txt", "%PDF-1.7", " is a PDF, not text; convert it to text first: pdftotext");
    REFUSED("a.txt", "caf\xE9 d", ": byte 3 (0xe9) is not valid UTF-8");
}

/* A process may open its own memory as a file, but reading it fails: there is no memory at address
 * 0. */
static void a_file_that_fails_while_it_is_read_is_refused(void **state)
{
    (void)state;
    check_refused("/proc/self/mem", EXIT_DAMAGED,
                  "/proc/self/mem cannot be read: Input/output error");
}

static void the_contents_of_a_compressed_file_must_be_utf8_text(void **state)
{
    (void)state;
    /* "caf\xE9" in UTF-16 with a mark, stored without compression. */
    static const char utf16[] = "\x1F\x8B\x08\0\0\0\0\0\0\xFF\x01\x0A\0\xF5\xFF"
                                "\xFF\xFE"
                                "c\0a\0f\0\xE9\0";
    REFUSED("a.gz", utf16, ", unpacked, is UTF-16, not UTF-8; convert it: iconv -f utf-16 -t");
}

static void check_packed(const char *path)
{
    char err[512] = "";
    ExitCode code;
    Text t = {0};
    if (!read_one(&t, path, &(TextOptions){0}, err, sizeof err, &code)) fail_msg("%s", err);
    assert_int_equal(t.size, 6 * 24);
    assert_memory_equal(t.bytes, "one two three\ntwo three\none", 27);
    assert_int_equal(t.notes.crlf, 6);
    assert_int_equal(t.n_documents, 1);
    text_free(&t);
}

/* Returns the contents of a file `times` times, without its last `cut` bytes. */
static char *repeated(const char *path, int times, size_t cut, size_t *size)
{
    char err[512], *one;
    size_t length;
    if (!file_read(path, &one, &length, NULL, err, sizeof err)) fail_msg("%s", err);
    char *all = must_alloc((size_t)times * length);
    for (int i = 0; i < times; i++)
        memcpy(all + (size_t)i * length, one, length);
    free(one);
    *size = (size_t)times * length - cut;
    return all;
}

static void compressed_files_are_decompressed_and_must_be_complete(void **state)
{
    (void)state;
    const char *const paths[] = {packed_gz, packed_zst};
    for (int k = 0; k < 2; k++) {
        char *folder = folder_new(), err[512];
        size_t size;
        check_packed(paths[k]);
        /* Several members or frames in one file are one text. */
        char *bytes = repeated(paths[k], 3, 0, &size), *path = file_new(folder, "a", bytes, size);
        ExitCode code;
        Text t = {0};
        if (!read_one(&t, path, &(TextOptions){0}, err, sizeof err, &code)) fail_msg("%s", err);
        assert_int_equal(t.size, 3 * 6 * 24);
        text_free(&t);
        free(bytes);
        free(path);
        bytes = repeated(paths[k], 2, 9, &size);
        path = file_new(folder, "cut", bytes, size);
        check_refused(path, EXIT_DAMAGED, "cut ends within its compressed data, so a part of it");
        memset(bytes + 20, 0xEE, 12);
        free(path);
        path = file_new(folder, "spoilt", bytes, size);
        check_refused(path, EXIT_DAMAGED,
                      k == 0 ? "spoilt: its gzip data are damaged ("
                             : "spoilt: its zstd data are damaged (");
        fuzz_replay(fuzz_text, bytes, size, 33, 300);
        free(bytes);
        free(path);
        folder_drop(folder);
    }
}

/* gunzip ignores such zeros, too. */
static void zeros_after_a_gzip_member_are_ignored(void **state)
{
    (void)state;
    enum { ZEROS = 300000 }; /* more than one piece of the stream */
    char *folder = folder_new(), err[512];
    size_t size;
    char *bytes = repeated(packed_gz, 1, 0, &size);
    bytes = must_realloc(bytes, size + ZEROS + 1);
    memset(bytes + size, 0, ZEROS);
    bytes[size + ZEROS] = 'x';
    for (int more = 0; more < 2; more++) {
        char *path = file_new(folder, more ? "more" : "a", bytes, size + ZEROS + (size_t)more);
        ExitCode code;
        Text t = {0};
        bool good = read_one(&t, path, &(TextOptions){0}, err, sizeof err, &code);
        if (!more && !good) fail_msg("%s", err);
        if (more) check_sentence(err, "damaged (other bytes follow the zeros after its end)");
        assert_true(good == !more);
        text_free(&t);
        free(path);
    }
    fuzz_replay(fuzz_text, bytes, size + 9, 34, 50);
    free(bytes);
    folder_drop(folder);
}

static void the_error_about_a_missing_library_names_the_compression(void **state)
{
    (void)state;
    char err[512];
    assert_null(unpacker_open(PACKED_GZIP, "a.gz", "libnone.so.1", err, sizeof err));
    assert_string_equal(err, "a.gz is compressed with gzip, and libnone.so.1 is not installed: "
                             "apt-get install zlib1g, or unpack it first: gunzip");
    assert_null(unpacker_open(PACKED_ZSTD, "a", "libnone.so.1", err, sizeof err));
    check_sentence(err, "apt-get install libzstd1, or unpack it first: unzstd");
    /* A library without the functions. */
    assert_null(unpacker_open(PACKED_ZSTD, "a", "libm.so.6", err, sizeof err));
    assert_string_equal(err, "a is compressed with zstd, and libm.so.6 does not work: unpack it "
                             "first: unzstd");
    assert_null(unpacker_open(PACKED_GZIP, "a", "libm.so.6", err, sizeof err));
}

static void a_folder_gives_all_files_in_it_in_the_order_of_their_names(void **state)
{
    (void)state;
    char *folder = folder_new(), *sub = text_format("%s/b", folder),
         *empty = text_format("%s/none", folder), *loop = text_format("%s/b/loop", folder),
         err[512];
    assert_int_equal(mkdir(sub, 0777), 0);
    assert_int_equal(symlink(folder, loop), 0);
    free(text_file_new(folder, "c.txt", "3"));
    free(text_file_new(folder, "a.jsonl", "{\"text\": \"1\"}\n"));
    free(text_file_new(folder, ".hidden", "x"));
    free(text_file_new(sub, "z", "2"));
    ExitCode code;
    Text t = {0};
    if (!read_one(&t, folder, &(TextOptions){0}, err, sizeof err, &code)) fail_msg("%s", err);
    assert_int_equal(t.n_documents, 3);
    assert_memory_equal(t.bytes, "123", 3);
    text_free(&t);
    assert_true(text_check_files(&(StringList){1, &folder}, err, sizeof err, &code));
    assert_int_equal(mkdir(empty, 0777), 0);
    check_refused(empty, EXIT_MISSING, "none has no files");
    assert_int_equal(rmdir(empty), 0);
    assert_int_equal(unlink(loop), 0);
    free(loop);
    free(empty);
    free(sub);
    folder_drop(folder);
}

#define LINES(...) text_add_file(&t, "a.jsonl", lines, strlen(lines), __VA_ARGS__, err, sizeof err)

static void bad_json_lines_are_refused_unless_skip_bad_lines_is_set(void **state)
{
    (void)state;
    static const char lines[] = "{\"id\": 7, \"body\": \"one\", \"t\": \"x\"}\nno\n\n{\"id\": 8}\n";
    char err[512];
    Text t = {0};
    assert_false(LINES(NULL));
    assert_string_equal(err, "a.jsonl:1 has no string called \"text\"; it has \"id\", \"body\", "
                             "\"t\": write --set data.text_key=body");
    assert_false(LINES(&(TextOptions){.key_option = "--text-key "}));
    check_sentence(err, ": write --text-key body");
    assert_false(LINES(&(TextOptions){.text_key = "body"}));
    assert_string_equal(err, "a.jsonl:2 is not a JSON object; to leave such lines out, write --set "
                             "data.skip_bad_lines=true");
    text_free(&t);
    assert_true(LINES(&(TextOptions){.text_key = "body", .skip_bad_lines = true}));
    assert_int_equal(t.n_documents, 1);
    assert_int_equal(t.notes.lines, 3);
    char *notes = text_notes_line(&t.notes);
    assert_string_equal(notes, "2 of 3 lines skipped; the first: a.jsonl:2 is not a JSON object");
    free(notes);
    text_free(&t);
    assert_false(LINES(&(TextOptions){.skip_bad_lines = true}));
    check_sentence(err, "a.jsonl has no good line: a.jsonl:1 has no string called");
    text_free(&t);
}

static void check_line(const char *name, const char *line, const char *want)
{
    char err[512] = "";
    Text t = {0};
    assert_false(text_add_file(&t, name, line, strlen(line), NULL, err, sizeof err));
    assert_string_equal(err, want);
    text_free(&t);
}

/* The user pastes the command into a shell, and the key comes from the data. */
static void keys_in_suggested_commands_are_quoted_for_the_shell(void **state)
{
    (void)state;
#define NO_TEXT(keys) "a.jsonl:1 has no string called \"text\"; it has " keys
    check_line("a.jsonl", "{\"a;rm -rf $HOME\":\"x\"}",
               NO_TEXT("\"a;rm -rf $HOME\": write --set data.text_key='a;rm -rf $HOME'"));
    check_line("a.jsonl", "{\"my text\":\"x\"}",
               NO_TEXT("\"my text\": write --set data.text_key=\"my text\""));
    check_line("a.jsonl", "{\"a\\nb\":\"x\"}", NO_TEXT("\"a?b\""));
}

static void the_error_about_a_single_json_document_says_how_to_convert_it(void **state)
{
    (void)state;
#define DOCUMENT(place)                                                                            \
    place ":1 is not a JSON object, because the file is one JSON document; write one object per "  \
          "line: "
    check_line("a.json", "[{\"text\":\"x\"}]\n",
               DOCUMENT("a.json") "jq -c '.[]' a.json > lines.jsonl");
    check_line("b/my a.json", " [\n {\"text\":\"x\"}\n]\n",
               DOCUMENT("b/my a.json") "jq -c '.[]' \"b/my a.json\" > lines.jsonl");
    check_line("a.json.gz", "[ {\r\n\"text\":\"x\"}]\n",
               DOCUMENT("a.json.gz") "gunzip -c a.json.gz | jq -c '.[]' > lines.jsonl");
    check_line("b/lines.jsonl", "{\n\"text\":\"x\"}\n",
               DOCUMENT("b/lines.jsonl") "jq -c . b/lines.jsonl > documents.jsonl");
#define BAD_LINE " is not a JSON object; to leave such lines out, write --set "
    check_line("a.json", "[1]\n", "a.json:1" BAD_LINE "data.skip_bad_lines=true");
    check_line("a.json", "{\"text\":\"x\"}\n[\n", "a.json:2" BAD_LINE "data.skip_bad_lines=true");
}

static void changed_line_ends_and_dropped_byte_order_marks_are_counted(void **state)
{
    (void)state;
    static const char text[] = "\xEF\xBB\xBFone\r\ntwo\r\r\nthree\n";
    char err[512];
    Text t = {0};
    TextNotes notes = {0};
    assert_null(text_notes_line(&notes));
    for (int i = 0; i < 2; i++)
        assert_true(text_add_file(&t, "a.txt", text, sizeof text - 1, NULL, err, sizeof err));
    text_notes_take(&notes, &t);
    char *line = text_notes_line(&notes);
    assert_string_equal(line, "CR LF became LF at 4 line ends; 2 byte-order marks dropped");
    free(line);
    text_free(&t);
}

/* A large text is kept in a file without a name, and has the same bytes. */
static void a_text_longer_than_the_memory_limit_is_kept_in_a_file(void **state)
{
    (void)state;
    enum { SIZE = 300000, PIECES = 20 };
    char *folder = folder_new(), *inside = text_format("%s/new/cache", folder), err[512];
    uint8_t *piece = must_alloc(SIZE);
    Text t = {.folder = inside, .in_memory = 1 << 20}, plain = {0};
    for (int64_t i = 0; i < SIZE; i++)
        piece[i] = (uint8_t)('a' + drawn(5, (uint64_t)i) % 26);
    for (int i = 0; i < PIECES; i++) {
        piece[i] = '\n';
        assert_true(text_add_document(&t, "a", 0, piece, SIZE, err, sizeof err));
        assert_true(text_add_document(&plain, "a", 0, piece, SIZE, err, sizeof err));
        assert_true(t.mapped == (i >= 3));
    }
    assert_true(t.size == plain.size && memcmp(t.bytes, plain.bytes, (size_t)t.size) == 0);
    glob_t found;
    char *pattern = text_format("%s/*", inside);
    assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
    text_free(&t);
    text_free(&plain);
    /* A file where the folder must be created. */
    char *file = text_file_new(folder, "file", "x");
    t = (Text){.folder = file, .in_memory = 1};
    assert_false(text_add_document(&t, "a", 0, piece, SIZE, err, sizeof err));
    assert_true(t.unstored);
    text_free(&t);
    free(file);
    free(pattern);
    free(piece);
    free(inside);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_about_a_file_that_is_not_text_says_what_kind_it_is),
        cmocka_unit_test(a_file_that_fails_while_it_is_read_is_refused),
        cmocka_unit_test(the_contents_of_a_compressed_file_must_be_utf8_text),
        cmocka_unit_test(zeros_after_a_gzip_member_are_ignored),
        cmocka_unit_test(keys_in_suggested_commands_are_quoted_for_the_shell),
        cmocka_unit_test(the_error_about_a_single_json_document_says_how_to_convert_it),
        cmocka_unit_test(compressed_files_are_decompressed_and_must_be_complete),
        cmocka_unit_test(the_error_about_a_missing_library_names_the_compression),
        cmocka_unit_test(a_folder_gives_all_files_in_it_in_the_order_of_their_names),
        cmocka_unit_test(bad_json_lines_are_refused_unless_skip_bad_lines_is_set),
        cmocka_unit_test(changed_line_ends_and_dropped_byte_order_marks_are_counted),
        cmocka_unit_test(a_text_longer_than_the_memory_limit_is_kept_in_a_file),
    };
    return cmocka_run_group_tests_name("text files", tests, NULL, NULL);
}
