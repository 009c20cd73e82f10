/* test_print.c -- what `./train flight` prints about the files of a folder: each sentence in one
 * line, and what it prints if the files of some ranks are damaged. Also what a run prints about
 * them when it ends. */
#include "model/core/check.h"
#include "parallel/flight/print.h"
#include "parallel/flight/say.h"
#include "tests/support/files/child.h"
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

enum { RANKS = 4 };

/* Writes the file of a rank; only half of it if `damaged`. */
static void write_file(int rank, PlantedRing *ring, bool damaged)
{
    char *text = planted_text(ring), *path = text_format("run/flight/rank_%05d.jsonl", rank);
    size_t n = strlen(text);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fwrite(text, 1, damaged ? n / 2 : n, to);
    fclose(to);
    free(text);
    free(path);
}

/* Writes the file of a rank: all ranks wait in call 17 of the world, except rank `late`, which is
 * in its loader. */
static void plant(int rank, int late, const char *reason, double seconds, bool damaged)
{
    PlantedRing ring = planted_ring(rank, RANKS);
    ring.reason = reason;
    planted_group(&ring, 0, "world", 0, 1, RANKS);
    planted_collective(&ring, "all-reduce", "compute", 0, 16, 21, 20.5);
    if (rank == late)
        planted_entry(&ring, "work", "data", "host", 20, NAN);
    else
        planted_collective(&ring, "all-reduce", "compute", 0, 17, seconds, NAN);
    write_file(rank, &ring, damaged);
}

/* Returns what is printed about run/flight. */
static char *printed(bool json)
{
    FlightReading r;
    char err[1024], *text;
    size_t n;
    bool missing;
    if (!flight_reading_open(&r, "run", 0, &missing, err, sizeof err)) fail_msg("%s", err);
    FILE *to = text_stream(&text, &n);
    if (json)
        flight_print_json(to, &r);
    else
        flight_print(to, &r);
    fclose(to);
    flight_reading_close(&r);
    return text;
}

static void expect_in(bool json, const char *part)
{
    char *text = printed(json);
    if (strstr(text, part) == NULL) fail_msg("\"%s\" is not in:\n%s", part, text);
    free(text);
}

static void make_folders(void)
{
    assert_int_equal(mkdir("run", 0777), 0);
    assert_int_equal(mkdir("run/flight", 0777), 0);
}

static void test_sentences_are_not_wrapped_if_the_output_is_not_a_terminal(void **state)
{
    (void)state;
    make_folders();
    for (int rank = 0; rank < RANKS; rank++)
        plant(rank, 2, "deadline", 18, false);
    expect_in(false, "\ncause       data\n");
    expect_in(false,
              "\nbegins      rank 2 is late: it has been in the wait for its training data for "
              "20 s, in the backward pass of micro-batch 3 of step 12\n");
    expect_in(false, "\nwhat to do  look at the disk or network that holds the training data, on "
                     "the machine of this rank: is it full of requests, or gone?\n");
    expect_in(false, "\nwaits       ranks 0, 1, 3 have waited up to 18 s for rank 2 in all-reduce "
                     "of 64 f32 (group world, call 17), in the backward pass of micro-batch 3 of "
                     "step 12\n");
}

/* The file of rank 2 is damaged, or those of all ranks but 3: the hang may begin at these ranks. */
static void test_without_the_files_of_some_ranks_the_cause_is_unknown(void **state)
{
    static const char *const reason[] = {"signal", "deadline"};
    (void)state;
    make_folders();
    for (int i = 0; i < 4; i++) {
        int known = i / 2 ? 1 : RANKS - 1;
        for (int rank = 0; rank < RANKS; rank++)
            plant(rank, 2, reason[i % 2], i / 2 ? 0.1 : 18, known == 1 ? rank < 3 : rank == 2);
        expect_in(false, "\ncause       unknown\n");
        expect_in(true, "\"cause\":\"unknown\",\"late\":[],\"begins\":\"where it begins cannot be "
                        "told from what was read: the file");
        expect_in(false, known == 1 ? "the files of ranks 0-2 are damaged or were left out. The "
                                      "longest wait of the others has lasted 100 ms\n"
                                    : "the file of rank 2 is damaged or was left out. The longest "
                                      "wait of the others has lasted 18 s\n");
        expect_in(true, i % 2 == 0 ? "\"advice\":\"ask for another dump (kill -USR2 PID)"
                                   : "\"advice\":\"read the error message");
        expect_in(false, "; no rank whose file was read is missing there\n");
    }
}

/* Rank 0 waits for rank 1, and rank 1 for rank 2, whose file is damaged. These waits are not a
 * cycle. */
static void test_a_wait_for_an_unknown_rank_is_not_reported_as_a_cycle(void **state)
{
    (void)state;
    make_folders();
    for (int rank = 0; rank < 3; rank++) {
        PlantedRing ring = planted_ring(rank, 3);
        planted_group(&ring, 0, "world", 0, 1, 3);
        if (rank == 0) planted_message(&ring, false, "compute", 0, 1, 4, 18, NAN);
        if (rank == 1) planted_message(&ring, false, "compute", 0, 2, 9, 18, NAN);
        write_file(rank, &ring, rank == 2);
    }
    expect_in(false, "\ncause       unknown\n");
}

enum { CHAIN = 6 };

static void say(void *run)
{
    flight_say(run, (Dump){.number = 1, .reason = DUMP_DEADLINE});
}

/* Each rank waits for a message of the next one, and the last one computes: a run that ends prints
 * that, and of the waits only the three that are nearest to the last rank. */
static void test_the_output_for_a_chain_of_waits_names_its_start_and_the_waiting_ranks(void **state)
{
    (void)state;
    make_folders();
    for (int rank = 0; rank < CHAIN; rank++) {
        PlantedRing ring = planted_ring(rank, CHAIN);
        planted_group(&ring, 0, "world", 0, 1, CHAIN);
        if (rank < CHAIN - 1)
            planted_message(&ring, false, "compute", 0, rank + 1, 4, 18, NAN);
        else
            planted_entry(&ring, "op", "linear_forward", "compute", 20, NAN);
        write_file(rank, &ring, false);
    }
    char said[4096];
    const char *at = said;
    child_run(say, "run", said, sizeof said);
    for (int line = 0; line < 5; line++) {
        char begin[80] = "flight: rank 5 is late: it has been in the op linear_forward for 20 s";
        if (line > 0)
            snprintf(begin, sizeof begin, "flight: rank %d has waited 18 s for rank %d in receive",
                     CHAIN - 1 - line, CHAIN - line);
        if (line == 4) snprintf(begin, sizeof begin, "flight: ./train flight run shows more\n");
        if (strncmp(at, begin, strlen(begin)) != 0)
            fail_msg("\"%s\" is not line %d of:\n%s", begin, line + 1, said);
        at = strchr(at, '\n') + 1;
    }
    assert_string_equal(at, "");
}

#define SCRATCH(test) cmocka_unit_test_setup_teardown(test, enter_scratch, leave_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH(test_sentences_are_not_wrapped_if_the_output_is_not_a_terminal),
        SCRATCH(test_without_the_files_of_some_ranks_the_cause_is_unknown),
        SCRATCH(test_a_wait_for_an_unknown_rank_is_not_reported_as_a_cycle),
        SCRATCH(test_the_output_for_a_chain_of_waits_names_its_start_and_the_waiting_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
