/* faulty_fs.c -- wraps the file system calls and makes chosen ones fail. */
#include "tests/support/files/faulty_fs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts and logs the call. Returns true if it must fail. */
static bool goes_wrong(FaultyFs *fs, char letter, const char *name)
{
    fs->calls++;
    if ((letter == 'w' || letter == 's') && pthread_equal(pthread_self(), fs->home))
        fs->home_writes++;
    if (fs->log != NULL) {
        size_t used = strlen(fs->log);
        snprintf(fs->log + used, 4096 - used, "%c%s ", letter, name);
    }
    if (fs->fault == FAULT_ALWAYS) return fs->calls >= fs->at && letter != 'u';
    return (fs->fault == FAULT_ONCE || fs->fault == FAULT_KILL) && fs->calls == fs->at;
}

static int go_wrong(FaultyFs *fs)
{
    if (fs->fault == FAULT_KILL) _exit(FAULTY_KILLED);
    errno = fs->error;
    return -1;
}

static int faulty_open(void *self, int folder, const char *name, int flags, mode_t mode)
{
    if (goes_wrong(self, 'o', name)) return go_wrong(self);
    return fs_system.open(NULL, folder, name, flags, mode);
}

/* Returns the total size of all files below the folder `path`. */
static int64_t bytes_below(const char *path)
{
    int64_t bytes = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char below[4096];
        struct stat st;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || lstat(below, &st) != 0)
            continue;
        bytes += S_ISDIR(st.st_mode) ? bytes_below(below) : st.st_size;
    }
    if (dir != NULL) closedir(dir);
    return bytes;
}

static int64_t room_on(const FaultyFs *fs)
{
    return fs->capacity - bytes_below(fs->disk);
}

static int64_t faulty_room(void *self, const char *path)
{
    const FaultyFs *fs = self;
    if (fs->disk == NULL) return fs_system.room(NULL, path);
    errno = ENOTSUP;
    if (fs->room_unknown) return -1;
    if (access(path, F_OK) != 0) return -1;
    return room_on(fs);
}

static ssize_t faulty_write(void *self, int fd, const void *data, size_t n)
{
    FaultyFs *fs = self;
    if (goes_wrong(fs, 'w', "")) {
        if (fs->fault != FAULT_ALWAYS && fs_system.write(NULL, fd, data, n / 2) < 0) return -1;
        return go_wrong(fs);
    }
    if (fs->disk && room_on(fs) < (int64_t)n) {
        errno = ENOSPC;
        return -1;
    }
    if (fs->fault == FAULT_FLIP && fs->calls == fs->at && n > 0) {
        char first = (char)(*(const char *)data ^ 1);
        ssize_t one = fs_system.write(NULL, fd, &first, 1);
        ssize_t rest = one == 1 ? fs_system.write(NULL, fd, (const char *)data + 1, n - 1) : -1;
        return rest < 0 ? -1 : 1 + rest;
    }
    if (fs->fault == FAULT_SHORT && fs->calls % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return fs_system.write(NULL, fd, data, fs->fault == FAULT_SHORT && n > 7 ? 7 : n);
}

static int faulty_sync(void *self, int fd)
{
    return goes_wrong(self, 's', "") ? go_wrong(self) : fs_system.sync(NULL, fd);
}

static int faulty_close(void *self, int fd)
{
    bool wrong = goes_wrong(self, 'c', "");
    int result = fs_system.close(NULL, fd); /* on Linux, a failed close still closes the file */
    return wrong ? go_wrong(self) : result;
}

static int faulty_rename(void *self, int from_folder, const char *from, int to_folder,
                         const char *to)
{
    if (goes_wrong(self, 'r', to)) return go_wrong(self);
    return fs_system.rename(NULL, from_folder, from, to_folder, to);
}

static int faulty_make_folder(void *self, int folder, const char *name, mode_t mode)
{
    if (goes_wrong(self, 'm', "")) return go_wrong(self);
    return fs_system.make_folder(NULL, folder, name, mode);
}

static int faulty_remove(void *self, int folder, const char *name, int flags)
{
    if (goes_wrong(self, 'u', "")) return go_wrong(self);
    return fs_system.remove(NULL, folder, name, flags);
}

void faulty_fs_init(FaultyFs *fs, Fault fault, int at, int error)
{
    *fs = (FaultyFs){.fault = fault,
                     .at = at,
                     .error = error,
                     .home = pthread_self(),
                     .ops = {.open = faulty_open,
                             .write = faulty_write,
                             .sync = faulty_sync,
                             .close = faulty_close,
                             .rename = faulty_rename,
                             .make_folder = faulty_make_folder,
                             .remove = faulty_remove,
                             .room = faulty_room,
                             .self = fs}};
}
