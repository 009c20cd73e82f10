/* test_moved_folder.c -- tests of a run whose folder is renamed or replaced while it trains. */
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void rename_folder(Run *run)
{
    (void)run;
    assert_int_equal(rename("moved", "elsewhere"), 0);
}

/* Another folder under the old name is not the run's either. */
static void replace_folder(Run *run)
{
    rename_folder(run);
    assert_int_equal(mkdir("moved", 0777), 0);
}

static void rename_back(Run *run)
{
    (void)run;
    assert_int_equal(rename("elsewhere", "moved"), 0);
}

/* The saves of a run whose folder was renamed fail, and so it ends with 74. No new folder appears
 * under the old name: it would lack the config, and no command could use it. */
static void test_a_run_whose_folder_is_renamed_exits_with_code_74(void **state)
{
    (void)state;
    static const char *const said_so[] = {"was renamed or removed", "was replaced"};
    for (int ranks = 1; ranks <= 2; ranks++) {
        disturbance = (Disturbance){.kind = WORK_STEP,
                                    .round = 2,
                                    .act = ranks == 1 ? rename_folder : replace_folder,
                                    .ranks = ranks};
        char *said = run_expecting("moved", NULL, EXIT_INPUT_OUTPUT);
        char text[256];
        snprintf(text, sizeof text,
                 "step 4 is not saved: the folder moved %s while this run writes to it; rename it "
                 "back to moved; trying again at the next interval\n",
                 said_so[ranks - 1]);
        says(said, text);
        says(said, "the run reached its goal, but its last checkpoint is not written");
        assert_int_equal(is_there("moved"), ranks == 2);
        assert_false(is_there("moved/checkpoints"));
        assert_true(is_there("elsewhere/checkpoints/step_00000002"));
        assert_false(is_there("elsewhere/result.json"));
        free(said);
        if (ranks == 2) assert_int_equal(rmdir("moved"), 0);
        rename_back(NULL);
        disturbance = (Disturbance){.ranks = ranks};
        free(run_expecting("moved", NULL, 0));
        assert_true(is_there("moved/result.json"));
        assert_int_equal(rename("moved", ranks == 1 ? "moved-1" : "moved-2"), 0);
    }
}

static void lose_and_find_folder(Run *run)
{
    if (run->trainer.steps == 2) rename_folder(run);
    if (run->trainer.steps == 4) rename_back(run);
}

static void test_a_run_whose_folder_gets_its_name_back_continues(void **state)
{
    (void)state;
    disturbance = (Disturbance){.kind = WORK_STEP, .act = lose_and_find_folder, .each = true};
    char *said = run_expecting("moved", NULL, 0);
    says(said, "step 4 is not saved: ");
    assert_false(is_there("moved/checkpoints/step_00000004"));
    assert_true(is_there("moved/checkpoints/step_00000006"));
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_whose_folder_is_renamed_exits_with_code_74),
        cmocka_unit_test(test_a_run_whose_folder_gets_its_name_back_continues),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
