/* test_tensorboard.c -- TensorBoard event files: their bytes, what a resumed run keeps of the
 * earlier ones, and what remains of a file that was cut at any byte. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/report/tensorboard.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>

int fuzz_events(const uint8_t *data, size_t size);

static EventFile open_events(const char *folder, const char *run, int attempt, int64_t resumed)
{
    char err[512];
    EventFile f;
    const EventRun of = {
        .folder = folder, .run_folder = run, .attempt = attempt, .resumed_samples = resumed};
    if (!event_file_open(&f, &fs_system, &of, err, sizeof err)) fail_msg("%s", err);
    return f;
}

/* Writes an event file with a figure at each of the samples 10, 20, ... 10 n. */
static void write_events(const char *folder, const char *run, int attempt, int64_t resumed, int n)
{
    EventFile f = open_events(folder, run, attempt, resumed);
    for (int i = 1; i <= n; i++)
        event_file_put(&f, 10 * i, &(EventScalar){"loss", i}, 1);
    event_file_close(&f);
}

/* Returns the content of the only file that matches; the caller frees it. */
static uint8_t *only_file(const char *pattern, size_t *size)
{
    char err[512], *data;
    glob_t found;
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    if (!file_read(found.gl_pathv[0], &data, size, NULL, err, sizeof err)) fail_msg("%s", err);
    globfree(&found);
    return (uint8_t *)data;
}

/* Sizes of the records that this test writes: the first one, the start of a session, a figure. */
enum { FIRST = 16 + 9 + 15, SESSION = 16 + 9 + 2 + 4, FIGURE = 16 + 9 + 2 + 4 + 6 + 5 };

static void the_bytes_of_an_event_file_follow_the_tensorboard_format(void **unused)
{
    (void)unused;
    /* the length of the first record and its checksum, as TensorFlow and PyTorch write them */
    static const uint8_t head[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22};
    static const uint8_t figure[] = {0x10, 10, 0x2a, 13, 0x0a, 11, 0x0a, 4};
    size_t size;
    write_events("bytes", ".", 0, -1, 1);
    uint8_t *data = only_file("bytes/events.out.tfevents.*.0", &size);
    assert_int_equal(size, FIRST + FIGURE);
    assert_memory_equal(data, head, sizeof head);
    assert_memory_equal(data + 12 + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    const uint8_t *event = data + FIRST + 12 + 9;
    assert_memory_equal(event, figure, sizeof figure);
    assert_memory_equal(event + sizeof figure, "loss\x15\0\0\x80\x3f", 9); /* 1.0f */
    free(data);
}

static void a_text_is_written_as_a_tensor_of_one_string(void **unused)
{
    (void)unused;
    enum { LONG = 3000 };
    static const char expected[] = "\x0a\x01t"
                                   "\x4a\x08\x0a\x06\x0a\x04text"
                                   "\x42\xc5\x17\x08\x07\x12\x04\x12\x02\x08\x01\x42\xba\x17"
                                   "aaa";
    size_t size;
    char text[LONG + 1];
    memset(text, 'a', LONG);
    /* half a UTF-8 character, which is written as U+FFFD, three bytes */
    memcpy(text + LONG - 1, "\xc3", 2);
    EventFile f = open_events("text", ".", 0, -1);
    event_file_put_text(&f, 10, "t", text);
    event_file_put(&f, 10, &(EventScalar){"loss", 1}, 1);
    event_file_close(&f);
    uint8_t *data = only_file("text/events.out.tfevents.*.0", &size);
    assert_int_equal(events_until(data, size, 10), size);
    const uint8_t *event = data + FIRST + 12 + 9, *end = data + size - FIGURE - 4;
    assert_memory_equal(event, "\x10\x0a\x2a\xd8\x17\x0a\xd5\x17", 8);
    assert_memory_equal(event + 8, expected, sizeof expected - 1);
    assert_int_equal(end - event, 8 + sizeof expected - 1 - 3 + LONG + 2);
    assert_memory_equal(end - 4, "a\xef\xbf\xbd", 4);
    free(data);
}

static void a_file_truncated_at_any_byte_keeps_its_complete_records(void **unused)
{
    (void)unused;
    size_t size;
    write_events("cut", ".", 0, -1, 4);
    uint8_t *data = only_file("cut/events.out.tfevents.*", &size);
    for (size_t end = 0; end <= size; end++) {
        size_t records = end < FIRST ? 0 : 1 + (end - FIRST) / FIGURE;
        size_t whole = records == 0 ? 0 : FIRST + (records - 1) * FIGURE;
        assert_int_equal(events_until(data, end, 1000), whole);
    }
    for (size_t at = 0; at < size; at++) {
        size_t before = at < FIRST ? 0 : FIRST + (at - FIRST) / FIGURE * FIGURE;
        data[at] ^= 4;
        assert_int_equal(events_until(data, size, 1000), before);
        data[at] ^= 4;
    }
    assert_int_equal(events_until(data, size, 20), FIRST + 2 * FIGURE);
    assert_int_equal(events_until(data, size, 19), FIRST + FIGURE);
    fuzz_replay(fuzz_events, data, size, 91, 2000);
    free(data);
}

static void a_resumed_run_cuts_its_own_events_back(void **unused)
{
    (void)unused;
    size_t size;
    assert_true(fs_make_folders(&fs_system, "one", NULL, 0));
    assert_true(fs_make_folders(&fs_system, "two", NULL, 0));
    write_events("shared", "one", 0, -1, 4);
    write_events("shared", "two", 5, -1, 4);
    write_events("shared", "./one/", 1, 20, 0); /* the same folder under another name */
    uint8_t *data = only_file("shared/events.out.tfevents.*.0", &size);
    assert_int_equal(size, FIRST + 2 * FIGURE);
    free(data);
    data = only_file("shared/events.out.tfevents.*.1", &size);
    assert_int_equal(size, FIRST + SESSION);
    assert_memory_equal(data + FIRST + 12 + 9, "\x10\x15\x3a\x02\x08\x01", 6); /* from sample 21 */
    free(data);
    data = only_file("shared/events.out.tfevents.*.5", &size);
    assert_int_equal(size, FIRST + 4 * FIGURE); /* another run */
    free(data);
}

static void a_run_that_starts_again_moves_its_old_events_to_another_file(void **unused)
{
    (void)unused;
    size_t size;
    write_events("again", ".", 0, -1, 2);
    write_events("again", ".", 1, 0, 0);
    free(only_file("again/*tfevents*", &size));
    assert_int_equal(size, FIRST + SESSION);
    free(only_file("again/events.before-restart.*.0", &size));
    assert_int_equal(size, FIRST + 2 * FIGURE);
    /* a new run in the folder of an earlier one does not change the files of the earlier run */
    write_events("again", ".", 0, -1, 0);
    free(only_file("again/*tfevents*.1", &size));
    assert_int_equal(size, FIRST + SESSION);
}

static void events_are_written_when_the_disk_has_room_again(void **unused)
{
    (void)unused;
    char err[512];
    FaultyFs fs;
    EventFile f;
    size_t size;
    const EventRun of = {.folder = "full", .run_folder = ".", .resumed_samples = -1};
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    fs.disk = "full";
    fs.capacity = 1 << 20;
    if (!event_file_open(&f, &fs.ops, &of, err, sizeof err)) fail_msg("%s", err);
    size_t capacity = f.file.capacity;
    fs.capacity = FIRST + FIGURE / 2;
    for (int i = 1; i <= 3; i++)
        event_file_put(&f, 10 * i, &(EventScalar){"loss", i}, 1);
    event_file_sync(&f);
    assert_true(f.warned);
    free(only_file("full/*", &size));
    assert_int_equal(size, FIRST); /* no half record */
    fs.capacity = 1 << 20;
    event_file_put(&f, 40, &(EventScalar){"loss", 4}, 1);
    assert_int_equal(f.file.capacity, capacity); /* nothing was allocated */
    event_file_close(&f);
    uint8_t *data = only_file("full/*", &size);
    assert_int_equal(size, FIRST + 4 * FIGURE);
    assert_int_equal(events_until(data, size, 40), size);
    free(data);
}

static void the_error_names_a_folder_that_cannot_be_created(void **unused)
{
    (void)unused;
    char err[512];
    EventFile f;
    put_text("file", "");
    const EventRun of = {.folder = "file/events", .run_folder = ".", .resumed_samples = -1};
    assert_false(event_file_open(&f, &fs_system, &of, err, sizeof err));
    assert_non_null(strstr(err, "file/events"));
    event_file_close(&f);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_an_event_file_follow_the_tensorboard_format),
        cmocka_unit_test(a_text_is_written_as_a_tensor_of_one_string),
        cmocka_unit_test(a_file_truncated_at_any_byte_keeps_its_complete_records),
        cmocka_unit_test(a_resumed_run_cuts_its_own_events_back),
        cmocka_unit_test(a_run_that_starts_again_moves_its_old_events_to_another_file),
        cmocka_unit_test(events_are_written_when_the_disk_has_room_again),
        cmocka_unit_test(the_error_names_a_folder_that_cannot_be_created),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
