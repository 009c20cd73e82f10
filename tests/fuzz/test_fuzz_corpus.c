/* test_fuzz_corpus.c -- the kept inputs of the fuzz targets, replayed: tests/fuzz/corpus/NAME goes
 * through fuzz_NAME of tests/fuzz/fuzz_NAME.c. */
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

/* The function of a target: the program is linked so that it can be asked for by name. */
static FuzzTarget *target_called(const char *name)
{
    FuzzTarget *target = NULL;
    char *symbol = text_format("fuzz_%s", name);
    void *found = dlsym(NULL, symbol);
    memcpy(&target, &found, sizeof target);
    free(symbol);
    return target;
}

/* The part of "folder/prefixNAME.ending" that is a name. */
static char *name_in(const char *path, const char *prefix)
{
    char *name = must_strdup(strrchr(path, '/') + 1 + strlen(prefix));
    name[strcspn(name, ".")] = 0;
    return name;
}

static void every_target_has_a_function_of_its_name(void **state)
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

/* Runs a target over one file of its folder. */
static void replay_file(const char *path)
{
    char err[512], *contents, *folder = must_strdup(path);
    size_t size;
    *strrchr(folder, '/') = 0;
    FuzzTarget *target = target_called(strrchr(folder, '/') + 1);
    if (target == NULL) fail_msg("%s: there is no target of that name", folder);
    if (!file_read(path, &contents, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    uint8_t *exact = must_alloc(size ? size : 1); /* no byte longer, for the sanitizers */
    memcpy(exact, contents, size);
    print_message("%s\n", path); /* a crash ends the program: the last line names its input */
    fflush(stdout);
    target(exact, size);
    free(exact);
    free(contents);
    free(folder);
}

static void kept_inputs_give_no_findings(void **state)
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
        cmocka_unit_test(every_target_has_a_function_of_its_name),
        cmocka_unit_test(kept_inputs_give_no_findings),
    };
    return cmocka_run_group_tests_name("fuzz corpus", tests, NULL, NULL);
}
