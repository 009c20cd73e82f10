/* out_file.c -- creates, writes and syncs the files of a save. See out_file.h. */
#include "parallel/checkpoint/out_file.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int create_file(const FsOps *fs, int folder, const char *path, char *err, size_t n)
{
    /* The folder is new and has a random name, so a file that already exists in it was created by
     * another program. A symbolic link would redirect the data to another place; O_NOFOLLOW refuses
     * it. */
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = fs->open(fs->self, folder, path_name(path), flags, 0666);
    if (fd < 0) error_set(err, n, "cannot create %s: %s", path, strerror(errno));
    return fd;
}

/* Syncs and closes a file. The result of close counts, because some file systems report an earlier
 * write error only then. If an error has been reported before (`good` is false), the file is closed
 * without another message. */
static bool finish_file(const FsOps *fs, int fd, const char *path, bool good, char *err, size_t n)
{
    good = good && fs_sync(fs, fd, path, err, n);
    if (fs->close(fs->self, fd) != 0 && good)
        good = error_set(err, n, "cannot write %s: %s", path, strerror(errno));
    return good;
}

bool write_whole_file(const FsOps *fs, int folder, const char *path, const void *data, size_t bytes,
                      char *err, size_t n)
{
    int fd = create_file(fs, folder, path, err, n);
    return fd >= 0 &&
           finish_file(fs, fd, path, fs_write_all(fs, fd, data, bytes, path, err, n), err, n);
}

OutFile out_file_open(const FsOps *fs, const char *folder, char *err, size_t n)
{
    OutFile out = {.fs = fs, .folder = folder, .fd = -1, .err = err, .n = n};
    out.folder_fd = fs_open_folder(folder, err, n);
    out.good = out.folder_fd >= 0;
    return out;
}

void out_file_close(OutFile *o)
{
    if (o->folder_fd >= 0) close(o->folder_fd);
    o->folder_fd = -1;
}

void out_file_begin(OutFile *o, const char *name)
{
    o->path = text_format("%s/%s", o->folder, name);
    if (o->good) o->fd = create_file(o->fs, o->folder_fd, o->path, o->err, o->n);
    o->good = o->good && o->fd >= 0;
}

void out_file_put(OutFile *o, const void *data, size_t bytes)
{
    o->good = o->good && fs_write_all(o->fs, o->fd, data, bytes, o->path, o->err, o->n);
}

void out_file_end(OutFile *o)
{
    if (o->fd >= 0) o->good = finish_file(o->fs, o->fd, o->path, o->good, o->err, o->n);
    o->fd = -1;
    free(o->path);
    o->path = NULL;
}
