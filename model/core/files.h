/* files.h -- whole files: reading one, replacing one, and finding them by pattern or in PATH.
 *
 * Which reader: file_read for what a user named; file_read_own for what this program wrote into a
 * folder of its own; file_read_input for what may be a pipe or standard input; file_head for the
 * kernel's files under /proc and /sys. Which writer: file_write for bytes that are at hand,
 * AtomicFile for what is written piece by piece. Single calls, and reading at an offset, are
 * fs.h's. */
#ifndef MODEL_CORE_FILES_H
#define MODEL_CORE_FILES_H

#include "model/core/fs.h"
#include "model/core/string_list.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* The whole of a regular file that a user named, through symbolic links, zero-terminated; the
 * caller frees. *missing (may be NULL): it could not be opened. */
bool file_read(const char *path, char **contents, size_t *size, bool *missing, char *err, size_t n);
/* Whether file_read could open it, and how large it is. */
bool file_check(const char *path, size_t *size, char *err, size_t n);
/* The same for a file that this program wrote into a folder of its own: a symbolic link there is
 * refused. */
bool file_read_own(const char *path, char **contents, size_t *size, char *err, size_t n);
/* The same for one of `size` bytes that fs_open_file opened, for those who look at its size first;
 * `path` is for the message only. */
bool file_read_open(int fd, size_t size, const char *path, char **contents, char *err, size_t n);
/* The first `most` bytes of a file, of a pipe, whose writers are waited for, or of standard input
 * ("-"); the caller frees. NULL with the reason in *why. */
char *file_read_input(const char *path, size_t most, size_t *size, const char **why);
/* The beginning of a file whose size is not known beforehand, as much as fits into text[0..n) with
 * a zero after it; "" if it cannot be read. Allocates nothing. */
void file_head(const char *path, char *text, size_t n);

/* ---- writing --------------------------------------------------------------------------------- */

/* A file that appears under `path` complete or not at all: written under a temporary name beside
 * it, fsynced, renamed, and its folder fsynced; its modes follow the umask. After a false, and
 * instead of a commit, abort. */
typedef struct {
    const FsOps *fs;
    char *path, *temporary;
    int fd;
} AtomicFile;
bool atomic_file_open(AtomicFile *f, const FsOps *fs, const char *path, char *err, size_t n);
bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, char *err, size_t n);
/* The next write goes over the first bytes again: a header that says what came after it. */
bool atomic_file_rewind(AtomicFile *f, char *err, size_t n);
/* Frees what the file holds, too, whether it succeeds or not. */
bool atomic_file_commit(AtomicFile *f, char *err, size_t n);
/* Removes what was written; harmless after a commit. */
void atomic_file_abort(AtomicFile *f);

/* Replaces the file `path` by these bytes, in the same way. */
bool file_write(const FsOps *fs, const char *path, const void *data, size_t bytes, char *err,
                size_t n);
/* A new empty folder beside `path`, to be renamed to it; its modes follow the umask. Its name,
 * which the caller frees; NULL with a sentence. */
char *temporary_folder(const FsOps *fs, const char *path, char *err, size_t n);

/* ---- names ----------------------------------------------------------------------------------- */

/* The files that patterns name, in their order, sorted within a glob. A pattern that matches
 * nothing is an error, and so is one whose braces would take for ever to try. */
bool file_list(const StringList *patterns, StringList *out, char *err, size_t n);
/* What follows the last slash: the name of a file or folder. Part of `path`. */
const char *path_name(const char *path);
/* "folder of path/name"; the caller frees. */
char *path_beside(const char *path, const char *name);

#endif
