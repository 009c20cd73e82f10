/* test_ring.c -- files of flight recorders: what the parser keeps of a file, which files it refuses
 * with which message, and which files of a folder belong to the newest dump. */
#include "model/core/check.h"
#include "tests/fuzz/fuzz_flight.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/scratch.h"
#include "tests/support/flight/planted_ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one file ----------------------------------------------------------------------------------
 */

/* A rank of a group of four, in its 21st collective there. */
static void plant_call_21(PlantedRing *ring)
{
    *ring = planted_ring(3, 8);
    planted_group(ring, 5, "dp", 1, 2, 4);
    ring->n = 1000;
    for (int call = 1; call <= 20; call++)
        planted_collective(ring, "all-gather", "comm", 5, call, 30 - call, 29.5 - call);
    planted_message(ring, true, "p2p", 5, 2, 7, 9, 8);
    planted_collective(ring, "all-reduce", "comm", 5, 21, 8.25, NAN);
}

static void test_parsing_keeps_unfinished_entries_and_the_last_calls_of_a_group(void **state)
{
    (void)state;
    PlantedRing planted;
    plant_call_21(&planted);
    RingFile *r = planted_parse(&planted);
    assert_int_equal(r->rank, 3);
    assert_int_equal(r->ranks, 8);
    assert_int_equal(r->pid, 103);
    assert_string_equal(r->host, "n1");
    assert_string_equal(r->dump, "0123456789abcdef");
    assert_true(r->reason == DUMP_DEADLINE && r->action == FLIGHT_BACKWARD);
    assert_true(r->step == 12 && r->micro_batch == 3 && r->attempt == 1 && r->issued == 1022);
    assert_true(r->time == 1790000000);
    assert_int_equal(r->groups, 1);
    assert_int_equal(r->group[0].size, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ring_member(&r->group[0], i), 1 + 2 * i);
    assert_int_equal(ring_member(&r->group[0], 4), -1);
    assert_int_equal(r->opens, 1);
    const RingEntry *e = &r->open[0];
    assert_true(e->n == 1022 && e->kind == FLIGHT_COLLECTIVE && e->stream == GRAPH_COMM);
    assert_true(e->group == 0 && e->call == 21 && e->elements == 64 && e->peer == -1);
    assert_true(e->begun == -8.25 && isnan(e->ended) && e->unit == -1);
    assert_string_equal(e->name, "all-reduce");
    assert_string_equal(e->dtype, "f32");
    assert_int_equal(r->last.n, 1021);
    const RingPlace *place = ring_place(r, 0, -1, false);
    assert_true(place->begun == 21 && place->ended == 20 && place->first == 21);
    assert_true(place->seen[21 % RING_SEEN].call == 21 && !place->seen[21 % RING_SEEN].ended);
    assert_true(place->seen[14 % RING_SEEN].call == 14 && place->seen[14 % RING_SEEN].ended);
    place = ring_place(r, 0, 2, true);
    assert_true(place->begun == 7 && place->ended == 7 && place->first == 0);
    assert_null(ring_place(r, 0, 2, false));
    assert_true(fabs(r->longest - 1) < 1e-9);
    ring_free(r);
}

/* Of each stream's unfinished entries the first RING_FIRST and the last one are kept. */
static void test_the_first_and_last_of_many_unfinished_entries_are_kept(void **state)
{
    (void)state;
    PlantedRing planted = planted_ring(0, 1);
    for (int i = 0; i < 100; i++) {
        planted_entry(&planted, "op", "linear_forward", "compute", 10, NAN);
        planted_entry(&planted, "copy", "copy", "copy", 10, NAN);
    }
    RingFile *r = planted_parse(&planted);
    assert_int_equal(r->opens, 2 * (RING_FIRST + 1));
    for (int i = 0; i < 2 * RING_FIRST; i++)
        assert_int_equal(r->open[i].n, i + 1);
    assert_int_equal(r->open[2 * RING_FIRST].n, 199);
    assert_int_equal(r->open[2 * RING_FIRST + 1].n, 200);
    ring_free(r);
}

/* Returns a copy of the text in which the first `from` is replaced by `to`; the caller frees it. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("%s is not in the file", from);
    return text_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static const struct {
    const char *from, *to, *said;
} refused[] = {
    {"train.c flight", "train.c flights", "line 1, byte 27: this is no file of a flight recorder"},
    {"\"version\":1", "\"version\":2", "version 2 of the format; this program reads version 1"},
    {"0123456789abcdef", "0123456789abcdeF", "\"dump\" has 16 hexadecimal digits"},
    {"deadline", "boredom", "\"reason\" cannot be \"boredom\""},
    {"\"ranks\":8", "\"ranks\":3", "\"ranks\" is 3, which is not possible"},
    {"\"rank\":3", "\"rank\":65536", "\"rank\" is 65536"},
    {"\"pid\":103", "\"pit\":103", "the key \"pid\" is needed here"},
    {"\"host\":\"n1\"", "\"host\":\"n\\u0031\"", "a character that \"host\" cannot have"},
    {"\"time\":1790000000.000000", "\"time\":1.", "a decimal number is needed here"},
    {"\"time\":1790000000.000000", "\"time\":01.5", "a decimal number is needed here"},
    {"\"time\":1790000000.000000", "\"time\":1790000000000000000",
     "a decimal number is needed here"},
    {"\"time\":1790000000.000000", "\"time\":1790000000.000000000",
     "a decimal number is needed here"},
    {"\"time\":1790000000.000000", "\"time\":1e9", ", is needed here, not e"},
    {"\"entries\":22}", "\"entries\":22,\"more\":1}", "} is needed here, not ,"},
    {"\"entries\":22", "\"entries\":21", "line 24, byte 211: more than the 21 entries"},
    {"\"entries\":22", "\"entries\":23", "it has 22 entries, not 23 as its first line says"},
    {"[[1,2,4]]", "[[1,2,5]]", "line 2, byte 39: ranks that the world of 8 does not have"},
    {"[[1,2,4]]", "[[1,0,2]]", "ranks that the world of 8 does not have"},
    {"[[1,2,4]]", "[[1,2,4],[0,1,8]]", "a group of more ranks than the world has"},
    {"\"group\":5,\"name\"", "\"group\":128,\"name\"", "\"group\" is 128, which is not possible"},
    {"\"group\":5,\"name\"", "\"group\":6,\"name\"", "there is no group 5"},
    {"\"n\":1002", "\"n\":1001", "line 4, byte 9: \"n\" is 1001, which is not possible"},
    {"\"kind\":\"collective\"", "\"kind\":\"meeting\"", "\"kind\" cannot be \"meeting\""},
    {"\"stream\":\"comm\"", "\"stream\":\"river\"", "\"stream\" cannot be \"river\""},
    {"\"elements\":64", "\"elements\":-64", "\"elements\" is -64, which is not possible"},
    {"\"ended\":-28.500000", "\"ended\":-29.500000", "an end before the begin"},
    {"\"ended\":null", "\"ended\":nul", "a decimal number is needed here"},
    {"\"name\":\"all-gather\"", "\"name\":\"all-gather-of-a-very-long-name-indeed\"",
     "\"name\" has more than 31 characters"},
    {"}\n{\"group\"", "}{\"group\"", "the text should end here, not go on with {"},
};

static void test_a_file_with_invalid_contents_is_refused(void **state)
{
    (void)state;
    PlantedRing planted;
    plant_call_21(&planted);
    char err[512], *text = planted_text(&planted);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *wrong = replaced(text, refused[i].from, refused[i].to);
        if (ring_parse(wrong, strlen(wrong), err, sizeof err))
            fail_msg("accepted: %s", refused[i].to);
        if (strstr(err, refused[i].said) == NULL)
            fail_msg("%s: %s, not: %s", refused[i].to, err, refused[i].said);
        free(wrong);
    }
    free(text);
}

static void test_a_file_is_refused_wherever_it_is_cut_off(void **state)
{
    (void)state;
    PlantedRing planted;
    plant_call_21(&planted);
    char err[512], *text = planted_text(&planted);
    for (size_t n = 0; n < strlen(text); n++)
        if (ring_parse(text, n, err, sizeof err)) fail_msg("accepted after %zu bytes", n);
    free(text);
}

static void test_mutated_files_are_refused_or_read_as_valid_entries(void **state)
{
    (void)state;
    enum { ROUNDS = 3000, STREAM = 61 };
    PlantedRing one, two;
    plant_call_21(&one);
    plant_call_21(&two);
    two.rank = 1;
    char *a = planted_text(&one), *b = planted_text(&two), *both = text_format("%s%s", a, b);
    fuzz_replay(fuzz_flight, both, strlen(both), STREAM, ROUNDS);
    free(a);
    free(b);
    free(both);
}

/* ---- the folder --------------------------------------------------------------------------------
 */

static void plant_file(const char *name, PlantedRing ring)
{
    char *text = planted_text(&ring), *path = text_format("run/flight/%s", name);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fputs(text, to);
    fclose(to);
    free(text);
    free(path);
}

static PlantedRing of_dump(int rank, int ranks, const char *dump, double time)
{
    PlantedRing ring = planted_ring(rank, ranks);
    ring.dump = dump;
    ring.time = time;
    return ring;
}

static const char *const OLD = "00000000000000aa", *const NEW = "00000000000000bb";

static void test_the_newest_dump_of_a_folder_is_read(void **state)
{
    char err[1024];
    bool missing;
    FlightFiles files;
    (void)state;
    mkdir("run", 0777);
    assert_false(flight_files_read(&files, "run", 0, &missing, err, sizeof err));
    assert_true(missing);
    assert_non_null(strstr(err, "run holds no flight recorder"));
    flight_files_free(&files);
    mkdir("run/flight", 0777);
    plant_file("rank_00000.jsonl", of_dump(0, 5, NEW, 2000));
    plant_file("rank_00001.jsonl", of_dump(1, 5, OLD, 1000)); /* rank 1 has not answered */
    plant_file("rank_00003.jsonl", of_dump(3, 5, NEW, 1999));
    plant_file("rank_00004.jsonl", of_dump(2, 5, NEW, 1999)); /* content of another rank */
    plant_file("rank_00006.jsonl", of_dump(6, 8, OLD, 1000)); /* of a larger world */
    plant_file("rank_00002.jsonl.tmp", of_dump(2, 5, NEW, 2000));
    plant_file("rank_7.jsonl", of_dump(2, 5, NEW, 3000));
    plant_file("bank_00002.jsonl", of_dump(2, 5, NEW, 3000));
    plant_file("tank_00002.jsonl", of_dump(2, 5, NEW, 3000));
    assert_true(flight_files_read(&files, "run", 0, &missing, err, sizeof err));
    assert_int_equal(files.ranks, 5);
    assert_true(files.read == 2 && files.silent == 2 && files.unknown == 1);
    assert_true(files.state[0] == RANK_READ && files.state[1] == RANK_SILENT &&
                files.state[2] == RANK_SILENT && files.state[3] == RANK_READ &&
                files.state[4] == RANK_UNKNOWN);
    assert_true(files.ring[1]->pid == 101 && files.ring[2] == NULL);
    assert_true(files.first == files.ring[0]);
    assert_int_equal(files.damaged.count, 1);
    assert_string_equal(files.damaged.item[0], "run/flight/rank_00004.jsonl: line 1 is of rank 2");
    flight_files_free(&files);
}

static void test_a_link_in_the_folder_is_not_followed(void **state)
{
    char err[1024];
    bool missing;
    FlightFiles files;
    (void)state;
    mkdir("run", 0777);
    mkdir("run/flight", 0777);
    plant_file("elsewhere", of_dump(0, 1, NEW, 2000));
    assert_int_equal(symlink("elsewhere", "run/flight/rank_00000.jsonl"), 0);
    assert_false(flight_files_read(&files, "run", 0, &missing, err, sizeof err));
    assert_false(missing);
    assert_non_null(strstr(err, "no file in run/flight can be read; the first: "));
    flight_files_free(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parsing_keeps_unfinished_entries_and_the_last_calls_of_a_group),
        cmocka_unit_test(test_the_first_and_last_of_many_unfinished_entries_are_kept),
        cmocka_unit_test(test_a_file_with_invalid_contents_is_refused),
        cmocka_unit_test(test_a_file_is_refused_wherever_it_is_cut_off),
        cmocka_unit_test(test_mutated_files_are_refused_or_read_as_valid_entries),
        cmocka_unit_test_setup_teardown(test_the_newest_dump_of_a_folder_is_read, enter_scratch,
                                        leave_scratch),
        cmocka_unit_test_setup_teardown(test_a_link_in_the_folder_is_not_followed, enter_scratch,
                                        leave_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
