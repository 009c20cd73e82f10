/* test_wheels.c -- tests the search for libraries that Python packages bring along. */
#include "model/core/check.h"
#include "model/core/wheels.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* No package has a file of this name. */
#define LIBRARY "libof_this_test_alone.so.2"

static char top[64];

/* Makes an empty file and its folders in the test's folder. */
static void make_file(const char *path, mode_t mode)
{
    char *file = text_format("%s/%s", top, path);
    for (char *at = file + strlen(top) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(file, 0700);
        *at = '/';
    }
    FILE *made = fopen(file, "w");
    assert_non_null(made);
    fclose(made);
    assert_int_equal(chmod(file, mode), 0);
    free(file);
}

/* Sets a variable to a path in the test's folder, or removes it. */
static void set(const char *variable, const char *path)
{
    char *value = text_format("%s/%s", top, path ? path : "");
    if (path)
        setenv(variable, value, 1);
    else
        unsetenv(variable);
    free(value);
}

/* Expects that this path in the test's folder is found; NULL: none is. */
static void expect(const char *path)
{
    char found[512] = "";
    bool any = wheels_find(LIBRARY, found, sizeof found);
    assert_int_equal(any, path != NULL);
    if (path) assert_string_equal(found + strlen(top) + 1, path);
}

static int open_folder(void **state)
{
    (void)state;
    snprintf(top, sizeof top, "/tmp/test_wheels.XXXXXX");
    if (mkdtemp(top) == NULL) return -1;
    set("VIRTUAL_ENV", NULL);
    set("CONDA_PREFIX", NULL);
    set("PATH", "bin");
    set("HOME", "home");
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    char *command = text_format("/bin/rm -rf %s", top);
    int code = system(command);
    free(command);
    return code;
}

static void test_the_folders_are_searched_in_the_documented_order(void **state)
{
    (void)state;
    expect(NULL);
    make_file("home/.local/lib/python3.11/site-packages/nvidia/nccl/lib/" LIBRARY, 0600);
    expect("home/.local/lib/python3.11/site-packages/nvidia/nccl/lib/" LIBRARY);
    /* PATH has three folders; the second and the third have a python3, and the second one is
     * used. */
    make_file("none/lib/python3.11/dist-packages/nvidia/cu13/lib/" LIBRARY, 0600);
    make_file("usual/lib/python3/dist-packages/nvidia/cu13/lib/" LIBRARY, 0600);
    make_file("usual/bin/python3", 0700);
    make_file("later/lib/python3/dist-packages/nvidia/cu13/lib/" LIBRARY, 0600);
    make_file("later/bin/python3", 0700);
    char *path = text_format("%s/none/bin:%s/usual/bin:%s/later/bin", top, top, top);
    setenv("PATH", path, 1);
    free(path);
    expect("usual/bin/../lib/python3/dist-packages/nvidia/cu13/lib/" LIBRARY);
    make_file("conda/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY, 0600);
    set("CONDA_PREFIX", "conda");
    expect("conda/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY);
    make_file("venv/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY, 0600);
    set("VIRTUAL_ENV", "venv");
    expect("venv/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY);
    /* Of two packages with the file, the first in alphabetical order is found. */
    make_file("venv/lib/python3.12/site-packages/nvidia/cu13/lib/" LIBRARY, 0600);
    expect("venv/lib/python3.12/site-packages/nvidia/cu13/lib/" LIBRARY);
    setenv("VIRTUAL_ENV", "", 1);
    expect("conda/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY);
}

static void test_only_the_packages_of_nvidia_are_searched(void **state)
{
    (void)state;
    make_file("venv/lib/python3.12/site-packages/other/nccl/lib/" LIBRARY, 0600);
    make_file("venv/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY ".5", 0600);
    make_file("venv/lib/python3.12/site-packages/nvidia/nccl/" LIBRARY, 0600);
    set("VIRTUAL_ENV", "venv");
    expect(NULL);
    /* A path that does not fit into the buffer is not cut: false is returned. */
    char small[16];
    make_file("venv/lib/python3.12/site-packages/nvidia/nccl/lib/" LIBRARY, 0600);
    assert_false(wheels_find(LIBRARY, small, sizeof small));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_folders_are_searched_in_the_documented_order,
                                        open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_only_the_packages_of_nvidia_are_searched, open_folder,
                                        close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
