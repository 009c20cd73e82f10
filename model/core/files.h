/* files.h -- reads whole files, replaces them atomically, and finds files by pattern.
 *
 * To read: file_read for a file that the user named; file_read_own for a file that this program
 * wrote into its own folder; file_read_input for what may be a pipe or standard input; file_head
 * for the kernel's files under /proc and /sys. To write: file_write if all bytes are in memory,
 * AtomicFile to write piece by piece. fs.h has single system calls and reads at an offset. */
#ifndef MODEL_CORE_FILES_H
#define MODEL_CORE_FILES_H

#include "model/core/fs.h"
#include "model/core/string_list.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads a whole regular file that the user named, following symbolic links. *contents is terminated
 * by a zero byte; the caller frees it. If `missing` is not NULL, *missing tells whether the file
 * could not be opened. */
bool file_read(const char *path, char **contents, size_t *size, bool *missing, char *err, size_t n);
/* Returns whether file_read could open the file, and sets *size to its size. */
bool file_check(const char *path, size_t *size, char *err, size_t n);
/* Like file_read, but for a file that this program wrote into its own folder: a symbolic link is
 * refused. */
bool file_read_own(const char *path, char **contents, size_t *size, char *err, size_t n);
/* Reads a whole file of `size` bytes that fs_open_file has opened, for callers that check the size
 * first. `path` is only used in the error message. */
bool file_read_open(int fd, size_t size, const char *path, char **contents, char *err, size_t n);
/* Reads the first `most` bytes of a file, a pipe (waiting for its writers) or standard input ("-");
 * the caller frees. Returns NULL and sets *why on failure. */
char *file_read_input(const char *path, size_t most, size_t *size, const char **why);
/* Reads the beginning of a file of unknown size, as much as fits into text[0..n) with a zero byte
 * after it. text becomes "" if the file cannot be read. Allocates nothing. */
void file_head(const char *path, char *text, size_t n);

/* ---- writing --------------------------------------------------------------------------------- */

/* Replaces the file `path` atomically: after a crash it is complete or unchanged. The data is
 * written to a temporary file in the same folder, fsynced and renamed, and the folder is fsynced.
 * Permissions follow the umask. If a call returns false, or if the file is not to be committed,
 * call atomic_file_abort. */
typedef struct {
    const FsOps *fs;
    char *path, *temporary;
    int fd;
} AtomicFile;
bool atomic_file_open(AtomicFile *f, const FsOps *fs, const char *path, char *err, size_t n);
bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, char *err, size_t n);
/* Moves back to the start of the file, so that a header can be overwritten after the rest is
 * written. */
bool atomic_file_rewind(AtomicFile *f, char *err, size_t n);
/* Syncs the file and renames it to its final name. Frees what `f` holds, whether it succeeds or
 * not. */
bool atomic_file_commit(AtomicFile *f, char *err, size_t n);
/* Removes the temporary file. Does nothing after a commit. */
void atomic_file_abort(AtomicFile *f);

/* Replaces the file `path` by these bytes, atomically as described above. */
bool file_write(const FsOps *fs, const char *path, const void *data, size_t bytes, char *err,
                size_t n);
/* Like file_write, for the file `name` in a folder. */
bool file_write_in(const FsOps *fs, const char *folder, const char *name, const void *data,
                   size_t bytes, char *err, size_t n);
/* Creates an empty folder next to `path`, which the caller renames to `path` later. Permissions
 * follow the umask. Returns its name, which the caller frees, or NULL with an error message in
 * err. */
char *temporary_folder(const FsOps *fs, const char *path, char *err, size_t n);

/* Returns true if `bytes` bytes fit on the disk of `path`, which need not exist, or if the system
 * does not report the free space. Otherwise sets err. */
bool file_room(const FsOps *fs, const char *path, int64_t bytes, char *err, size_t n);

/* ---- file names and patterns ----------------------------------------------------------------- */

/* Expands each pattern and appends the matching files to `out`: patterns in the given order,
 * matches of one pattern sorted. Fails if a pattern matches nothing, or if its braces expand to too
 * many names. */
bool file_list(const StringList *patterns, StringList *out, char *err, size_t n);
/* Returns the part of `path` after the last slash, as a pointer into `path`. */
const char *path_name(const char *path);
/* Returns a copy of the path without the slashes at its end; the caller frees. */
char *path_trimmed(const char *path);
/* Returns the path of the file `name` in the same folder as `path`; the caller frees. */
char *path_beside(const char *path, const char *name);

#endif
