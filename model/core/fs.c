/* fs.c -- implements fs.h: the real system calls, and the functions built on the table of calls. */
#include "model/core/fs.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- the real system calls ------------------------------------------------------------------- */

static int system_open(void *self, int folder, const char *name, int flags, mode_t mode)
{
    (void)self;
    return openat(folder, name, flags, mode);
}

static ssize_t system_write(void *self, int fd, const void *data, size_t n)
{
    (void)self;
    return write(fd, data, n);
}

static int system_sync(void *self, int fd)
{
    (void)self;
    return fsync(fd);
}

static int system_close(void *self, int fd)
{
    (void)self;
    return close(fd);
}

static int system_rename(void *self, int from_folder, const char *from, int to_folder,
                         const char *to)
{
    (void)self;
    return renameat(from_folder, from, to_folder, to);
}

static int system_make_folder(void *self, int folder, const char *name, mode_t mode)
{
    (void)self;
    return mkdirat(folder, name, mode);
}

static int system_remove(void *self, int folder, const char *name, int flags)
{
    (void)self;
    return unlinkat(folder, name, flags);
}

static int64_t system_room(void *self, const char *path)
{
    struct statvfs disk;
    (void)self;
    if (statvfs(path, &disk) != 0) return -1;
    errno = ENOTSUP; /* some file systems report no sizes */
    double bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    return disk.f_blocks == 0 ? -1 : bytes < 0x1p62 ? (int64_t)bytes : (int64_t)1 << 62;
}

const FsOps fs_system = {
    .open = system_open,
    .write = system_write,
    .sync = system_sync,
    .close = system_close,
    .rename = system_rename,
    .make_folder = system_make_folder,
    .remove = system_remove,
    .room = system_room,
};

/* ---- writing --------------------------------------------------------------------------------- */

int fs_open_folder(const char *path, char *err, size_t n)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) error_set(err, n, "cannot open the folder %s: %s", path, strerror(errno));
    return fd;
}

bool fs_make_folders(const FsOps *fs, const char *path, char *err, size_t n)
{
    char *part = must_strdup(path);
    bool good = true;
    /* Try to create each folder from the top down without checking first: between a check and the
     * creation another process could create the same folder. */
    for (char *slash = part + (part[0] == '/'); good && slash != NULL;) {
        slash = strchr(slash, '/');
        if (slash) *slash = '\0';
        if (fs->make_folder(fs->self, AT_FDCWD, part, 0777) != 0 && errno != EEXIST)
            good = error_set(err, n, "cannot create the folder %s: %s", part, strerror(errno));
        if (slash) *slash++ = '/';
        if (slash && *slash == '\0') slash = NULL;
    }
    free(part);
    struct stat st;
    if (good && stat(path, &st) != 0)
        good = error_set(err, n, "cannot enter the folder %s: %s", path, strerror(errno));
    else if (good && !S_ISDIR(st.st_mode))
        good = error_set(err, n, "%s is there and is not a folder", path);
    return good;
}

bool fs_write_all(const FsOps *fs, int fd, const void *data, size_t bytes, const char *path,
                  char *err, size_t n)
{
    for (const char *p = data; bytes > 0;) {
        ssize_t done = fs->write(fs->self, fd, p, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            int why = done == 0 ? ENOSPC : errno; /* wrote nothing without an error: disk full */
            return error_set(err, n, "cannot write %s: %s", path, strerror(why));
        }
        p += done;
        bytes -= (size_t)done;
    }
    return true;
}

bool fs_sync(const FsOps *fs, int fd, const char *path, char *err, size_t n)
{
    int result;
    do
        result = fs->sync(fs->self, fd);
    while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EINVAL)
        return true; /* EINVAL: this file system cannot sync folders */
    return error_set(err, n, "cannot bring %s to the disk: %s", path, strerror(errno));
}

bool fs_sync_folder(const FsOps *fs, const char *path, char *err, size_t n)
{
    int fd = fs_open_folder(path, err, n);
    bool good = fd >= 0 && fs_sync(fs, fd, path, err, n);
    if (fd >= 0) close(fd);
    return good;
}

int64_t fs_room(const FsOps *fs, const char *path)
{
    char *part = must_strdup(path);
    int64_t bytes;
    /* A path that does not exist yet will be created on the file system of its nearest existing
     * parent. */
    while ((bytes = fs->room(fs->self, *part ? part : ".")) < 0 && errno == ENOENT && *part) {
        char *slash = strrchr(part, '/');
        if (slash == part && part[1] != '\0')
            part[1] = '\0';
        else if (slash != part)
            *(slash ? slash : part) = '\0';
        else
            break;
    }
    free(part);
    return bytes;
}

bool fs_is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool fs_not_linked(const char *path, char *err, size_t n)
{
    return !fs_is_link(path) ||
           error_set(err, n, "%s is a symbolic link and not followed; remove it", path);
}

/* Opens each folder of the path, from the top. An NFS client then asks the server whether the
 * folder has changed, and if so drops its cached negative lookups (close-to-open consistency,
 * nfs(5)). */
static void ask_again(const char *path)
{
    char *part = must_strdup(path);
    for (char *slash = part; (slash = strchr(slash + 1, '/')) != NULL;) {
        *slash = '\0';
        int fd = open(part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) close(fd);
        *slash = '/';
    }
    free(part);
}

bool fs_await(const char *path)
{
    static const double most = 10; /* seconds */
    enum { PERIOD = 50000 };       /* microseconds */
    double start = seconds_now();
    while (access(path, F_OK) != 0) {
        if ((errno != ENOENT && errno != ESTALE) || seconds_now() - start > most) return false;
        usleep(PERIOD);
        ask_again(path);
    }
    return true;
}

bool fs_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int fs_scan(const char *folder, struct dirent ***entries)
{
    return scandir(folder, entries, is_visible, by_bytes);
}

/* ---- removing -------------------------------------------------------------------------------- */

static bool remove_content(const FsOps *fs, int fd, char *err, size_t n)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        close(fd);
        return error_set(err, n, "cannot list a folder to be removed: %s", strerror(errno));
    }
    bool good = true;
    struct dirent *e;
    while (good && (e = readdir(dir)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            good = fs_remove_tree(fs, dirfd(dir), e->d_name, err, n);
    closedir(dir);
    return good;
}

bool fs_remove_tree(const FsOps *fs, int folder, const char *name, char *err, size_t n)
{
    /* Try to remove it as a file first: if it is a symbolic link to a folder, only the link is
     * removed. */
    if (fs->remove(fs->self, folder, name, 0) == 0 || errno == ENOENT) return true;
    if (errno != EISDIR && errno != EPERM) /* POSIX returns EPERM for a folder */
        return error_set(err, n, "cannot remove %s: %s", name, strerror(errno));
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return error_set(err, n, "cannot remove %s: %s", name, strerror(errno));
    if (!remove_content(fs, fd, err, n)) return false;
    if (fs->remove(fs->self, folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
    return error_set(err, n, "cannot remove the folder %s: %s", name, strerror(errno));
}

/* ---- reading --------------------------------------------------------------------------------- */

int fs_open_input(const char *path, bool or_pipe, int64_t *bytes, const char **why)
{
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    *bytes = 0;
    if (fd < 0 || fstat(fd, &st) != 0)
        *why =
            errno == ENXIO ? "it is a socket or a device, and a file is needed" : strerror(errno);
    else if (S_ISDIR(st.st_mode))
        *why = strerror(EISDIR);
    else if (S_ISREG(st.st_mode) || (or_pipe && S_ISFIFO(st.st_mode))) {
        *bytes = st.st_size;
        return fd;
    } else
        *why = S_ISFIFO(st.st_mode) ? "it is a pipe, and a file is needed"
                                    : "it is a device, and a file is needed";
    if (fd >= 0) close(fd);
    return -1;
}

/* Returns fd, the result of open, if it is a regular file. Otherwise closes it, sets err and
 * returns -1. If `fd` is negative, open failed with errno. */
static int demand_file(int fd, const char *path, int64_t *bytes, char *err, size_t n)
{
    struct stat st;
    if (fd < 0 && errno == ELOOP)
        error_set(err, n, "%s is a symbolic link; a plain file is needed", path);
    else if (fd < 0 && errno == ENXIO) /* a pipe without a reader */
        error_set(err, n, "%s is not a plain file", path);
    else if (fd < 0 || fstat(fd, &st) != 0)
        error_set(err, n, "cannot open %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        error_set(err, n, "%s is not a plain file", path);
    else {
        *bytes = st.st_size;
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

int fs_open_file(int folder, const char *name, const char *path, int64_t *bytes, char *err,
                 size_t n)
{
    /* O_NONBLOCK: opening a pipe of that name must not block. */
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return demand_file(fd, path, bytes, err, n);
}

int fs_open_output(const char *path, int flags, char *err, size_t n)
{
    int64_t bytes;
    int fd = open(path, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    return demand_file(fd, path, &bytes, err, n);
}

bool fs_read_at(int fd, void *data, size_t bytes, int64_t offset, const char *path, char *err,
                size_t n)
{
    for (char *p = data; bytes > 0;) {
        ssize_t done = pread(fd, p, bytes, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return error_set(err, n, "cannot read %s: %s", path, strerror(errno));
        if (done == 0)
            return error_set(err, n, "%s ends at byte %lld, in the middle of its data", path,
                             (long long)offset);
        p += done;
        offset += done;
        bytes -= (size_t)done;
    }
    return true;
}
