/* temporary.c -- implements temporary.h. */
#include "model/core/temporary.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

bool temporary_ending(const char *end)
{
    long process;
    int attempt, size = 0;
    return sscanf(end, ".tmp-%ld-%d%n", &process, &attempt, &size) == 2 && end[size] == '\0' &&
           process > 0;
}

int temporary_hold(const char *path)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Removes a file or folder unless a process has locked it. */
static void remove_left(const FsOps *fs, const char *path)
{
    char err[512];
    int lock = temporary_hold(path);
    if (lock < 0) return;
    if (fs_remove_tree(fs, AT_FDCWD, path, err, sizeof err))
        log_notice("%s, which a killed process had left, is removed", path);
    else
        log_warning("%s was left by a killed process: %s", path, err);
    close(lock);
}

/* Returns where the ending of a temporary name begins; NULL if the name has none. */
static const char *find_ending(const char *name)
{
    const char *last = NULL;
    for (const char *at = name; (at = strstr(at, ".tmp-")) != NULL; at++)
        last = at;
    return last && temporary_ending(last) ? last : NULL;
}

/* Removes files and folders with temporary names in `folder`, a path that ends with a slash: those
 * for the file or folder called `name`, or all if `name` is NULL. */
static void sweep(const FsOps *fs, const char *folder, const char *name)
{
    struct dirent **entry;
    int count = fs_scan(folder, &entry);
    for (int i = 0; i < count; i++) {
        const char *other = entry[i]->d_name, *end = find_ending(other);
        size_t size = end ? (size_t)(end - other) : 0;
        if (end && (!name || (strlen(name) == size && strncmp(other, name, size) == 0))) {
            char *left = text_format("%s%s", folder, other);
            remove_left(fs, left);
            free(left);
        }
        free(entry[i]);
    }
    if (count >= 0) free(entry);
}

void temporary_sweep(const FsOps *fs, const char *path)
{
    char *folder = path_beside(path, "");
    sweep(fs, folder, path_name(path));
    free(folder);
}

void temporary_sweep_folder(const FsOps *fs, const char *folder)
{
    char *inside = text_format("%s/", folder);
    sweep(fs, inside, NULL);
    free(inside);
}
