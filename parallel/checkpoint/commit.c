/* commit.c -- makes the folder of a save, completes it, and renames it to a checkpoint. See
 * commit.h. */
#include "parallel/checkpoint/commit.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/out_file.h"
#include "parallel/checkpoint/prune.h"
#include "parallel/grid/machines.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

void save_begin(Save *s, CheckpointIo *io, const char *run, int64_t step, const char *save_id,
                char *err, size_t n)
{
    *s = (Save){.fs = io->fs,
                .leads = checkpoint_io_leads(io),
                .far = machines_of(io->world).count > 1,
                .parent_fd = -1,
                .fd = -1,
                .run = must_strdup(run),
                .parent = checkpoint_parent(run),
                .final = checkpoint_path(run, step),
                .err = err,
                .n = n};
    snprintf(s->save_id, sizeof s->save_id, "%s", save_id);
    s->temporary = text_format("%s.tmp-%s", s->final, s->save_id);
}

void save_end(Save *s)
{
    if (s->fd >= 0) close(s->fd);
    if (s->parent_fd >= 0) close(s->parent_fd);
    layout_free(&s->layout);
    free(s->run);
    free(s->parent);
    free(s->final);
    free(s->temporary);
    free(s->aside);
    free(s->aside_warning);
    *s = (Save){.parent_fd = -1, .fd = -1};
}

void save_draw_id(char out[SAVE_ID_DIGITS + 1])
{
    uint64_t id = 0;
    CHECK(getrandom(&id, sizeof id, 0) == sizeof id, "the system gives no random number");
    snprintf(out, SAVE_ID_DIGITS + 1, "%016" PRIx64, id);
}

/* ---- the folder ------------------------------------------------------------------------------ */

bool save_open_parent(Save *s)
{
    if (!s->leads) return true;
    if (!fs_make_folders(s->fs, s->parent, s->err, s->n)) return false;
    s->parent_fd = fs_open_folder(s->parent, s->err, s->n);
    return s->parent_fd >= 0;
}

void save_remove_leftovers(Save *s)
{
    char ignored[256];
    if (s->leads) checkpoint_remove_leftovers(s->fs, s->parent_fd, ignored, sizeof ignored);
}

bool save_make_temporary(Save *s)
{
    if (!s->leads) return true;
    if (s->fs->make_folder(s->fs->self, s->parent_fd, path_name(s->temporary), 0777) != 0)
        return error_set(s->err, s->n, "cannot create the folder %s: %s", s->temporary,
                         strerror(errno));
    s->fd = fs_open_folder(s->temporary, s->err, s->n);
    return s->fd >= 0;
}

void save_remove_temporary(Save *s)
{
    char ignored[256];
    if (s->leads)
        fs_remove_tree(s->fs, s->parent_fd, path_name(s->temporary), ignored, sizeof ignored);
}

/* ---- its content ----------------------------------------------------------------------------- */

/* Opens the temporary folder as a reader would: manifest and headers must agree before it is
 * renamed to a checkpoint. The data are not read again, which would double the time of a save;
 * their checksums were computed from the bytes that were written. */
static bool reads_back(Save *s)
{
    char why[1024];
    Checkpoint *c = NULL;
    const Manifest *m = &s->layout.manifest;
    /* Rank 0 may see files that other machines have written only some seconds later. */
    for (int f = 0; f < m->n_files && s->far; f++) {
        char *path = text_format("%s/%s", s->temporary, m->file[f].name);
        fs_await(path);
        free(path);
    }
    bool good = checkpoint_open_unnamed(s->temporary, &c, why, sizeof why);
    checkpoint_close(c);
    return good || error_set(s->err, s->n, "what was written does not read back: %s", why);
}

static bool write_text(Save *s, const char *name, char *text, size_t bytes)
{
    char *path = text_format("%s/%s", s->temporary, name);
    bool good = write_whole_file(s->fs, s->fd, path, text, bytes, s->err, s->n);
    free(path);
    free(text);
    return good;
}

/* Writes the indexes, for parts with several files, and the manifest, which has all checksums. */
static bool write_texts(Save *s)
{
    const Manifest *m = &s->layout.manifest;
    size_t bytes;
    bool good = true;
    for (int part = 0; good && part < CHECKPOINT_PARTS; part++) {
        char *text = manifest_print_index(m, (CheckpointPart)part, &bytes);
        if (text == NULL) continue;
        good = write_text(s, checkpoint_index_name((CheckpointPart)part), text, bytes);
    }
    if (!good) return false;
    char *text = manifest_print(m, &bytes);
    return write_text(s, "manifest.json", text, bytes);
}

bool save_complete(Save *s)
{
    return !s->leads ||
           (write_texts(s) && fs_sync(s->fs, s->fd, s->temporary, s->err, s->n) && reads_back(s));
}

/* ---- the commit ------------------------------------------------------------------------------ */

/* fsyncs RUN/checkpoints, which has a new entry, and RUN, because the run's first save has just
 * created RUN/checkpoints in it. */
static bool sync_parents(Save *s)
{
    /* fsync of a file does not make its name durable. The name is stored in the folder, which needs
     * its own fsync. */
    int run_fd = fs_open_folder(s->run, s->err, s->n);
    bool good = run_fd >= 0 && fs_sync(s->fs, s->parent_fd, s->parent, s->err, s->n) &&
                fs_sync(s->fs, run_fd, s->run, s->err, s->n);
    if (run_fd >= 0) close(run_fd);
    return good;
}

bool save_commit(Save *s)
{
    const FsOps *fs = s->fs;
    const char *temporary = path_name(s->temporary), *final = path_name(s->final);
    if (!s->leads) return true;
    /* rename does not replace a folder that is not empty, so an existing folder with the final name
     * is moved out of the way first. */
    if (s->aside && fs->rename(fs->self, s->parent_fd, final, s->parent_fd, s->aside) != 0)
        return error_set(s->err, s->n, "cannot rename %s, which is not this save: %s", s->final,
                         strerror(errno));
    if (s->aside) log_warning("%s", s->aside_warning);
    if (fs->rename(fs->self, s->parent_fd, temporary, s->parent_fd, final) != 0)
        return error_set(s->err, s->n, "cannot rename %s to %s: %s", s->temporary, s->final,
                         strerror(errno));
    if (sync_parents(s)) return true;
    /* This save counts as failed, so no reader may find it: the rename is undone here, and the
     * caller removes the folder. */
    fs->rename(fs->self, s->parent_fd, final, s->parent_fd, temporary);
    return false;
}
