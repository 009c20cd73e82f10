/* fs.h -- file system calls for writing files so that a crash at any moment leaves the old or the
 * new state. files.h builds whole-file operations on them.
 *
 * Changes that must survive a crash (checkpoints, replaced files, renames, appended lines) are made
 * through a table of functions, so that tests can make the N-th change fail or kill the process
 * there. A few changes bypass the table because losing them does no harm: the owner's name in a
 * run's lock file, the removal of RUN/STOP, cutting off a line that a full disk left incomplete,
 * and creating an empty file in fs_open_output. Reads do not use the table.
 *
 * Functions return false and set err to a message with the path and the system's reason. */
#ifndef MODEL_CORE_FS_H
#define MODEL_CORE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct dirent;

/* System calls that change the file system, with the results and errno of the originals. `self` is
 * passed to each of them. */
typedef struct FsOps {
    int (*open)(void *self, int folder, const char *name, int flags, mode_t mode); /* like openat */
    ssize_t (*write)(void *self, int fd, const void *data, size_t n);
    int (*sync)(void *self, int fd); /* like fsync */
    int (*close)(void *self, int fd);
    int (*rename)(void *self, int from_folder, const char *from, int to_folder, const char *to);
    int (*make_folder)(void *self, int folder, const char *name, mode_t mode);
    int (*remove)(void *self, int folder, const char *name, int flags); /* like unlinkat */
    /* Returns how many bytes may still be written in the folder `path`, or -1 with errno set. */
    int64_t (*room)(void *self, const char *path);
    void *self;
} FsOps;

extern const FsOps fs_system; /* the real system calls */

/* Opens the folder `path` for use with the *at calls. Returns -1 and sets err on failure. */
int fs_open_folder(const char *path, char *err, size_t n);
/* Creates the folder `path` and its missing parents (mode 0777 less umask). */
bool fs_make_folders(const FsOps *fs, const char *path, char *err, size_t n);
/* Writes all the bytes, continuing after short writes and interruptions. `path` is only used in the
 * error message. */
bool fs_write_all(const FsOps *fs, int fd, const void *data, size_t bytes, const char *path,
                  char *err, size_t n);
/* Calls fsync on a file or folder. A file system that cannot sync folders is not an error. */
bool fs_sync(const FsOps *fs, int fd, const char *path, char *err, size_t n);
/* Calls fsync on the folder `path`, so that new names in it survive a crash. */
bool fs_sync_folder(const FsOps *fs, const char *path, char *err, size_t n);
/* Returns how many bytes may still be written at `path`. If it does not exist yet, its nearest
 * existing parent folder is used. Returns -1 if the system does not report it. */
int64_t fs_room(const FsOps *fs, const char *path);
/* Returns whether `path` itself is a symbolic link. */
bool fs_is_link(const char *path);
/* Returns true if `path`, a folder that this program creates inside one of its own folders, is not
 * a symbolic link; otherwise sets err. */
bool fs_not_linked(const char *path, char *err, size_t n);
/* Returns whether `path`, which another machine has just created, exists. If it is not visible yet,
 * checks again for up to ten seconds, because a machine may remember for a while that a name on a
 * network file system did not exist. */
bool fs_await(const char *path);
/* Returns whether `path` is a folder, or a symbolic link to one. */
bool fs_is_folder(const char *path);
/* Lists a folder like scandir, which sets errno and returns -1 on failure: names that begin with a
 * dot are left out, the others are sorted by their bytes. The caller frees each of the entries and
 * their list. */
int fs_scan(const char *folder, struct dirent ***entries);
/* Removes `name` in `folder` with everything inside it. Symbolic links are removed, not followed.
 * Returns true if the name does not exist afterwards, even if it did not exist before. */
bool fs_remove_tree(const FsOps *fs, int folder, const char *name, char *err, size_t n);

/* Opens a regular file that the user named, following symbolic links, and sets *bytes to its size.
 * Returns -1 and sets *why if it cannot be opened or is something else. Never blocks. With
 * `or_pipe` a pipe is accepted, too, in O_NONBLOCK mode: read returns 0 while no process has it
 * open for writing, and fails with EAGAIN while it is empty but has a writer. */
int fs_open_input(const char *path, bool or_pipe, int64_t *bytes, const char **why);
/* Opens a regular file in `folder` for reading, refusing symbolic links, and sets *bytes to its
 * size. Returns -1 and sets err on failure. */
int fs_open_file(int folder, const char *name, const char *path, int64_t *bytes, char *err,
                 size_t n);
/* Opens the regular file `path` for writing and creates it if it is missing (mode 0666 less umask).
 * Refuses symbolic links, pipes and folders. `flags` are those of open. Returns -1 and sets err on
 * failure. */
int fs_open_output(const char *path, int flags, char *err, size_t n);
/* Reads exactly `bytes` bytes at `offset`. */
bool fs_read_at(int fd, void *data, size_t bytes, int64_t offset, const char *path, char *err,
                size_t n);

#endif
