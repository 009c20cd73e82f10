/* files.c -- see files.h. */
#include "model/core/files.h"

#include "model/core/check.h"
#include "model/core/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

bool file_read(const char *path, char **contents, size_t *size, bool *missing, char *err, size_t n)
{
    *contents = NULL;
    *size = 0;
    if (missing) *missing = true;
    int64_t bytes;
    const char *why;
    int fd = fs_open_input(path, false, &bytes, &why);
    if (fd < 0) return error_set(err, n, "%s cannot be opened: %s", path, why);
    if (missing) *missing = false;
    size_t total = (size_t)bytes, done = 0;
    char *text = must_alloc(total + 1);
    while (done < total) {
        ssize_t got = read(fd, text + done, total - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    close(fd);
    if (done < total) {
        free(text);
        return error_set(err, n, "%s: only %zu of %zu bytes could be read", path, done, total);
    }
    text[total] = 0;
    *contents = text;
    *size = total;
    return true;
}

/* Numbers to try: a name may be taken by another thread, or by a process of the same number that
 * was killed. */
enum { TEMPORARY_NAMES = 1000 };

static char *temporary_name(const char *path, int attempt)
{
    return text_format("%s.tmp-%ld-%d", path, (long)getpid(), attempt);
}

char *temporary_folder(const char *path, char *err, size_t n)
{
    for (int i = 0; i < TEMPORARY_NAMES; i++) {
        char *name = temporary_name(path, i);
        if (mkdir(name, 0777) == 0) return name;
        free(name);
        if (errno != EEXIST) break;
    }
    error_set(err, n, "a folder beside %s cannot be created: %s", path, strerror(errno));
    return NULL;
}

bool atomic_file_open(AtomicFile *f, const char *path, char *err, size_t n)
{
    int fd = -1;
    *f = (AtomicFile){.path = must_strdup(path)};
    for (int i = 0; fd < 0 && i < TEMPORARY_NAMES; i++) {
        free(f->temporary);
        f->temporary = temporary_name(path, i);
        fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd >= 0) f->to = fdopen(fd, "wb");
    if (f->to != NULL) return true;
    error_set(err, n, "%s cannot be created: %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(f->temporary);
    }
    free(f->path);
    free(f->temporary);
    *f = (AtomicFile){0};
    return false;
}

void atomic_file_abort(AtomicFile *f)
{
    if (f->to) fclose(f->to);
    if (f->temporary) unlink(f->temporary);
    free(f->path);
    free(f->temporary);
    *f = (AtomicFile){0};
}

bool atomic_file_commit(AtomicFile *f, char *err, size_t n)
{
    bool written = !ferror(f->to) && fflush(f->to) == 0 && fsync(fileno(f->to)) == 0;
    bool closed = fclose(f->to) == 0;
    f->to = NULL;
    bool good = written && closed && rename(f->temporary, f->path) == 0;
    if (good) {
        char *folder = path_beside(f->path, "");
        good = folder_sync(folder, err, n);
        free(folder);
        free(f->temporary);
        f->temporary = NULL;
    } else {
        error_set(err, n, "%s cannot be written: %s", f->path, strerror(errno));
    }
    atomic_file_abort(f);
    return good;
}

static void string_list_add(StringList *list, const char *item)
{
    list->item = must_realloc(list->item, (size_t)(list->count + 1) * sizeof *list->item);
    list->item[list->count++] = must_strdup(item);
}

void string_list_free(StringList *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    *list = (StringList){0};
}

enum {
    MAX_BRACES = 8,           /* one within the other */
    MAX_ALTERNATIVES = 10000, /* names that the braces of one pattern stand for */
    MAX_PATTERN = 64 << 10,   /* bytes */
};

/* Whether the braces of a pattern stand for few enough names, counted as the product of what each
 * pair lists: glob(3) tries them all, by recursion. Unmatched and escaped braces count as well. */
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
            alternatives *= commas[--depth] + 1; /* at most MAX_ALTERNATIVES * MAX_PATTERN */
            if (alternatives > MAX_ALTERNATIVES) return false;
        }
    }
    while (depth > 0 && alternatives <= MAX_ALTERNATIVES)
        alternatives *= commas[--depth] + 1;
    return alternatives <= MAX_ALTERNATIVES;
}

/* Whether a pattern may match nothing only because a folder must not be read. */
static bool denied(const char *pattern)
{
    glob_t found = {0};
    if (access(pattern, F_OK) != 0 && errno == EACCES) return true;
    int result = glob(pattern, GLOB_BRACE | GLOB_ERR, NULL, &found);
    bool refused = result == GLOB_ABORTED && errno == EACCES;
    globfree(&found); /* what it found before it was refused, too */
    return refused;
}

bool file_list(const StringList *patterns, StringList *out, char *err, size_t n)
{
    *out = (StringList){0};
    for (int i = 0; i < patterns->count; i++) {
        const char *pattern = patterns->item[i];
        glob_t found = {0};
        /* A name that exists is itself, even with brackets in it. */
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

bool folder_sync(const char *path, char *err, size_t n)
{
    int fd = fs_open_folder(path, err, n);
    bool good = fd >= 0 && fs_sync(&fs_system, fd, path, err, n);
    if (fd >= 0) close(fd);
    return good;
}

char *path_beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return text_format("./%s", name);
    return text_format("%.*s/%s", (int)(slash - path), path, name);
}
