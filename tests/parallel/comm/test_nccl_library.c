/* test_nccl_library.c -- which versions of the NCCL library are refused, and which environment
 * variables NCCL gets. */
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/grid/fake_nccl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_a_library_older_than_2_28_9_is_refused(void **state)
{
    char text[256];
    (void)state;
    fake_nccl_use();
    fake_nccl.version = 22808;
    assert_false(nccl_open(text, sizeof text));
    assert_non_null(strstr(text, "NCCL here is 2.28.8"));
    assert_non_null(strstr(text, "install NCCL 2.28.9 or newer"));
    fake_nccl.version = 23007; /* nccl_open still returns its first result */
    assert_false(nccl_open(text, sizeof text));
    fake_nccl_use();
    fake_nccl.version = 23007;
    assert_true(nccl_open(text, sizeof text));
    assert_string_equal(nccl_version(text, sizeof text), "NCCL 2.30.7");
    assert_int_equal(strncmp(nccl_describe(text, sizeof text), "NCCL 2.30.7, ", 13), 0);
}

/* Values that the user has set are kept, except for NCCL_COMM_BLOCKING. */
static void test_nccl_settings_of_the_user_are_kept_except_blocking_mode(void **state)
{
    (void)state;
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    unsetenv("NCCL_RAS_ENABLE");
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    nccl_set_environment();
    assert_string_equal(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "0");
    assert_string_equal(getenv("NCCL_RAS_ENABLE"), "0");
    assert_string_equal(getenv("NCCL_COMM_BLOCKING"), "1");
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    setenv("NCCL_RAS_ENABLE", "1", 1);
    nccl_set_environment();
    assert_string_equal(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
    assert_string_equal(getenv("NCCL_RAS_ENABLE"), "1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_library_older_than_2_28_9_is_refused),
        cmocka_unit_test(test_nccl_settings_of_the_user_are_kept_except_blocking_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
