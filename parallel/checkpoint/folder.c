/* folder.c -- makes and parses the names of folders in RUN/checkpoints, and lists the steps there.
 * See folder.h. */
#include "parallel/checkpoint/folder.h"

#include "model/core/check.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names ----------------------------------------------------------------------------------- */

void checkpoint_step_name(char out[32], int64_t step)
{
    snprintf(out, 32, "step_%08" PRId64, step);
}

int64_t checkpoint_step_of(const char *name)
{
    /* Formatting the number again rejects every other spelling of it ("step_7", "step_+0000007"),
     * so two folders can never both be step 7. */
    char *end, again[32];
    if (strncmp(name, "step_", 5) != 0) return -1;
    errno = 0;
    int64_t step = strtoll(name + 5, &end, 10);
    checkpoint_step_name(again, step);
    return errno == 0 && step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

char *checkpoint_parent(const char *run)
{
    return text_format("%s/checkpoints", run);
}

char *checkpoint_path(const char *run, int64_t step)
{
    char name[32];
    checkpoint_step_name(name, step);
    return text_format("%s/checkpoints/%s", run, name);
}

bool checkpoint_gone(const char *path)
{
    struct stat st;
    return lstat(path, &st) != 0 && errno == ENOENT;
}

bool checkpoint_not_linked(const char *path, char *err, size_t n)
{
    if (!fs_is_link(path)) return true;
    return error_set(err, n, "%s is a symbolic link and not a checkpoint of this run", path);
}

/* ---- the list -------------------------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sets *steps to the steps whose folders are in `dir`. Returns their number, or -1 and sets errno
 * if the folder cannot be read. */
static int read_steps(DIR *dir, int64_t **steps)
{
    int n = 0, capacity = 16;
    struct dirent *e;
    *steps = must_alloc((size_t)capacity * sizeof **steps);
    while (errno = 0, (e = readdir(dir)) != NULL) {
        int64_t step = checkpoint_step_of(e->d_name);
        if (step < 0) continue;
        /* readdir returns names in no particular order, and may return names that are created or
         * removed during the loop. */
        if (n == capacity) *steps = must_realloc(*steps, (size_t)(capacity *= 2) * sizeof **steps);
        (*steps)[n++] = step;
    }
    return errno == 0 ? n : -1;
}

int checkpoint_list(const char *run, int64_t **steps, char *err, size_t n)
{
    char *path = checkpoint_parent(run);
    DIR *dir = opendir(path);
    /* A missing folder means that nothing has been saved yet, which is not an error. An unreadable
     * folder is an error: if it were treated as empty, the run would start again from step 0. */
    int why = errno, count = 0;
    *steps = NULL;
    if (dir != NULL) {
        count = read_steps(dir, steps);
        why = errno;
        closedir(dir);
    } else if (why != ENOENT || !checkpoint_gone(path)) {
        /* opendir also sets ENOENT for a dangling symbolic link. checkpoint_gone uses lstat, which
         * distinguishes it from a missing folder. */
        count = -1;
    }
    if (count > 0) qsort(*steps, (size_t)count, sizeof **steps, newest_first);
    if (count < 0) {
        free(*steps);
        *steps = NULL;
        if (why == ENOENT)
            error_set(err, n, "%s is a symbolic link to a folder that is not there", path);
        else
            error_set(err, n, "cannot list %s: %s", path, strerror(why));
    }
    free(path);
    return count;
}
