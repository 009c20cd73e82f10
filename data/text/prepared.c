/* prepared.c -- finds the folders of prepared tokens; see prepared.h. */
#include "data/text/prepared.h"

#include "model/core/check.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A folder under its temporary name is still being written, or its writer was killed. */
static int is_finished(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && strstr(entry->d_name, ".tmp-") == NULL;
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

bool prepared_visit(const char *cache, PreparedVisit *visit, void *context, char *err, size_t n)
{
    struct dirent **entry;
    int count = scandir(cache, &entry, is_finished, by_bytes);
    if (count < 0 && errno == ENOENT) return true;
    if (count < 0) return error_set(err, n, "cannot look into %s: %s", cache, strerror(errno));
    bool more = true;
    for (int i = 0; i < count; i++) {
        char *folder = text_format("%s/%s", cache, entry[i]->d_name),
             *path = text_format("%s/meta.json", folder), why[256];
        Meta m;
        if (more && meta_read(&m, path, why, sizeof why)) {
            more = visit(folder, &m, context);
            meta_free(&m);
        }
        free(path);
        free(folder);
        free(entry[i]);
    }
    free(entry);
    return true;
}
