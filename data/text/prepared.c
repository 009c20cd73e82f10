/* prepared.c -- finds the folders of prepared tokens; see prepared.h. */
#include "data/text/prepared.h"

#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Returns whether name[0..size) ends like the name of a folder that prepare.c makes: "-" and a hash
 * of 16 hexadecimal digits. */
static bool ends_with_hash(const char *name, size_t size)
{
    enum { DIGITS = 16 };
    return size > DIGITS + 1 && name[size - DIGITS - 1] == '-' &&
           strspn(name + size - DIGITS, "0123456789abcdef") >= DIGITS;
}

/* Returns whether a folder under a temporary name is still being written: its writer holds a lock,
 * which ends with its process. Where folders cannot be locked, such as on NFS, a folder that is
 * less than an hour old counts as in use. */
static bool is_in_use(const char *folder, const struct stat *info)
{
    enum { NEW = 3600 }; /* seconds */
    int fd = temporary_hold(folder);
    if (fd < 0) return errno == EWOULDBLOCK || time(NULL) - info->st_mtime < NEW;
    close(fd);
    return false;
}

/* Returns whether a folder without a valid meta.json was made by this program, and sets *state. */
static bool find_state(const char *folder, const char *name, const char *meta, PreparedState *state)
{
    const char *temporary = strstr(name, ".tmp-");
    struct stat info;
    if (!ends_with_hash(name, temporary ? (size_t)(temporary - name) : strlen(name))) return false;
    *state = PREPARED_DAMAGED;
    if (temporary == NULL) return lstat(meta, &info) == 0;
    if (!temporary_ending(temporary) || lstat(folder, &info) != 0 || !S_ISDIR(info.st_mode))
        return false;
    *state = is_in_use(folder, &info) ? PREPARED_IN_USE : PREPARED_UNFINISHED;
    return true;
}

/* Calls `visit` for the folder `name` if it is a folder of prepared tokens. */
static bool visit_one(const char *cache, const char *name, PreparedVisit *visit, void *context)
{
    char *folder = text_format("%s/%s", cache, name), *path = text_format("%s/meta.json", folder),
         why[256];
    Meta m = {0};
    PreparedState state = PREPARED_WHOLE;
    bool more = true;
    if (strstr(name, ".tmp-") == NULL && meta_read(&m, path, why, sizeof why))
        more = visit(folder, state, &m, context);
    else if (find_state(folder, name, path, &state))
        more = visit(folder, state, NULL, context);
    meta_free(&m);
    free(path);
    free(folder);
    return more;
}

bool prepared_visit(const char *cache, PreparedVisit *visit, void *context, char *err, size_t n)
{
    struct dirent **entry;
    int count = fs_scan(cache, &entry);
    if (count < 0 && errno == ENOENT) return true;
    if (count < 0) return error_set(err, n, "cannot look into %s: %s", cache, strerror(errno));
    bool more = true;
    for (int i = 0; i < count; i++) {
        more = more && visit_one(cache, entry[i]->d_name, visit, context);
        free(entry[i]);
    }
    free(entry);
    return true;
}
