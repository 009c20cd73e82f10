/* test_checkpoint_machines.c -- tests checkpoints of ranks on two machines that share a network
 * file system, where one machine sees some seconds later what the other has created. Machine b is
 * made up: its ranks have another working folder, in which a link to the run appears late. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/fs.h"
#include "tests/support/checkpoint/checkpoint_ranks.h"
#include "tests/support/files/scratch.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/thread_ranks.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds until machine b sees the run. */
static const double late = 0.5;

/* Ranks of machine b change to its working folder; only their own thread does so. */
static void enter_machine(const Comm *world)
{
    bool far = machines_of(world).own == 1;
    if (far && (unshare(CLONE_FS) != 0 || chdir("b") != 0)) rank_wrong(world, "is not far");
}

static void *show_run(void *unused)
{
    usleep((useconds_t)(1e6 * late));
    CHECK(symlink("../run", "b/run") == 0, "%s", "no link");
    return unused;
}

/* Runs the body on three ranks, of which rank 1 is on machine b. */
static double on_machines(RankBody body, void *context)
{
    pthread_t thread;
    double start = seconds_now();
    unlink("b/run");
    made_up_machines("aba");
    assert_int_equal(pthread_create(&thread, NULL, show_run, NULL), 0);
    thread_ranks(3, 60, body, context);
    pthread_join(thread, NULL);
    machines_forget();
    return seconds_now() - start;
}

static void save_on_machines(Comm *world, void *context)
{
    enter_machine(world);
    ranks_save_here(context, world);
}

/* The files of the checkpoint show that each rank has written its own. */
static void test_a_writer_waits_until_it_sees_the_folder_of_a_save(void **state)
{
    TestRanks save = {.ranks = 3, .tp = 1, .writers = 3, .run = "run", .step = 7};
    (void)state;
    assert_true(on_machines(save_on_machines, &save) >= late);
    if (!ranks_agree(&save)) fail_msg("%s", save.err[0]);
    for (int r = 1; r <= 3; r++) {
        char name[128];
        snprintf(name, sizeof name,
                 "run/checkpoints/step_00000007/model-0000%d-of-00003.safetensors", r);
        assert_int_equal(access(name, F_OK), 0);
    }
    TestRanks found = {.ranks = 2, .tp = 1, .writers = 1, .run = "run"};
    ranks_newest(&found);
    assert_int_equal(found.found[0], 7);
}

/* If rank 1 did not wait, the checkpoint would count as damaged and be moved away. */
static void test_an_existing_checkpoint_that_is_not_visible_yet_is_awaited(void **state)
{
    TestRanks save = {.ranks = 3, .tp = 1, .writers = 2, .run = "run", .step = 8};
    char id[2][32];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct stat st;
        if (i == 0)
            ranks_save(&save);
        else
            on_machines(save_on_machines, &save);
        if (!ranks_agree(&save)) fail_msg("%s", save.err[0]);
        assert_int_equal(stat("run/checkpoints/step_00000008", &st), 0);
        snprintf(id[i], sizeof id[i], "%llu", (unsigned long long)st.st_ino);
    }
    assert_string_equal(id[0], id[1]);
}

static void open_on_machines(Comm *world, void *context)
{
    char err[1024] = "";
    CheckpointIo io;
    Checkpoint *c = NULL;
    (void)context;
    enter_machine(world);
    checkpoint_io_open(&io, NULL, world);
    if (!checkpoint_open_newest(&io, "run", &c, err, sizeof err) || c == NULL)
        rank_wrong(world, "finds nothing: %s", err);
    else if (checkpoint_manifest(c)->state.steps != 9)
        rank_wrong(world, "finds step %lld", (long long)checkpoint_manifest(c)->state.steps);
    checkpoint_close(c);
    checkpoint_io_close(&io);
}

/* If rank 1 did not wait, all ranks would resume from an older checkpoint, or from none. */
static void test_all_ranks_wait_until_they_see_the_newest_checkpoint(void **state)
{
    TestRanks save = {.ranks = 3, .tp = 1, .writers = 2, .run = "run", .step = 9};
    (void)state;
    ranks_save(&save);
    assert_true(on_machines(open_on_machines, NULL) >= late);
}

static void test_fs_await_returns_at_once_if_there_is_no_folder(void **state)
{
    double start = seconds_now();
    (void)state;
    put_text("file", "");
    assert_true(fs_await("file"));
    assert_false(fs_await("file/name")); /* "file" is no folder, so nothing can appear in it */
    assert_true(seconds_now() - start < 5);
}

static int setup(void **state)
{
    if (enter_scratch(state) != 0) return -1;
    return mkdir("b", 0777) != 0 || mkdir("run", 0777) != 0 ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_writer_waits_until_it_sees_the_folder_of_a_save),
        cmocka_unit_test(test_an_existing_checkpoint_that_is_not_visible_yet_is_awaited),
        cmocka_unit_test(test_all_ranks_wait_until_they_see_the_newest_checkpoint),
        cmocka_unit_test(test_fs_await_returns_at_once_if_there_is_no_folder),
    };
    return cmocka_run_group_tests(tests, setup, leave_scratch);
}
