/* prune.c -- removes checkpoints: leftovers of crashed saves, old checkpoints, and those that must
 * make room on a full disk. See prune.h and checkpoint.h.
 *
 * A checkpoint is first renamed to .trash-step_N and then removed file by file. If the process
 * crashes in between, the remaining folder does not look like a checkpoint, and the next save,
 * removal or start of the run deletes it. */
#include "parallel/checkpoint/prune.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/temporary.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- leftovers ------------------------------------------------------------------------------ */

/* Returns whether a crashed save or removal can have left a folder called `name`: exactly
 * step_N.tmp-ID, .trash-step_N or .trash-step_N-ID. Any other name, such as "step_3.tmp" or
 * "step_00000003.old", belongs to a user and is not removed. */
static bool is_leftover(const char *name)
{
    char step[32];
    bool trash = strncmp(name, ".trash-", 7) == 0;
    const char *at = trash ? name + 7 : name, *end = trash ? strchr(at, '-') : strstr(at, ".tmp-");
    size_t length = end ? (size_t)(end - at) : strlen(at);
    if ((!trash && end == NULL) || length >= sizeof step) return false;
    snprintf(step, sizeof step, "%.*s", (int)length, at);
    if (checkpoint_step_of(step) < 0) return false;
    return end == NULL || manifest_save_id_valid(end + (trash ? 1 : 5));
}

bool checkpoint_remove_leftovers(const FsOps *fs, int parent_fd, char *err, size_t n)
{
    /* closedir closes this descriptor, so parent_fd cannot be used. A duplicate made by dup would
     * share parent_fd's read position. */
    int fd = openat(parent_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        error_set(err, n, "cannot list the checkpoints: %s", strerror(errno));
        if (fd >= 0) close(fd);
        return false;
    }
    bool good = true;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_leftover(e->d_name)) good &= fs_remove_tree(fs, parent_fd, e->d_name, err, n);
    closedir(dir);
    return good;
}

bool checkpoint_tidy(CheckpointIo *io, const char *run, char *err, size_t n)
{
    char *parent = checkpoint_parent(run), why[512];
    int fd = fs_open_folder(parent, why, sizeof why);
    bool good = fd >= 0 && checkpoint_remove_leftovers(io->fs, fd, why, sizeof why);
    if (fd >= 0) close(fd);
    if (!good) error_set(err, n, "%s: %s", parent, why);
    temporary_sweep_folder(io->fs, parent); /* temporary files of best.json */
    free(parent);
    return good;
}

/* Returns whether step `step` is the run's beginning: the weights that were imported. They are not
 * removed, because nothing else in the run has them. */
static bool is_beginning(const char *run, int64_t step)
{
    char ignored[512], *path = step == 0 ? checkpoint_path(run, step) : NULL;
    Checkpoint *c = NULL;
    bool is =
        path && checkpoint_open(path, &c, ignored, sizeof ignored) && checkpoint_weights_only(c);
    checkpoint_close(c);
    free(path);
    return is;
}

/* Returns whether the checkpoint of this step stays, however old it is: the best one (`best`; 0:
 * none is recorded), each of a step divisible by keep_every (0: none), and the beginning. */
static bool stays(const char *run, int64_t step, int64_t best, int64_t keep_every)
{
    return (best > 0 && step == best) || (keep_every > 0 && step > 0 && step % keep_every == 0) ||
           is_beginning(run, step);
}

/* ---- pruning --------------------------------------------------------------------------------- */

/* Renames a checkpoint to `trash`, so that it is no longer a checkpoint. */
static bool discard_step(CheckpointIo *io, int parent_fd, int64_t step, char trash[static 48],
                         char *err, size_t n)
{
    char name[32];
    checkpoint_step_name(name, step);
    snprintf(trash, 48, ".trash-%s", name);
    return io->fs->rename(io->fs->self, parent_fd, name, parent_fd, trash) == 0 ||
           error_set(err, n, "cannot rename the old checkpoint %s: %s", name, strerror(errno));
}

/* Removes a checkpoint. The rename makes it disappear at once; deleting its files afterwards may be
 * slow, or fail. */
static bool remove_step(CheckpointIo *io, int parent_fd, int64_t step, char *err, size_t n)
{
    char trash[48];
    return discard_step(io, parent_fd, step, trash, err, n) &&
           fs_remove_tree(io->fs, parent_fd, trash, err, n);
}

/* Opens RUN/checkpoints, removes leftovers and lists the steps. There are two kinds of failure,
 * which both return false and set `err`. If the folder cannot be opened or listed, *parent_fd is -1
 * and there is no list. If only a leftover could not be removed, *parent_fd and the list are valid
 * and the caller may continue. */
static bool open_parent(const FsOps *fs, const char *run, int *parent_fd, int64_t **steps,
                        int *n_steps, char *err, size_t n)
{
    char *parent = checkpoint_parent(run);
    *parent_fd = fs_open_folder(parent, err, n);
    *steps = NULL;
    *n_steps = 0;
    free(parent);
    if (*parent_fd < 0) return false;
    bool good = checkpoint_remove_leftovers(fs, *parent_fd, err, n);
    *n_steps = checkpoint_list(run, steps, err, n);
    if (*n_steps >= 0) return good;
    close(*parent_fd);
    *parent_fd = -1;
    return false;
}

static bool prune(CheckpointIo *io, const char *run, int64_t newest, int keep, char *err, size_t n)
{
    CHECK(keep >= 1, "%d checkpoints to keep", keep);
    CheckpointBest best;
    int64_t *steps;
    int parent_fd, n_steps, kept = 0;
    bool known = checkpoint_best_read(run, &best, err, n);
    bool good = open_parent(io->fs, run, &parent_fd, &steps, &n_steps, err, n) && known;
    if (parent_fd < 0) return false;
    /* Without a readable best.json any checkpoint may be the best, so none is removed. */
    if (!known) n_steps = 0;
    for (int i = 0; i < n_steps; i++) {
        /* A step newer than the one just saved is damaged; the run has resumed from an older step
         * because of that. It stays as evidence until the run saves that step again. */
        if (steps[i] > newest) continue;
        if (kept >= keep) {
            if (stays(run, steps[i], best.step, io->keep_every)) continue;
            good &= remove_step(io, parent_fd, steps[i], err, n);
            continue;
        }
        /* Only a checkpoint that can be opened counts as kept, so damaged ones never displace the
         * last good one. The data are not verified, because that would read all kept checkpoints
         * after every save. */
        char why[512], *path = checkpoint_path(run, steps[i]);
        Checkpoint *c = NULL;
        kept += steps[i] == newest || checkpoint_open(path, &c, why, sizeof why);
        checkpoint_close(c);
        free(path);
    }
    free(steps);
    close(parent_fd);
    return good;
}

bool checkpoint_prune(CheckpointIo *io, const char *run, int64_t newest, int keep, char *err,
                      size_t n)
{
    bool good = !checkpoint_io_leads(io) || prune(io, run, newest, keep, err, n);
    return checkpoint_io_agree(io, good, err, n);
}

/* Does the work of checkpoint_remove_after, on rank 0. */
static bool remove_after(CheckpointIo *io, const char *run, int64_t step, char *err, size_t n)
{
    char trash[48];
    int64_t *steps;
    int parent_fd, n_steps, removed = 0;
    bool tidy = open_parent(io->fs, run, &parent_fd, &steps, &n_steps, err, n), good = true;
    if (parent_fd < 0) return false;
    if (!tidy) log_warning("%s", err);
    /* The newest is removed first. After a crash the remaining checkpoints are then those that the
     * run would have if it had stopped earlier. */
    while (good && removed < n_steps && steps[removed] > step) {
        good = discard_step(io, parent_fd, steps[removed], trash, err, n);
        if (good && !fs_remove_tree(io->fs, parent_fd, trash, err, n)) log_warning("%s", err);
        removed += good;
    }
    if (good && removed > 0) good = fs_sync(io->fs, parent_fd, run, err, n);
    close(parent_fd);
    free(steps);
    return good;
}

bool checkpoint_remove_after(CheckpointIo *io, const char *run, int64_t step, char *err, size_t n)
{
    bool good = !checkpoint_io_leads(io) || remove_after(io, run, step, err, n);
    return checkpoint_io_agree(io, good, err, n);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Returns whether the checkpoint can be opened and all its data match their checksums. */
static bool verifies(CheckpointIo *io, const char *run, int64_t step)
{
    char why[512], *path = checkpoint_path(run, step);
    Checkpoint *c = NULL;
    bool whole = checkpoint_open_everywhere(io, path, &c, why, sizeof why) &&
                 checkpoint_verify(io, c, why, sizeof why);
    checkpoint_close(c);
    free(path);
    return whole;
}

/* Reads the step of the best checkpoint, which must not be removed; 0 if there is none. Returns
 * false if it cannot be read: then any checkpoint may be the best. */
static bool find_best(const char *run, int64_t *step)
{
    char why[512];
    CheckpointBest best;
    bool known = checkpoint_best_read(run, &best, why, sizeof why);
    *step = best.step;
    return known;
}

int checkpoint_removable(const FsOps *fs, const char *run, int64_t newest, int64_t keep_every)
{
    char ignored[512];
    int64_t *steps, best;
    int parent_fd, n_steps, count = 0;
    open_parent(fs, run, &parent_fd, &steps, &n_steps, ignored, sizeof ignored);
    if (parent_fd < 0) return 0;
    bool known = find_best(run, &best);
    for (int i = 0; known && i < n_steps; i++)
        count += steps[i] < newest && !stays(run, steps[i], best, keep_every);
    free(steps);
    close(parent_fd);
    return count;
}

/* Removes checkpoints from the end of steps[0..n_steps), which is sorted newest first, until
 * `bytes` bytes are free, but never one that is kept for good. Returns how many it removed. */
static int remove_oldest(CheckpointIo *io, const char *run, int parent_fd, const int64_t *steps,
                         int n_steps, int64_t bytes)
{
    char why[512], *parent = checkpoint_parent(run);
    int64_t best;
    int removed = 0;
    if (!find_best(run, &best)) n_steps = 0;
    for (int i = n_steps - 1; i >= 0; i--) {
        if (stays(run, steps[i], best, io->keep_every)) continue;
        int64_t room = fs_room(io->fs, parent);
        /* The first one is removed without checking the free space: the save has just failed for
         * lack of space, and statvfs does not report quotas. */
        if (removed > 0 && (room < 0 || room >= bytes)) break;
        if (!remove_step(io, parent_fd, steps[i], why, sizeof why)) break;
        log_warning("the disk is full: the older checkpoint of step %" PRId64 " made room",
                    steps[i]);
        removed++;
    }
    free(parent);
    return removed;
}

int checkpoint_make_room(CheckpointIo *io, const char *run, int64_t bytes)
{
    char why[512];
    int64_t *steps, *ignored;
    int parent_fd = -1, n_steps = 0, good = 0, removed = 0;
    if (checkpoint_io_leads(io)) {
        open_parent(io->fs, run, &parent_fd, &ignored, &n_steps, why, sizeof why);
        free(ignored);
    }
    n_steps = checkpoint_list_everywhere(io, run, &steps, why, sizeof why);
    /* A resume would take the newest checkpoint that verifies, so it and all newer ones stay. This
     * is the only place where all data are verified before something is removed. */
    while (good < n_steps - 1 && !verifies(io, run, steps[good]))
        good++;
    if (parent_fd >= 0 && n_steps > good + 1)
        removed = remove_oldest(io, run, parent_fd, steps + good + 1, n_steps - good - 1, bytes);
    if (parent_fd >= 0) close(parent_fd);
    free(steps);
    checkpoint_io_share(io, &removed, sizeof removed);
    return removed;
}
