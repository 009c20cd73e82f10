/* test_inputs.c -- tests paths that a user gives: anything that is not a file is refused with an
 * error message and never waited for; glob patterns take bounded time; open shards that are
 * truncated give an error. */
#include "configs/config.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_set.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE = 20 }; /* seconds until a program that waits is killed */

static void check_sentence(const char *got, const char *part)
{
    if (strstr(got, part) == NULL) fail_msg("\"%s\", want \"%s\" in it", got, part);
}

static char *pipe_new(const char *folder)
{
    char *path = text_format("%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    return path;
}

static char *socket_new(const char *folder)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *path = text_format("%s/socket", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_in_range(strlen(path), 1, sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    return path;
}

/* Checks the error message of each function that reads a file. */
static void check_refused(const char *path, const char *why)
{
    char err[512] = "", *text;
    size_t size;
    Tokenizer *t;
    TokenFile f;
    ConfigReport report;
    assert_false(file_read(path, &text, &size, NULL, err, sizeof err));
    check_sentence(err, path);
    check_sentence(err, why);
    assert_false(tokenizer_load(path, &t, NULL, err, sizeof err));
    check_sentence(err, why);
    assert_false(token_file_open(&f, path, err, sizeof err));
    check_sentence(err, path);
    check_sentence(err, why);
    assert_null(config_load(path, 0, NULL, NULL, &report));
    if (strcmp(why, "it is a pipe") != 0) check_sentence(report.error[0], why);
    config_report_free(&report);
}

static void a_pipe_socket_device_or_folder_is_refused_without_waiting(void **state)
{
    (void)state;
    char *folder = folder_new(), *fifo = pipe_new(folder), *sock = socket_new(folder);
    char *link = text_format("%s/link", folder);
    assert_int_equal(symlink(fifo, link), 0);
    alarm(PATIENCE);
    check_refused(fifo, "it is a pipe");
    check_refused(link, "it is a pipe");
    check_refused(sock, "it is a socket or a device");
    check_refused("/dev/null", "it is a device");
    check_refused(folder, "Is a directory");
    check_refused("no/such/file", "No such file or directory");
    alarm(0);
    unlink(link);
    free(link);
    free(fifo);
    free(sock);
    folder_drop(folder);
}

/* A shell's "<(program)" passes a pipe as /dev/fd/N, and a config may be read from it. */
static void a_config_is_read_from_a_pipe_that_is_still_being_written(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 1},"
        " \"data\": {\"corpus\": \"bible-kjv\"}, \"train_micro_batch_size_per_gpu\": 1,"
        " \"train_steps\": 3, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-3}}}";
    const ssize_t first = 100, rest = sizeof text - 1 - 100;
    int ends[2], unread = 1;
    ConfigReport report;
    assert_int_equal(pipe(ends), 0);
    alarm(PATIENCE);
    /* the child writes the rest once the reader has taken the first part and waits */
    if (fork() == 0) {
        alarm(PATIENCE);
        bool good = write(ends[1], text, (size_t)first) == first;
        while (good && unread > 0)
            good = ioctl(ends[1], FIONREAD, &unread) == 0 && sched_yield() == 0;
        _exit(!good || write(ends[1], text + first, (size_t)rest) != rest);
    }
    close(ends[1]);
    char *path = text_format("/dev/fd/%d", ends[0]);
    const Config *c = config_load(path, 0, NULL, NULL, &report);
    alarm(0);
    if (c == NULL) fail_msg("%s", report.error[0]);
    assert_int_equal(c->train_steps, 3);
    close(ends[0]);
    config_report_free(&report);
    config_free(c);
    free(path);
}

/* ---- patterns -------------------------------------------------------------------------------- */

static void check_pattern(const char *pattern, const char *sentence)
{
    char err[512] = "";
    StringList found, list = {1, (char **)(uintptr_t)&pattern};
    alarm(PATIENCE);
    assert_false(file_list(&list, &found, err, sizeof err));
    alarm(0);
    check_sentence(err, sentence);
}

/* Returns `before`, then `part` repeated `times` times, then `after`. */
static char *repeated(const char *before, const char *part, int times, const char *after)
{
    size_t length = strlen(part);
    char *text = must_alloc(strlen(before) + (size_t)times * length + strlen(after) + 1);
    char *to = stpcpy(text, before);
    for (int i = 0; i < times; i++, to += length)
        memcpy(to, part, length);
    stpcpy(to, after);
    return text;
}

static void nested_and_repeated_braces_in_a_pattern_are_limited(void **state)
{
    (void)state;
    static const struct {
        const char *part, *end;
        int times;
        const char *sentence;
    } cases[] = {
        {"{a,b}", "", 13, "no file matches no/"},
        {"{a,b}", "", 14, "for more than 10000 names"},
        {"{a,b}", "", 4000, "for more than 10000 names"},
        {"{a,b}", "{", 4000, "for more than 10000 names"},
        {"{a,{b,c}}", "", 40, "for more than 10000 names"},
        {"{", "a,b", 8, "no file matches no/"},
        {"{", "", 9, "more than 8 deep"},
        {"{", "", 50000, "more than 8 deep"},
        {"{a,", "", 40, "more than 8 deep"},
        {"{a,a,a,a,a", "", 8, "for more than 10000 names"},
        {"}", "", 50, "no file matches no/"},
        {",", "}", 50, "no file matches no/"},
        {"x", "", 70000, "for more than 10000 names"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *pattern = repeated("no/", cases[i].part, cases[i].times, cases[i].end);
        check_pattern(pattern, cases[i].sentence);
        free(pattern);
    }
    /* random patterns must be handled in bounded time, too */
    for (uint64_t round = 0; round < 300; round++) {
        char pattern[80] = "no/";
        for (uint64_t k = 3; k < sizeof pattern - 1; k++)
            pattern[k] = "{},{},ab"[drawn(71, round * 100 + k) % 8];
        check_pattern(pattern, "no/");
    }
}

static void braces_in_a_pattern_list_files_in_their_order(void **state)
{
    (void)state;
    char *folder = folder_new(), err[512];
    char *pattern = text_format("%s/{c,a,{d,b}}.{txt,md}", folder);
    const char *want[] = {"c.txt", "a.txt", "d.txt", "b.txt"};
    StringList found;
    for (int i = 0; i < 4; i++)
        free(text_file_new(folder, want[i], "x"));
    if (!file_list(&(StringList){1, &pattern}, &found, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(found.count, 4);
    for (int i = 0; i < 4; i++)
        check_sentence(found.item[i], want[i]);
    string_list_free(&found);
    free(pattern);
    folder_drop(folder);
}

/* ---- shards in use --------------------------------------------------------------------------- */

static void reading_a_truncated_open_shard_gives_an_error_message(void **state)
{
    (void)state;
    static const int64_t vocab[] = {500, 70000};
    for (int k = 0; k < 2; k++) {
        char *folder = folder_new(), err[512], want[200];
        char *path = shard_new(folder, "a.bin", vocab[k], 3000, 0, 499);
        int32_t ids[100];
        uint64_t hash = 1;
        TokenSet s;
        assert_true(token_set_open(&s, &(StringList){1, &path}, err, sizeof err));
        int64_t size = s.file[0].size, to = size - 4000;
        assert_int_equal(truncate(path, to), 0);
        assert_true(token_set_read(&s, 0, 100, 499, ids, err, sizeof err));
        assert_int_equal(ids[99], 99);
        assert_false(token_set_read(&s, 2900, 100, 499, ids, err, sizeof err));
        snprintf(want, sizeof want,
                 "a.bin has been cut since it was opened: it had %lld bytes and has %lld",
                 (long long)size, (long long)to);
        check_sentence(err, path);
        check_sentence(err, want);
        assert_false(token_file_hash(&s.file[0], &hash, err, sizeof err));
        check_sentence(err, want);
        token_set_close(&s);
        free(path);
        folder_drop(folder);
    }
}

/* Computes the hash by its definition, over contiguous bytes. Old checkpoints store such hashes, so
 * it must not change. */
static uint64_t plain_hash(const uint8_t *p, size_t size)
{
    uint64_t h = 1;
    for (size_t at = 0; at <= size / 8 + 1; at++) {
        uint64_t word = 0;
        if (at <= size / 8)
            memcpy(&word, p + 8 * at, at < size / 8 ? 8 : size % 8);
        else
            word = size;
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

static void hashing_a_shard_in_pieces_gives_the_hash_of_the_whole_file(void **state)
{
    (void)state;
    /* two of these files have about 1 MiB */
    static const int64_t tokens[] = {0, 1, 100, 523776, 523777, 700003};
    char *folder = folder_new(), err[512];
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        char *path = shard_new(folder, "a.bin", 65536, tokens[i], 7, 60000), *text;
        uint64_t hash = 1;
        size_t size;
        TokenFile f;
        assert_true(file_read(path, &text, &size, NULL, err, sizeof err));
        assert_true(token_file_open(&f, path, err, sizeof err));
        if (!token_file_hash(&f, &hash, err, sizeof err)) fail_msg("%s", err);
        if (hash != plain_hash((uint8_t *)text, size)) fail_msg("of %zu bytes", size);
        token_file_close(&f);
        free(text);
        free(path);
    }
    folder_drop(folder);
}

/* All shards of a run stay open, even if the shell's default limit allows only a few open files. */
static void more_shards_than_the_soft_limit_of_open_files_can_be_opened(void **state)
{
    (void)state;
    enum { SHARDS = 40 };
    char *folder = folder_new(), err[512], *path[SHARDS];
    struct rlimit before, few;
    TokenSet s;
    for (int i = 0; i < SHARDS; i++) {
        char name[20];
        snprintf(name, sizeof name, "%d.bin", i);
        path[i] = shard_new(folder, name, 300, 10, 10 * i, 300);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 20, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    bool good = token_set_open(&s, &(StringList){SHARDS, path}, err, sizeof err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (!good) fail_msg("%s", err);
    assert_int_equal(s.n_tokens, 10 * SHARDS);
    token_set_close(&s);
    for (int i = 0; i < SHARDS; i++)
        free(path[i]);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_socket_device_or_folder_is_refused_without_waiting),
        cmocka_unit_test(a_config_is_read_from_a_pipe_that_is_still_being_written),
        cmocka_unit_test(nested_and_repeated_braces_in_a_pattern_are_limited),
        cmocka_unit_test(braces_in_a_pattern_list_files_in_their_order),
        cmocka_unit_test(reading_a_truncated_open_shard_gives_an_error_message),
        cmocka_unit_test(hashing_a_shard_in_pieces_gives_the_hash_of_the_whole_file),
        cmocka_unit_test(more_shards_than_the_soft_limit_of_open_files_can_be_opened),
    };
    return cmocka_run_group_tests_name("inputs", tests, NULL, NULL);
}
