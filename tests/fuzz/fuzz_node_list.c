/* fuzz_node_list.c -- fuzz target: reads any bytes as SLURM's list of machines, and a second line
 * as the number of tasks of each. The names that are accepted are a list of themselves. */
#include "tests/fuzz/fuzz_node_list.h"

#include "model/core/check.h"
#include "parallel/grid/node_list.h"

#include <stdlib.h>
#include <string.h>

static void check_names(const StringList *names)
{
    char err[1024], *text;
    size_t bytes;
    StringList again = {0};
    CHECK(names->count >= 1 && names->count <= NODE_LIST_MOST, "%d names", names->count);
    FILE *to = text_stream(&text, &bytes);
    for (int i = 0; i < names->count; i++)
        fprintf(to, "%s%s", i > 0 ? "," : "", names->item[i]);
    fclose(to);
    CHECK(node_list_expand(text, &again, err, sizeof err), "%s", err);
    CHECK(again.count == names->count, "%d names, not %d", again.count, names->count);
    for (int i = 0; i < names->count; i++)
        CHECK(strcmp(again.item[i], names->item[i]) == 0, "%s, not %s", again.item[i],
              names->item[i]);
    string_list_free(&again);
    free(text);
}

int fuzz_node_list(const uint8_t *data, size_t size)
{
    enum { RANKS = 64 };
    char err[1024];
    StringList names = {0}, hosts = {0};
    char *list = must_calloc(1, size + 1);
    memcpy(list, data, size);
    char *tasks = strchr(list, '\n');
    if (tasks != NULL) *tasks++ = '\0';
    if (node_list_expand(list, &names, err, sizeof err)) check_names(&names);
    CHECK(names.count <= NODE_LIST_MOST, "%d names", names.count);
    if (tasks != NULL && node_list_of_tasks(list, tasks, RANKS, &hosts, err, sizeof err))
        CHECK(hosts.count == RANKS, "%d ranks", hosts.count);
    CHECK(hosts.count <= RANKS, "%d ranks", hosts.count);
    string_list_free(&hosts);
    string_list_free(&names);
    free(list);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_node_list(data, size);
    return 0;
}
