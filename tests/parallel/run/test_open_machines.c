/* test_open_machines.c -- tests how a run opens its data if a launcher has started its ranks on
 * several machines: the text is prepared once on each file system while the others wait, and a
 * machine that does not see the run folder or has other data is named. The machines are made up; a
 * machine with a file system of its own is one whose ranks have another working folder. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/run/run.h"
#include "parallel/run/waiting.h"
#include "tests/parallel/run/slow_rank.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/trainer/run_fixture.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* What the ranks of a world do, and what each has to find. */
typedef struct {
    const char *map;
    const char *folders; /* of each rank: '.' the common working folder, or "a" to "z" of its own */
    const char
        *cached; /* of each rank: '1' if it must find a prepared text, '0' if it prepares it */
    const char *text, *out;
    bool dry;
} Opening;

/* Gives this thread a working folder of its own. Returns false if the system refuses that. */
static bool change_folder(char name)
{
    char path[2] = {name, '\0'};
    return name == '.' || (unshare(CLONE_FS) == 0 && chdir(path) == 0);
}

static void open_rank(Comm *world, void *context)
{
    const Opening *o = context;
    char text[64], back[512];
    char *sets[] = {text, "train_batch_size=24", "gradient_accumulation_steps=auto"};
    RunArguments arguments = {.config = "tiny.json",
                              .set = {.count = 3, .item = (const char **)sets},
                              .ranks = world->size,
                              .out = o->out,
                              .dry_run = o->dry};
    Run run;
    CHECK(getcwd(back, sizeof back) != NULL, "no working folder on rank %d", world->rank);
    snprintf(text, sizeof text, "data.text=%s", o->text);
    run_configure(&run, &arguments);
    if (!change_folder(o->folders[world->rank])) rank_wrong(world, "has no folder of its own");
    run.world = world;
    run.lead = world->rank == 0;
    run_open_data(&run);
    if (!run.data.random && run.data.preparation.cached != (o->cached[world->rank] == '1'))
        rank_wrong(world, "%s the text", run.data.preparation.cached ? "finds" : "prepares");
    if (run.config->model.vocab_size <= 0) rank_wrong(world, "has no vocabulary");
    if (o->dry != run.data.random) rank_wrong(world, "has %s data", o->dry ? "some" : "no");
    data_close(&run.data);
    config_free(run.config);
    if (chdir(back) != 0) rank_wrong(world, "does not come back");
}

static void remove_cache(void)
{
    (void)!system("rm -rf out ?/out");
}

static void open_on(const Opening *o)
{
    remove_cache();
    made_up_machines(o->map);
    thread_ranks((int)strlen(o->map), 60, open_rank, (void *)(uintptr_t)o);
    machines_forget();
}

static void test_a_text_is_prepared_once_on_each_file_system(void **state)
{
    static const Opening good[] = {
        {"aabb", "....", "0111", "text.txt", "seen", false},
        {"aaaa", "....", "0111", "text.txt", NULL, false},
        {"abab", ".b.b", "0011", "text.txt", "/tmp", false},
        {"aabbcc", "..bbcc", "010101", "text.txt", "/tmp", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        open_on(&good[i]);
    remove_cache();
}

/* If all see a prepared text, nobody prepares it. Without data a dry run goes on, on all ranks. */
static void test_no_rank_prepares_text_that_is_already_prepared(void **state)
{
    static Opening again = {"aabb", "....", "1111", "text.txt", NULL, false};
    static const Opening none = {"aabb", "....", "0000", "missing.txt", NULL, true};
    (void)state;
    open_on(&(Opening){"aabb", "....", "0111", "text.txt", NULL, false});
    made_up_machines("aabb");
    thread_ranks(4, 60, open_rank, &again);
    machines_forget();
    open_on(&none);
}

/* ---- ends ------------------------------------------------------------------------------------ */

typedef struct {
    const Opening *opening;
    double timeout;
    double delay; /* of the message about waiting */
    int slow;     /* the rank whose clock is so fast that it waits for no file; -1: none */
} Child;

static void open_in_child(void *context)
{
    const Child *child = context;
    const Opening *o = child->opening;
    waiting_set_delay(child->delay);
    slow_rank = child->slow;
    made_up_machines(o->map);
    thread_ranks((int)strlen(o->map), child->timeout, open_rank, (void *)(uintptr_t)o);
    exit(EXIT_OK);
}

/* Returns what the ranks print until they end with this code. */
static char *open_and_end(const Opening *o, double timeout, double delay, int code)
{
    static char text[1 << 14];
    remove_cache();
    int ended =
        child_run(open_in_child, &(Child){o, timeout, delay, code == EXIT_CANNOT_CREATE ? 1 : -1},
                  text, sizeof text);
    if (ended != code) fail_msg("%d, not %d: %s", ended, code, text);
    return text;
}

/* Writes a text whose preparation takes at least 0.6 seconds here, and sets *o to it. */
static void make_slow(Opening *o)
{
    *o = (Opening){"aabb", "....", "0111", "long.txt", NULL, false};
    double taken = 0;
    for (unsigned words = 1 << 19; taken < 0.6; words *= 2) {
        FILE *to = fopen(o->text, "w");
        assert_non_null(to);
        for (unsigned i = 0; i < words; i++)
            fprintf(to, "%x%c", (i * 2654435761u) >> 12, i % 9 == 8 ? '\n' : ' ');
        fclose(to);
        double start = seconds_now();
        open_on(o);
        taken = seconds_now() - start;
    }
}

/* The text takes longer than the deadline of the ranks' other waits. Only the first rank of the
 * other machine says what it waits for. */
static void test_ranks_wait_for_the_text_without_deadline_and_print_that_they_wait(void **state)
{
    Opening slow;
    (void)state;
    make_slow(&slow);
    char *said = open_and_end(&slow, 0.1, 0.1, EXIT_OK);
    says(said, "[rank 2] waiting for rank 0 to prepare the text\n");
    assert_null(strstr(said, "[rank 1]"));
    assert_null(strstr(said, "[rank 3]"));
    assert_null(strstr(open_and_end(&slow, 0.1, 60, EXIT_OK), "waiting"));
}

static bool token_is_left(void)
{
    return system("ls -A . seen | grep -q train-sees") == 0;
}

static void test_the_error_names_a_machine_that_does_not_see_the_run_folder(void **state)
{
    static const Opening out = {"abab", ".b.b", "0000", "text.txt", "seen", false};
    (void)state;
    char *said = open_and_end(&out, 60, 60, EXIT_CANNOT_CREATE);
    says(said, "error[73] rank 1 on host-b does not see the file seen/.train-sees-");
    says(said, ", which rank 0 on host-a has written where the run folder will be (No such file or "
               "directory, in /");
    says(said, "/b); give --out a folder of a file system that all machines share, and start all "
               "ranks in the same working folder\n");
    assert_false(token_is_left());
    /* If all machines see the folder, the start goes on. One rank of each other machine looks for
     * the file, because the ranks of a machine share its file systems. */
    open_on(&(Opening){"aabb", "....", "0111", "text.txt", "seen", false});
    assert_false(token_is_left());
}

static void fail_soon(Comm *world, void *context)
{
    if (world->rank == 2) {
        usleep(200000);
        (fail)(EXIT_DAMAGED, "torn");
    }
    open_rank(world, context);
}

static void fail_in_child(void *context)
{
    made_up_machines("aab");
    thread_ranks(3, 60, fail_soon, context);
}

/* Rank 0 has written the file for which the other machines look, and waits for the rank that fails.
 */
static void test_the_shared_folder_check_removes_its_file_if_another_rank_fails(void **state)
{
    static Opening o = {"aab", "...", "000", "text.txt", "seen", false};
    char text[4096];
    (void)state;
    assert_int_equal(child_run(fail_in_child, &o, text, sizeof text), EXIT_DAMAGED);
    assert_false(token_is_left());
}

static void test_a_run_whose_folder_cannot_be_created_exits_with_code_73(void **state)
{
    static const Opening out = {"ab", "..", "00", "text.txt", "/proc/none/run", false};
    (void)state;
    says(open_and_end(&out, 60, 60, EXIT_CANNOT_CREATE),
         "error[73] cannot create /proc/.train-sees-");
}

static void test_the_error_names_a_machine_with_other_data(void **state)
{
    static const Opening other = {"aabb", "..bb", "0001", "other.txt", "/tmp", false};
    static const Opening missing = {"aabb", "..bb", "0001", "seen.txt", "/tmp", false};
    (void)state;
    char *text = take_text("text.txt");
    put_text("seen.txt", text);
    put_text("other.txt", text);
    text[7] = '!';
    put_text("b/other.txt", text);
    free(text);
    char *said = open_and_end(&other, 60, 60, EXIT_CONFIG);
    says(said, "error[78] rank 2 on host-b has other data than rank 0: ");
    says(said, "; give all machines the same files\n");
    said = open_and_end(&missing, 60, 60, EXIT_MISSING);
    says(said, "error[66] rank 2 on host-b: ");
    says(said, "seen.txt");
}

static int setup(void **state)
{
    if (run_fixture_setup(state) != 0) return -1;
    char *text = take_text("text.txt");
    if (mkdir("b", 0777) != 0 || mkdir("c", 0777) != 0 || mkdir("seen", 0777) != 0) return -1;
    put_text("b/text.txt", text);
    put_text("c/text.txt", text);
    free(text);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text_is_prepared_once_on_each_file_system),
        cmocka_unit_test(test_no_rank_prepares_text_that_is_already_prepared),
        cmocka_unit_test(test_ranks_wait_for_the_text_without_deadline_and_print_that_they_wait),
        cmocka_unit_test(test_the_error_names_a_machine_that_does_not_see_the_run_folder),
        cmocka_unit_test(test_the_shared_folder_check_removes_its_file_if_another_rank_fails),
        cmocka_unit_test(test_a_run_whose_folder_cannot_be_created_exits_with_code_73),
        cmocka_unit_test(test_the_error_names_a_machine_with_other_data),
    };
    return cmocka_run_group_tests(tests, setup, leave_scratch);
}
