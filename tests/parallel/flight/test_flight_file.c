/* test_flight_file.c -- what the file of a rank contains: the entries of its flight recorder, in
 * the format that parallel/flight/README.md describes. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "tests/support/files/scratch.h"
#include "tests/support/flight/some_flight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_run(const char *run)
{
    assert_int_equal(mkdir(run, 0777), 0);
}

/* Returns the first number after these words. */
static double number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    assert_non_null(at);
    return strtod(at + strlen(words), NULL);
}

/* Replaces the number after each `key` by a single 'T', because it differs between runs, and so may
 * the number of its digits. */
static void hide(char *text, const char *key)
{
    for (char *at = strstr(text, key); at; at = strstr(at, key)) {
        at += strlen(key);
        size_t n = strspn(at, "-0123456789.");
        if (n == 0) continue; /* the value is null */
        memmove(at + 1, at + n, strlen(at + n) + 1);
        *at = 'T';
    }
}

static void test_a_file_has_the_documented_lines(void **state)
{
    static const char expected[] =
        "{\"format\":\"train.c flight\",\"version\":1,\"dump\":\"%016llx\",\"reason\":\"signal\","
        "\"rank\":1,\"ranks\":2,\"host\":\"n1\",\"pid\":T,\"time\":T,\"attempt\":2,\"pp\":0,"
        "\"dp\":1,\"tp\":0,\"step\":12,\"micro_batch\":3,\"action\":\"backward\",\"issued\":2,"
        "\"entries\":2}\n"
        "{\"group\":1,\"name\":\"dp\",\"ranks\":[[0,1,2]]}\n"
        "{\"n\":1,\"kind\":\"op\",\"name\":\"add\",\"dtype\":\"f32\",\"elements\":64,\"stream\":"
        "\"host\",\"group\":-1,\"call\":-1,\"peer\":-1,\"step\":12,\"micro_batch\":3,\"action\":"
        "\"backward\",\"unit\":5,\"begun\":T,\"ended\":T}\n"
        "{\"n\":2,\"kind\":\"collective\",\"name\":\"all-reduce\",\"dtype\":\"bf16\",\"elements\":"
        "1048576,\"stream\":\"host\",\"group\":1,\"call\":17,\"peer\":-1,\"step\":12,"
        "\"micro_batch\":3,\"action\":\"backward\",\"unit\":5,\"begun\":T,\"ended\":null}\n";
    (void)state;
    Flight *f = some_flight();
    FlightSource source = some_source(f, 1);
    snprintf(source.host, sizeof source.host, "n1");
    FlightRoom *room = must_alloc(sizeof *room);
    const uint64_t name = flight_dump_name(SOME_START, 3);
    make_run("format");
    assert_int_equal(mkdir("format/flight", 0777), 0);
    int folder = open("format/flight", O_RDONLY | O_DIRECTORY);
    double before = wall_seconds_now();
    assert_int_equal(
        flight_write(&source, (Dump){.number = 3, .reason = DUMP_SIGNAL}, folder, room), 0);
    assert_true(flight_is_written(folder, 1, name));
    assert_false(flight_is_written(folder, 1, flight_dump_name(SOME_START, 4)));
    assert_false(flight_is_written(folder, 0, name));
    close(folder);
    char *text = take_text("format/flight/rank_00001.jsonl");
    double time = number_after(text, "\"time\":"), begun = number_after(text, "\"begun\":"),
           ended = number_after(text, "\"ended\":");
    assert_true(time >= before - 1e-5 && time <= wall_seconds_now() + 1e-5);
    assert_true(begun <= ended && ended <= 0 && begun > -60);
    hide(text, "\"pid\":");
    hide(text, "\"time\":");
    hide(text, "\"begun\":");
    hide(text, "\"ended\":");
    char *wanted = text_format(expected, (unsigned long long)name);
    assert_string_equal(text, wanted);
    free(wanted);
    free(text);
    free(room);
    flight_free(f);
}

/* The file is larger than the writer's buffer, and no entry is missing in it. */
static void test_a_full_ring_buffer_is_written_completely(void **state)
{
    const FlightEntry copy = {.kind = FLIGHT_COPY,
                              .dtype = FLIGHT_NO_DTYPE,
                              .elements = INT64_MAX,
                              .group = -1,
                              .call = -1,
                              .peer = -1};
    (void)state;
    Flight *f = flight_create();
    FlightSource source = some_source(f, 65535);
    FlightRoom *room = must_alloc(sizeof *room);
    make_run("whole");
    assert_int_equal(mkdir("whole/flight", 0777), 0);
    for (int i = 0; i < 2 * FLIGHT_ENTRIES; i++)
        flight_begin(f, NULL, &copy);
    int folder = open("whole/flight", O_RDONLY | O_DIRECTORY), line = 0;
    assert_int_equal(
        flight_write(&source, (Dump){.number = 1, .reason = DUMP_SIGNAL}, folder, room), 0);
    close(folder);
    char *text = take_text("whole/flight/rank_65535.jsonl"), *at = strchr(text, '\n') + 1;
    for (; *at; at = strchr(at, '\n') + 1, line++) {
        char begin[256];
        snprintf(begin, sizeof begin,
                 "{\"n\":%d,\"kind\":\"copy\",\"name\":\"copy\",\"dtype\":\"\",\"elements\":%lld,",
                 FLIGHT_ENTRIES + 1 + line, (long long)INT64_MAX);
        assert_memory_equal(at, begin, strlen(begin));
    }
    assert_int_equal(line, FLIGHT_ENTRIES);
    free(text);
    free(room);
    flight_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_has_the_documented_lines),
        cmocka_unit_test(test_a_full_ring_buffer_is_written_completely),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
