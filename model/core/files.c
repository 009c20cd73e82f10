/* files.c -- implements files.h: reads and replaces whole files, and expands path patterns. */
#include "model/core/files.h"

#include "model/core/check.h"
#include "model/core/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- reading --------------------------------------------------------------------------------- */

bool file_check(const char *path, size_t *size, char *err, size_t n)
{
    int64_t bytes = 0;
    const char *why;
    int fd = fs_open_input(path, false, &bytes, &why);
    if (fd < 0) return error_set(err, n, "%s cannot be opened: %s", path, why);
    close(fd);
    *size = (size_t)bytes;
    return true;
}

bool file_read_open(int fd, size_t size, const char *path, char **contents, char *err, size_t n)
{
    char *text = must_alloc(size + 1);
    text[size] = '\0';
    bool good = fs_read_at(fd, text, size, 0, path, err, n);
    if (!good) free(text);
    *contents = good ? text : NULL;
    return good;
}

/* Reads the open file `fd` into *contents and closes it. Returns false if fd is negative, because
 * the file could not be opened. */
static bool read_and_close(int fd, int64_t bytes, const char *path, char **contents, size_t *size,
                           char *err, size_t n)
{
    bool good = fd >= 0 && file_read_open(fd, (size_t)bytes, path, contents, err, n);
    if (fd >= 0) close(fd);
    *size = good ? (size_t)bytes : 0;
    return good;
}

bool file_read(const char *path, char **contents, size_t *size, bool *missing, char *err, size_t n)
{
    int64_t bytes;
    const char *why;
    *contents = NULL;
    int fd = fs_open_input(path, false, &bytes, &why);
    if (missing) *missing = fd < 0;
    if (fd < 0) error_set(err, n, "%s cannot be opened: %s", path, why);
    return read_and_close(fd, bytes, path, contents, size, err, n);
}

bool file_read_own(const char *path, char **contents, size_t *size, char *err, size_t n)
{
    int64_t bytes;
    *contents = NULL;
    int fd = fs_open_file(AT_FDCWD, path, path, &bytes, err, n);
    return read_and_close(fd, bytes, path, contents, size, err, n);
}

/* Reads until the end of the file or until `most` bytes are read. Returns the number of bytes, or
 * -1 with errno set. */
static ssize_t read_until_full(int fd, char *to, size_t most)
{
    size_t done = 0;
    while (done < most) {
        ssize_t got = read(fd, to + done, most - done);
        if (got == 0) break;
        if (got > 0)
            done += (size_t)got;
        else if (errno == EAGAIN) /* an empty pipe that still has a writer */
            poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1);
        else if (errno != EINTR)
            return -1;
    }
    return (ssize_t)done;
}

char *file_read_input(const char *path, size_t most, size_t *size, const char **why)
{
    bool standard = strcmp(path, "-") == 0;
    int64_t bytes;
    int fd = standard ? STDIN_FILENO : fs_open_input(path, true, &bytes, why);
    if (fd < 0) return NULL;
    char *text = must_alloc(most);
    ssize_t got = read_until_full(fd, text, most);
    if (got < 0) {
        *why = strerror(errno);
        free(text);
        text = NULL;
    }
    *size = got < 0 ? 0 : (size_t)got;
    if (!standard) close(fd);
    return text;
}

void file_head(const char *path, char *text, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read_until_full(fd, text, n - 1);
    if (fd >= 0) close(fd);
    text[got < 0 ? 0 : got] = '\0';
}

/* ---- writing --------------------------------------------------------------------------------- */

/* How many temporary names to try. A name may be taken by another thread, or left over from a
 * killed process that had the same process id. */
enum { TEMPORARY_NAMES = 1000 };

static char *temporary_name(const char *path, int attempt)
{
    return text_format("%s.tmp-%ld-%d", path, (long)getpid(), attempt);
}

bool file_write_in(const FsOps *fs, const char *folder, const char *name, const void *data,
                   size_t bytes, char *err, size_t n)
{
    char *path = text_format("%s/%s", folder, name);
    bool good = file_write(fs, path, data, bytes, err, n);
    free(path);
    return good;
}

bool file_room(const FsOps *fs, const char *path, int64_t bytes, char *err, size_t n)
{
    int64_t room = fs_room(fs, path);
    return room < 0 || room >= bytes ||
           error_set(err, n, "%s takes %s, and its disk has room for %s", path,
                     figure_bytes((double)bytes).text, figure_bytes((double)room).text);
}

char *temporary_folder(const FsOps *fs, const char *path, char *err, size_t n)
{
    for (int i = 0; i < TEMPORARY_NAMES; i++) {
        char *name = temporary_name(path, i);
        if (fs->make_folder(fs->self, AT_FDCWD, name, 0777) == 0) return name;
        free(name);
        if (errno != EEXIST) break;
    }
    error_set(err, n, "a folder beside %s cannot be created: %s", path, strerror(errno));
    return NULL;
}

bool atomic_file_open(AtomicFile *f, const FsOps *fs, const char *path, char *err, size_t n)
{
    /* O_EXCL: neither overwrites an existing file nor follows a symbolic link. */
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    *f = (AtomicFile){.fs = fs, .path = must_strdup(path), .fd = -1};
    for (int i = 0; f->fd < 0 && i < TEMPORARY_NAMES; i++) {
        free(f->temporary);
        f->temporary = temporary_name(path, i);
        f->fd = fs->open(fs->self, AT_FDCWD, f->temporary, flags, 0666);
        if (f->fd < 0 && errno != EEXIST) break;
    }
    if (f->fd >= 0) return true;
    error_set(err, n, "cannot create %s: %s", f->temporary, strerror(errno));
    atomic_file_abort(f);
    return false;
}

bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, char *err, size_t n)
{
    return fs_write_all(f->fs, f->fd, data, bytes, f->temporary, err, n);
}

bool atomic_file_rewind(AtomicFile *f, char *err, size_t n)
{
    return lseek(f->fd, 0, SEEK_SET) == 0 ||
           error_set(err, n, "cannot write %s: %s", f->temporary, strerror(errno));
}

void atomic_file_abort(AtomicFile *f)
{
    if (f->fd >= 0 && f->fs != NULL) {
        f->fs->close(f->fs->self, f->fd);
        f->fs->remove(f->fs->self, AT_FDCWD, f->temporary, 0);
    }
    free(f->path);
    free(f->temporary);
    *f = (AtomicFile){.fd = -1};
}

/* Returns the folder that contains `path`; the caller frees. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return must_strdup(".");
    if (slash == path) return must_strdup("/");
    return text_format("%.*s", (int)(slash - path), path);
}

bool atomic_file_commit(AtomicFile *f, char *err, size_t n)
{
    const FsOps *fs = f->fs;
    int fd = f->fd;
    /* Sync the data before the rename, so that after a crash the new name never refers to an
     * incomplete file. */
    bool good = fs_sync(fs, fd, f->temporary, err, n);
    f->fd = -1;
    /* Some file systems report only on close that they could not store the data. */
    if (fs->close(fs->self, fd) != 0 && good)
        good = error_set(err, n, "cannot write %s: %s", f->temporary, strerror(errno));
    if (good && fs->rename(fs->self, AT_FDCWD, f->temporary, AT_FDCWD, f->path) != 0)
        good =
            error_set(err, n, "cannot rename %s to %s: %s", f->temporary, f->path, strerror(errno));
    if (!good) fs->remove(fs->self, AT_FDCWD, f->temporary, 0);
    char *folder = folder_of(f->path);
    good = good && fs_sync_folder(fs, folder, err, n); /* makes the new name durable, too */
    free(folder);
    atomic_file_abort(f);
    return good;
}

bool file_write(const FsOps *fs, const char *path, const void *data, size_t bytes, char *err,
                size_t n)
{
    AtomicFile f;
    if (!atomic_file_open(&f, fs, path, err, n)) return false;
    if (atomic_file_write(&f, data, bytes, err, n)) return atomic_file_commit(&f, err, n);
    atomic_file_abort(&f);
    return false;
}

/* ---- file names and patterns ----------------------------------------------------------------- */

enum {
    MAX_BRACES = 8,           /* deepest nesting of braces */
    MAX_ALTERNATIVES = 10000, /* names that the braces of one pattern may expand to */
    MAX_PATTERN = 64 << 10,   /* longest pattern, in bytes */
};

/* Returns whether the braces of a pattern expand to few enough names, because glob(3) tries them
 * all recursively. The number is estimated as the product of the alternatives in each pair;
 * unmatched and escaped braces count as well. */
static bool braces_bounded(const char *pattern)
{
    int64_t commas[MAX_BRACES], alternatives = 1;
    int depth = 0;
    if (strlen(pattern) > MAX_PATTERN) return false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '{') {
            if (depth == MAX_BRACES) return false;
            commas[depth++] = 0;
        } else if (*p == ',' && depth > 0) {
            commas[depth - 1]++;
        } else if (*p == '}' && depth > 0) {
            /* Cannot overflow: the product is at most MAX_ALTERNATIVES * MAX_PATTERN. */
            alternatives *= commas[--depth] + 1;
            if (alternatives > MAX_ALTERNATIVES) return false;
        }
    }
    while (depth > 0 && alternatives <= MAX_ALTERNATIVES)
        alternatives *= commas[--depth] + 1;
    return alternatives <= MAX_ALTERNATIVES;
}

/* Returns whether a pattern that matched nothing failed because a folder is not readable. */
static bool denied(const char *pattern)
{
    glob_t found = {0};
    if (access(pattern, F_OK) != 0 && errno == EACCES) return true;
    int result = glob(pattern, GLOB_BRACE | GLOB_ERR, NULL, &found);
    bool refused = result == GLOB_ABORTED && errno == EACCES;
    globfree(&found); /* also frees names that were found before the error */
    return refused;
}

bool file_list(const StringList *patterns, StringList *out, char *err, size_t n)
{
    *out = (StringList){0};
    for (int i = 0; i < patterns->count; i++) {
        const char *pattern = patterns->item[i];
        glob_t found = {0};
        /* Treat an existing path as a name, not as a pattern, even if it contains brackets. */
        if (access(pattern, F_OK) == 0) {
            string_list_add(out, pattern);
            continue;
        }
        if (!braces_bounded(pattern)) {
            string_list_free(out);
            return error_set(err, n,
                             "the braces of %.60s... stand for more than %d names or lie more than "
                             "%d deep: name the files by several patterns",
                             pattern, (int)MAX_ALTERNATIVES, (int)MAX_BRACES);
        }
        /* glob sorts its results, so the order of shards, and with it the order of samples, does
         * not depend on the disk. */
        int result = glob(pattern, GLOB_BRACE, NULL, &found);
        for (size_t k = 0; result == 0 && k < found.gl_pathc; k++)
            string_list_add(out, found.gl_pathv[k]);
        globfree(&found);
        if (result != 0) {
            string_list_free(out);
            if (denied(pattern))
                return error_set(err, n, "cannot look for %s: %s", pattern, strerror(EACCES));
            return error_set(err, n, "no file matches %s", pattern);
        }
    }
    return true;
}

const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *path_trimmed(const char *path)
{
    char *trimmed = must_strdup(path);
    for (size_t n = strlen(trimmed); n > 1 && trimmed[n - 1] == '/'; n--)
        trimmed[n - 1] = '\0';
    return trimmed;
}

char *path_beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return text_format("./%s", name);
    return text_format("%.*s/%s", (int)(slash - path), path, name);
}
