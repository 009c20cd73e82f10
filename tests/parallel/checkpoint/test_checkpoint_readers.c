/* test_checkpoint_readers.c -- reading checkpoints in difficult cases: without permission, from a
 * folder that cannot be listed, while a live run prunes, and with hostile text in the manifest. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/files/nobody.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void an_unreadable_checkpoint_folder_is_an_error_not_an_empty_list(void **state)
{
    (void)state;
    TestRun r;
    Checkpoint *c = NULL;
    int64_t *steps;
    test_run_open(&r);
    assert_int_equal(checkpoint_list(r.run, &steps, r.err, sizeof r.err), 0);
    free(steps);
    char *folder = text_format("%s/checkpoints", r.run);
    assert_int_equal(symlink("nowhere", folder), 0);
    assert_int_equal(checkpoint_list(r.run, &steps, r.err, sizeof r.err), -1);
    assert_null(steps);
    assert_non_null(strstr(r.err, "symbolic link to a folder that is not there"));
    assert_false(checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err));
    assert_int_equal(test_ckpt("list", r.run, "/dev/null"), EXIT_MISSING);
    assert_int_equal(unlink(folder), 0);
    close(open(folder, O_WRONLY | O_CREAT, 0666));
    assert_int_equal(checkpoint_list(r.run, &steps, r.err, sizeof r.err), -1);
    assert_non_null(strstr(r.err, strerror(ENOTDIR)));
    assert_int_equal(unlink(folder), 0);
    free(folder);
    test_run_close(&r);
}

/* Runs as a user without permission for the checkpoints. Returns 0, or the number of the first
 * check that failed. */
static int without_permission(void *context)
{
    TestRun *r = context;
    Checkpoint *c = NULL;
    int64_t *steps;
    char *three = checkpoint_path(r->run, 3), *folder = text_format("%s/checkpoints", r->run);
    char *weights = test_run_file(r, 3, "model.safetensors");
    if (chmod(weights, 0) != 0) return 1;
    if (checkpoint_open(three, &c, r->err, sizeof r->err)) return 2;
    if (error_exit_code(r->err, EXIT_DAMAGED) != EXIT_PERMISSION) return 3;
    if (checkpoint_open_newest(&r->io, r->run, &c, r->err, sizeof r->err))
        return 4; /* must not fall back to step 2 */
    if (error_exit_code(r->err, EXIT_DAMAGED) != EXIT_PERMISSION) return 5;
    if (test_ckpt("verify", r->run, "/dev/null") != EXIT_PERMISSION) return 6;
    if (test_ckpt("list", r->run, "/dev/null") != EXIT_PERMISSION) return 7;
    if (test_ckpt("inspect", three, "/dev/null") != EXIT_PERMISSION) return 8;
    if (test_run_save(r, 3)) return 9; /* may be intact: not "saved", and not written again */
    if (error_exit_code(r->err, EXIT_DAMAGED) != EXIT_PERMISSION) return 10;
    if (chmod(weights, 0600) != 0 || !test_run_whole(r, 3)) return 11;
    if (chmod(folder, 0300) != 0) return 12;
    if (checkpoint_list(r->run, &steps, r->err, sizeof r->err) != -1) return 13;
    if (error_exit_code(r->err, EXIT_MISSING) != EXIT_PERMISSION) return 14;
    if (checkpoint_open_newest(&r->io, r->run, &c, r->err, sizeof r->err)) return 15;
    if (test_ckpt("verify", r->run, "/dev/null") != EXIT_PERMISSION) return 16;
    if (chmod(folder, 0500) != 0 || test_run_save(r, 4)) return 17;
    if (error_exit_code(r->err, EXIT_INPUT_OUTPUT) != EXIT_PERMISSION) return 18;
    if (chmod(folder, 0) != 0 || test_ckpt("inspect", three, "/dev/null") != EXIT_PERMISSION)
        return 19;
    if (chmod(folder, 0700) != 0 || test_run_newest(r) != 3) return 20;
    free(three);
    free(folder);
    free(weights);
    return 0;
}

static int save_two(void *context)
{
    return test_run_save(context, 2) && test_run_save(context, 3) ? 0 : 1;
}

static void missing_permission_is_reported_as_such_not_as_damage(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    assert_int_equal(chmod(r.run, 0777), 0);
    assert_int_equal(as_nobody(save_two, &r), 0);
    assert_int_equal(as_nobody(without_permission, &r), 0);
    test_run_close(&r);
}

/* A child process saves and prunes while this one reads. A checkpoint that is removed after it has
 * been listed must not count as damaged. */
static void readers_succeed_while_a_live_run_saves_and_prunes(void **state)
{
    (void)state;
    TestRun r;
    int status, looks = 0;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    char *output = text_format("%s/output", r.run);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int64_t step = 2; step < 400; step++)
            if (!test_run_save(&r, step) ||
                !checkpoint_prune(&r.io, r.run, step, 1, r.err, sizeof r.err))
                _exit(1);
        _exit(0);
    }
    pid_t ended;
    do {
        static const char *const commands[] = {"verify", "list", "inspect"};
        Checkpoint *c = NULL;
        ended = waitpid(child, &status, WNOHANG);
        int code = test_ckpt(commands[looks % 3], r.run, output);
        if (code != EXIT_OK) fail_msg("look %d: exit code %d", looks, code);
        assert_true(file_size(output) > 0); /* a checkpoint existed at every moment */
        if (!checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err)) fail_msg("%s", r.err);
        assert_non_null(c);
        checkpoint_close(c);
        looks++;
    } while (ended == 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    free(output);
    test_run_close(&r);
}

/* A manifest may come from a stranger, so its control characters must not reach the terminal. */
static void ckpt_inspect_escapes_control_characters(void **state)
{
    (void)state;
    TestRun r;
    char text[4096] = "";
    test_run_open(&r);
    test_run_fill(&r, 1);
    CheckpointContents contents = test_run_contents(&r);
    contents.code = "\x1b]0;owned\x07";
    contents.machine = "\x1b[2J\x7f";
    contents.data = "\xc2\x9b"
                    "31m \xc3\xa4";
    if (!checkpoint_write(&r.io, r.run, &contents, r.err, sizeof r.err)) fail_msg("%s", r.err);
    char *output = text_format("%s/output", r.run);
    assert_int_equal(test_ckpt("inspect", r.run, output), EXIT_OK);
    int fd = open(output, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    for (ssize_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 32 && c != '\n') || c == 127 || (c == 0xc2 && (unsigned char)text[i + 1] < 0xa0))
            fail_msg("byte 0x%02x at %zd of %s", c, i, text);
    }
    assert_non_null(strstr(text, "\\x1b]0;owned\\x07"));
    assert_non_null(strstr(text, "\\x9b31m \xc3\xa4"));
    free(output);
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* hides the warnings about damage that these tests cause */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unreadable_checkpoint_folder_is_an_error_not_an_empty_list),
        cmocka_unit_test(missing_permission_is_reported_as_such_not_as_damage),
        cmocka_unit_test(readers_succeed_while_a_live_run_saves_and_prunes),
        cmocka_unit_test(ckpt_inspect_escapes_control_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
