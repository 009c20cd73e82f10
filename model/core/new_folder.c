/* new_folder.c -- implements new_folder.h. */
#include "model/core/new_folder.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns whether `path` does not exist or is an empty folder. A folder that contains only files
 * whose names begin with a dot is not empty. */
static bool is_free(const char *path, char *err, size_t n)
{
    DIR *dir = opendir(path);
    if (dir == NULL && errno == ENOENT) return true;
    bool empty = dir != NULL;
    for (struct dirent *e = NULL; empty && (e = readdir(dir)) != NULL;)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    if (dir) closedir(dir);
    return empty || error_set(err, n, "%s exists already; choose a new folder with --out", path);
}

bool new_folder_begin(NewFolder *folder, const FsOps *fs, const char *path, char *err, size_t n)
{
    *folder = (NewFolder){.fs = fs, .path = path_trimmed(path), .lock = -1};
    char *parent = path_beside(folder->path, "");
    bool good = is_free(folder->path, err, n) && fs_make_folders(fs, parent, err, n);
    free(parent);
    if (good) temporary_sweep(fs, folder->path);
    folder->temporary = good ? temporary_folder(fs, folder->path, err, n) : NULL;
    if (folder->temporary) {
        folder->lock = temporary_hold(folder->temporary);
        return true;
    }
    new_folder_abort(folder);
    return false;
}

bool new_folder_commit(NewFolder *folder, char *err, size_t n)
{
    const FsOps *fs = folder->fs;
    bool good = fs_sync_folder(fs, folder->temporary, err, n);
    /* If `path` exists, this rename succeeds only if it is an empty folder. */
    if (good && fs->rename(fs->self, AT_FDCWD, folder->temporary, AT_FDCWD, folder->path) != 0)
        good = error_set(err, n, "cannot rename %s to %s: %s", folder->temporary, folder->path,
                         strerror(errno));
    if (good) {
        char *parent = path_beside(folder->path, ".");
        free(folder->temporary);
        folder->temporary = NULL;
        good = fs_sync_folder(fs, parent, err, n);
        free(parent);
    }
    new_folder_abort(folder);
    return good;
}

void new_folder_abort(NewFolder *folder)
{
    char ignored[512];
    if (folder->temporary)
        fs_remove_tree(folder->fs, AT_FDCWD, folder->temporary, ignored, sizeof ignored);
    /* A NewFolder that is {0} has no path and no lock, although its `lock` is 0. */
    if (folder->path && folder->lock >= 0) close(folder->lock);
    free(folder->temporary);
    free(folder->path);
    *folder = (NewFolder){.lock = -1};
}
