/* fs.h -- the calls with which files are written so that a crash at any moment leaves the old state
 * or the new one; files.h has what is made of them for whole files.
 *
 * What must survive a crash (checkpoints, whole files that are replaced, names, lines that are
 * appended) is changed through a table of functions, so that tests can fail or kill at the N-th
 * change. Past it go changes that lose nothing: the name in a run's lock, the removal of RUN/STOP,
 * the half of a line that a full disk took, and an empty file that fs_open_output makes. Reading
 * needs no such table.
 *
 * Functions return false with a sentence that names the path and the system's reason. */
#ifndef MODEL_CORE_FS_H
#define MODEL_CORE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The system calls that change something; same results and errno as theirs. `self` is handed back
 * to each. */
typedef struct FsOps {
    int (*open)(void *self, int folder, const char *name, int flags, mode_t mode); /* openat */
    ssize_t (*write)(void *self, int fd, const void *data, size_t n);
    int (*sync)(void *self, int fd); /* fsync */
    int (*close)(void *self, int fd);
    int (*rename)(void *self, int from_folder, const char *from, int to_folder, const char *to);
    int (*make_folder)(void *self, int folder, const char *name, mode_t mode);
    int (*remove)(void *self, int folder, const char *name, int flags); /* unlinkat */
    /* The bytes that may still be written where the folder `path` is; -1 with errno. */
    int64_t (*room)(void *self, const char *path);
    void *self;
} FsOps;

extern const FsOps fs_system; /* the calls themselves */

/* Opens the folder `path` for use with the *at calls; -1 with a sentence. */
int fs_open_folder(const char *path, char *err, size_t n);
/* Creates `path` and what is missing above it (mode 0777 less umask). */
bool fs_make_folders(const FsOps *fs, const char *path, char *err, size_t n);
/* Writes all n bytes, through short writes and interruptions. `path` is for the message only. */
bool fs_write_all(const FsOps *fs, int fd, const void *data, size_t bytes, const char *path,
                  char *err, size_t n);
/* fsync of a file or folder; file systems that cannot sync a folder are not at fault. */
bool fs_sync(const FsOps *fs, int fd, const char *path, char *err, size_t n);
/* The same for the folder `path`, so that names in it last. */
bool fs_sync_folder(const FsOps *fs, const char *path, char *err, size_t n);
/* Bytes that may still be written at `path`, which need not be there yet: its nearest folder that
 * is answers. -1: the system does not tell. */
int64_t fs_room(const FsOps *fs, const char *path);
/* Removes `name` below `folder` with all that is in it; symbolic links are removed, not followed.
 * True if it is gone. */
bool fs_remove_tree(const FsOps *fs, int folder, const char *name, char *err, size_t n);

/* Opens a regular file that a user named, following symbolic links, and tells its size. -1 with the
 * reason in *why when it cannot be opened or is something else. Never waits. With `or_pipe` a pipe
 * is accepted, too, and is in O_NONBLOCK: a read returns 0 while nobody has it open for writing,
 * and fails with EAGAIN while somebody has and it is empty. */
int fs_open_input(const char *path, bool or_pipe, int64_t *bytes, const char **why);
/* Opens a regular file below `folder` for reading (no symbolic link) and tells its size; -1 with a
 * sentence. */
int fs_open_file(int folder, const char *name, const char *path, int64_t *bytes, char *err,
                 size_t n);
/* Opens the regular file `path` for writing, which is made if it is missing (mode 0666 less umask):
 * through no symbolic link, and not a pipe or folder of that name. `flags` as open has them. -1
 * with a sentence. */
int fs_open_output(const char *path, int flags, char *err, size_t n);
/* Reads exactly n bytes at `offset`. */
bool fs_read_at(int fd, void *data, size_t bytes, int64_t offset, const char *path, char *err,
                size_t n);

#endif
