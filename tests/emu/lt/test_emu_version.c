/* test_emu_version.c -- tests that a cuBLASLt of another major version than the header's is neither
 * found nor opened, because its constants and structs may differ. */
#include "model/kernels/cuda/lt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char words[] = "test_emu_version is cuBLASLt 12.1.0, and this program is built for "
                            "version 13; install cuBLAS 13 or add its folder to LD_LIBRARY_PATH";

static void test_a_library_of_another_version_is_not_found(void **state)
{
    (void)state;
    char err[512] = "";
    assert_true(lt_find(err, sizeof err));
    setenv("EMU_LT", "old", 1);
    assert_false(lt_find(err, sizeof err));
    unsetenv("EMU_LT");
    assert_non_null(strstr(err, words));
}

static void test_a_library_of_another_version_is_not_opened(void **state)
{
    (void)state;
    char err[512] = "";
    setenv("EMU_LT", "old", 1);
    assert_null(lt_open(false, err, sizeof err));
    unsetenv("EMU_LT");
    assert_non_null(strstr(err, words));
    Lt *lt = lt_open(false, err, sizeof err);
    assert_non_null(lt);
    lt_close(lt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_library_of_another_version_is_not_found),
        cmocka_unit_test(test_a_library_of_another_version_is_not_opened),
    };
    return cmocka_run_group_tests_name("versions of cuBLASLt", tests, NULL, NULL);
}
