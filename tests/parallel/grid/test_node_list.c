/* test_node_list.c -- SLURM's lists of machines: what they expand to, also according to `scontrol
 * show hostnames` where SLURM is installed, and what is refused. */
#include "model/core/check.h"
#include "parallel/grid/node_list.h"
#include "tests/fuzz/fuzz_node_list.h"
#include "tests/support/files/mutate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Returns the names, with a blank after each, as a text that the caller frees. */
static char *joined(const StringList *names)
{
    char *text;
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    for (int i = 0; i < names->count; i++)
        fprintf(to, "%s ", names->item[i]);
    fclose(to);
    return text;
}

static const struct {
    const char *list, *names;
} lists[] = {
    {"localhost", "localhost "},
    {"n1,n2", "n1 n2 "},
    {"n[1-2,5],gpu-07", "n1 n2 n5 gpu-07 "},
    {"n[1-1]", "n1 "},
    {"n[7]", "n7 "},
    {"n[08-11]", "n08 n09 n10 n11 "},
    {"n[098-101]", "n098 n099 n100 n101 "},
    {"n[9-11]", "n9 n10 n11 "},
    {"n[001-003,007]", "n001 n002 n003 n007 "},
    {"n[1,01,001]", "n1 n01 n001 "},
    {"n[3,1-2]", "n3 n1 n2 "},
    {"[1-3]", "1 2 3 "},
    {"r[0-1]n[2-3]", "r0n2 r0n3 r1n2 r1n3 "},
    {"n[1-2]-ib[3-4]", "n1-ib3 n1-ib4 n2-ib3 n2-ib4 "},
    {"a1.cluster.org,b", "a1.cluster.org b "},
    {"n2,n1,n2", "n2 n1 n2 "},
    {"GPU_node-[10-11]", "GPU_node-10 GPU_node-11 "},
};
enum { LISTS = sizeof lists / sizeof *lists };

static void test_lists_expand_to_the_expected_names(void **state)
{
    (void)state;
    for (int i = 0; i < LISTS; i++) {
        StringList names = {0};
        char err[1024];
        if (!node_list_expand(lists[i].list, &names, err, sizeof err)) fail_msg("%s", err);
        char *text = joined(&names);
        if (strcmp(text, lists[i].names) != 0)
            fail_msg("%s is %s, not %s", lists[i].list, text, lists[i].names);
        free(text);
        string_list_free(&names);
    }
}

/* SLURM's scontrol needs no daemon for this, but it needs a config file. */
static void test_scontrol_expands_to_the_same_names(void **state)
{
    (void)state;
    if (system("command -v scontrol >/dev/null 2>&1") != 0) {
        print_message("skipped: there is no scontrol here\n");
        skip();
    }
    char config[] = "/tmp/slurm_conf.XXXXXX";
    static const char text[] = "ClusterName=none\nSlurmctldHost=localhost\n";
    int fd = mkstemp(config);
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    close(fd);
    for (int i = 0; i < LISTS; i++) {
        char command[512], out[4096];
        snprintf(command, sizeof command,
                 "SLURM_CONF=%s scontrol show hostnames '%s' | tr '\\n' ' '", config,
                 lists[i].list);
        FILE *from = popen(command, "r");
        assert_non_null(from);
        size_t bytes = fread(out, 1, sizeof out - 1, from);
        out[bytes] = '\0';
        pclose(from);
        if (strcmp(out, lists[i].names) != 0)
            fail_msg("%s is %s for scontrol, not %s", lists[i].list, out, lists[i].names);
    }
    remove(config);
}

static const struct {
    const char *list, *says;
} mistakes[] = {
    {"", "character 1: a name is empty"},
    {",n1", "character 1: a name is empty"},
    {"n1,", "character 4: a name is empty"},
    {"n1,,n2", "character 4: a name is empty"},
    {"n[1-2", "character 2: a bracket is not closed"},
    {"n1-2]", "character 5: no name has this character"},
    {"n[]", "character 3: brackets have numbers"},
    {"n[a]", "character 3: brackets have numbers"},
    {"n[1-]", "character 5: a range has a number on each side"},
    {"n[-2]", "character 3: brackets have numbers"},
    {"n[1,]", "character 5: brackets have numbers"},
    {"n[1;2]", "character 4: numbers in brackets are separated by commas"},
    {"n[1-2-3]", "character 6: numbers in brackets are separated by commas"},
    {"n[[1]]", "character 3: brackets have numbers"},
    {"n[2-1]", "character 3: a range goes up"},
    {"n[01-2]", "character 3: a range goes up"},
    {"n[1-02]", "character 3: a range goes up"},
    {"n[0-65536]", "character 3: a range has too many numbers"},
    {"n[1-99999999999999999999]", "character 5: a range has a number on each side"},
    {"n[0-65535],m", "character 13: there are too many names"},
    {"a[0-999]b[0-999]", "there are too many names"},
    {"n[1-2]-ib", "character 7: a name goes on after its last bracket"},
    {"n 1", "character 2: no name has this character"},
    {"n;rm", "character 2: no name has this character"},
    {"n1\n", "character 3: no name has this character"},
    {"-x", "character 1: a name begins with a hyphen"},
};

static void test_invalid_lists_are_refused_with_the_position_of_the_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        StringList names = {0};
        char err[1024] = "";
        if (node_list_expand(mistakes[i].list, &names, err, sizeof err))
            fail_msg("\"%s\" is accepted", mistakes[i].list);
        if (strstr(err, mistakes[i].says) == NULL)
            fail_msg("\"%s\" is refused with \"%s\", not \"%s\"", mistakes[i].list, err,
                     mistakes[i].says);
        string_list_free(&names);
    }
}

static void test_only_machine_lists_and_names_within_the_limits_are_accepted(void **state)
{
    (void)state;
    StringList names = {0};
    char err[1024], name[NODE_NAME_MOST + 3];
    assert_true(node_list_expand("n[00000-65535]", &names, err, sizeof err));
    assert_int_equal(names.count, NODE_LIST_MOST);
    assert_string_equal(names.item[NODE_LIST_MOST - 1], "n65535");
    string_list_free(&names);
    memset(name, 'n', sizeof name);
    name[NODE_NAME_MOST] = '\0';
    assert_true(node_list_expand(name, &names, err, sizeof err));
    string_list_free(&names);
    memcpy(name + NODE_NAME_MOST - 2, "[99]", 5);
    assert_true(node_list_expand(name, &names, err, sizeof err));
    string_list_free(&names);
    memset(name, 'n', sizeof name);
    name[NODE_NAME_MOST + 1] = '\0';
    assert_false(node_list_expand(name, &names, err, sizeof err));
    assert_non_null(strstr(err, "a name is too long"));
    string_list_free(&names);
}

/* ---- the machine of each task ---------------------------------------------------------------- */

static void test_the_lists_of_a_slurm_step_give_the_machine_of_each_task(void **state)
{
    static const struct {
        const char *list, *tasks;
        int ranks;
        const char *hosts;
    } rows[] = {{"n1", "3", 3, "n1 n1 n1 "},
                {"n[1-2]", "2(x2)", 4, "n1 n1 n2 n2 "},
                {"n[1-4]", "2(x3),1", 7, "n1 n1 n2 n2 n3 n3 n4 "},
                {"a,b,c", "1,3,2", 6, "a b b b c c "}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StringList hosts = {0};
        char err[1024];
        if (!node_list_of_tasks(rows[i].list, rows[i].tasks, rows[i].ranks, &hosts, err,
                                sizeof err))
            fail_msg("%s", err);
        char *text = joined(&hosts);
        assert_string_equal(text, rows[i].hosts);
        free(text);
        string_list_free(&hosts);
    }
}

static void test_tasks_that_do_not_fit_the_machines_are_refused(void **state)
{
    static const struct {
        const char *list, *tasks;
        int ranks;
    } rows[] = {{"n[1-2]", "2", 2},
                {"n[1-2]", "2(x3)", 6},
                {"n[1-2]", "2(x2)", 5},
                {"n[1-2]", "2(x2)", 3},
                {"n[1-2]", "2(x2", 4},
                {"n[1-2]", "2,", 2},
                {"n[1-2]", "", 2},
                {"n[1-2]", "2;2", 4},
                {"n[1-2]", "2(x0),2(x2),", 4},
                {"n[1-2]", "99999999999999999(x99999999999999999)", 4}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StringList hosts = {0};
        char err[1024];
        if (node_list_of_tasks(rows[i].list, rows[i].tasks, rows[i].ranks, &hosts, err, sizeof err))
            fail_msg("%s on %s is accepted for %d ranks", rows[i].tasks, rows[i].list,
                     rows[i].ranks);
        assert_non_null(strstr(err, "does not say which of"));
        assert_true(hosts.count <= rows[i].ranks);
        string_list_free(&hosts);
    }
}

/* Lists with random changes are accepted or refused without a crash. */
static void test_randomly_changed_lists_never_crash_the_parser(void **state)
{
    (void)state;
    for (int i = 0; i < LISTS; i++) {
        char text[128];
        int n = snprintf(text, sizeof text, "%s\n2(x2),1", lists[i].list);
        for (uint64_t round = 0; round < 1000; round++) {
            size_t size;
            uint8_t *changed = mutate(text, (size_t)n, (uint64_t)i, round, &size);
            fuzz_node_list(changed, size);
            free(changed);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_expand_to_the_expected_names),
        cmocka_unit_test(test_scontrol_expands_to_the_same_names),
        cmocka_unit_test(test_invalid_lists_are_refused_with_the_position_of_the_error),
        cmocka_unit_test(test_only_machine_lists_and_names_within_the_limits_are_accepted),
        cmocka_unit_test(test_the_lists_of_a_slurm_step_give_the_machine_of_each_task),
        cmocka_unit_test(test_tasks_that_do_not_fit_the_machines_are_refused),
        cmocka_unit_test(test_randomly_changed_lists_never_crash_the_parser),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
