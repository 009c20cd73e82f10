/* test_fuzz_corpus.c -- replays the stored fuzzing inputs: each file in tests/fuzz/corpus/NAME is
 * passed to the function fuzz_NAME of tests/fuzz/fuzz_NAME.c. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the function of a fuzz target, looked up by name; the program is linked to export its
 * symbols. */
static FuzzTarget *target_called(const char *name)
{
    FuzzTarget *target = NULL;
    char *symbol = text_format("fuzz_%s", name);
    void *found = dlsym(NULL, symbol);
    memcpy(&target, &found, sizeof target);
    free(symbol);
    return target;
}

/* Returns NAME from a path "folder/prefixNAME.ending". */
static char *name_in(const char *path, const char *prefix)
{
    char *name = must_strdup(strrchr(path, '/') + 1 + strlen(prefix));
    name[strcspn(name, ".")] = 0;
    return name;
}

static void every_fuzz_file_defines_the_function_it_is_named_after(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("tests/fuzz/fuzz_*.c", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = name_in(found.gl_pathv[i], "fuzz_");
        if (target_called(name) == NULL)
            fail_msg("%s has no function fuzz_%s", found.gl_pathv[i], name);
        free(name);
    }
    globfree(&found);
}

/* Passes one file to the fuzz target that its folder is named after. */
static void replay_file(const char *path)
{
    char err[512], *contents, *folder = must_strdup(path);
    size_t size;
    *strrchr(folder, '/') = 0;
    FuzzTarget *target = target_called(strrchr(folder, '/') + 1);
    if (target == NULL) fail_msg("%s: there is no target of that name", folder);
    if (!file_read(path, &contents, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    /* exactly as large as the input, so that sanitizers detect reads past its end */
    uint8_t *exact = must_alloc(size ? size : 1);
    memcpy(exact, contents, size);
    /* printed first, because after a crash the last line must name the input */
    print_message("%s\n", path);
    fflush(stdout);
    target(exact, size);
    free(exact);
    free(contents);
    free(folder);
}

static void every_stored_fuzz_input_is_handled_without_a_failed_check(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("tests/fuzz/corpus/*/*", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        replay_file(found.gl_pathv[i]);
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fuzz_file_defines_the_function_it_is_named_after),
        cmocka_unit_test(every_stored_fuzz_input_is_handled_without_a_failed_check),
    };
    return cmocka_run_group_tests_name("fuzz corpus", tests, NULL, NULL);
}
