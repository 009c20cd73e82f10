/* shared_folder.c -- see shared_folder.h. */
#include "parallel/run/shared_folder.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/files.h"
#include "model/core/fs.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Returns the run folder, or out/ without --out, if it exists; otherwise the nearest existing
 * folder above it. The caller frees it. */
static char *nearest_folder(const char *out)
{
    char *path = path_trimmed(out ? out : "out"), *slash;
    while (!fs_is_folder(path)) {
        slash = strrchr(path, '/');
        if (slash == path && path[1] != '\0') {
            path[1] = '\0'; /* the root folder */
        } else if (slash == NULL || slash == path) {
            free(path);
            return must_strdup(".");
        } else {
            *slash = '\0';
        }
    }
    return path;
}

/* Writes the file for which the other machines look, and returns its path. On failure returns NULL
 * and sets err. Called on rank 0. The name is random, so no machine can have cached that it does
 * not exist. */
static char *write_token(const char *out, char *err, size_t n)
{
    uint64_t number = 0;
    CHECK(getrandom(&number, sizeof number, 0) == sizeof number, "the system gives no number");
    char *folder = nearest_folder(out);
    char *path = text_format("%s/.train-sees-%016" PRIx64, folder, number);
    free(folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 && fs_sync(&fs_system, fd, path, err, n);
    if (fd < 0) error_set(err, n, "cannot create %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (good) return path;
    if (fd >= 0) unlink(path);
    free(path);
    return NULL;
}

/* Returns whether this rank sees the file; sets err if not. */
static bool sees_token(Comm *world, const char *path, char *err, size_t n)
{
    static const double most = 5; /* seconds: some network file systems show a new file later */
    enum { PERIOD = 100000 };     /* microseconds */
    char place[300], first[300], here[2048];
    double start = seconds_now();
    while (access(path, F_OK) != 0) {
        int why = errno;
        if (seconds_now() - start < most) {
            usleep(PERIOD);
            continue;
        }
        if (getcwd(here, sizeof here) == NULL) snprintf(here, sizeof here, "an unknown folder");
        return error_set(
            err, n,
            "rank %d%s does not see the file %s, which rank 0%s has written where the "
            "run folder will be (%s, in %s); give --out a folder of a file system that "
            "all machines share, and start all ranks in the same working folder",
            world->rank, machines_place(world, world->rank, place, sizeof place), path,
            machines_place(world, 0, first, sizeof first), strerror(why), here);
    }
    return true;
}

/* Removes the file. Also called if any rank ends the program meanwhile. */
static void remove_token(void *path)
{
    unlink(path);
}

void shared_folder_require(Comm *world, const char *out)
{
    char err[4096] = "";
    Machines machines = machines_of(world);
    if (machines.count == 1) return;
    char *own = world->rank == 0 ? write_token(out, err, sizeof err) : NULL;
    if (own) ends_set_flush(remove_token, own);
    char *path = control_share_text(world, own);
    bool looks = path != NULL && machines.local_rank == 0 && world->rank > 0;
    bool good = path != NULL && (!looks || sees_token(world, path, err, sizeof err));
    good = control_agree(world, good, err, sizeof err);
    if (own) ends_set_flush(NULL, NULL);
    if (own) remove_token(own);
    free(path);
    free(own);
    if (!good) control_fail(world, EXIT_CANNOT_CREATE, "%s", err);
}
