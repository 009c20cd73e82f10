/* save.c -- saves a checkpoint: writes a temporary folder, syncs it, reads it back and renames it.
 * See checkpoint.h.
 *
 * The steps of a save, and what a crash during or after each of them leaves:
 *   1. Make RUN/checkpoints/step_N.tmp-ID. Each writer writes and fsyncs its files there. When all
 *      ranks agree that their files are good, write and fsync the manifest and fsync the folder.
 *      Crash: a temporary folder remains. Readers ignore it, and the next save removes it.
 *   2. Open the folder as any reader would. If that fails, the save fails and nothing has changed.
 *   3. If step_N exists already and is not this save, rename it. Crash: step N does not exist; a
 *      resume takes the newest of the other checkpoints.
 *   4. Rename the temporary folder to step_N: from now on it is a checkpoint. Crash: the disk has
 *      either the old name or the new one, and the content is complete under both.
 *   5. fsync RUN/checkpoints and RUN: from now on the checkpoint also survives a power failure.
 * Rank 0 does everything except for the other writers' files. After each of these phases the ranks
 * agree on whether it succeeded. */
#include "parallel/checkpoint/checkpoint.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/layout.h"
#include "parallel/checkpoint/prune.h"
#include "parallel/checkpoint/write.h"
#include "parallel/grid/machines.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The state of a save. */
typedef struct {
    CheckpointIo *io;
    const CheckpointContents *contents;
    char *run, *parent, *temporary, *final; /* paths of the run and of the folders below it */
    char *aside;         /* new name for an existing folder at `final`; else NULL */
    char *aside_warning; /* logged after that folder has been renamed */
    int parent_fd, fd;   /* RUN/checkpoints; the temporary folder; only on rank 0 */
    char save_id[SAVE_ID_DIGITS + 1];
    Layout layout;
    char *err;
    size_t n;
} Save;

static bool leads(const Save *s)
{
    return checkpoint_io_leads(s->io);
}

/* Returns whether `good` is true on every rank. All ranks get the same result, and the error
 * message of the lowest rank that failed. */
static bool agree(Save *s, bool good)
{
    return checkpoint_io_agree(s->io, good, s->err, s->n);
}

/* ---- the save -------------------------------------------------------------------------------- */

/* Opens the temporary folder as a reader would: manifest and headers must agree before it is
 * renamed to a checkpoint. The data are not read again, which would double the time of a save;
 * their checksums were computed from the bytes that were written. */
static bool reads_back(Save *s)
{
    char why[1024];
    Checkpoint *c = NULL;
    const Manifest *m = &s->layout.manifest;
    /* Rank 0 may see what other machines have written some seconds later. */
    for (int f = 0; f < m->n_files && machines_of(s->io->world).count > 1; f++) {
        char *path = text_format("%s/%s", s->temporary, m->file[f].name);
        fs_await(path);
        free(path);
    }
    bool good = checkpoint_open_unnamed(s->temporary, &c, why, sizeof why);
    checkpoint_close(c);
    return good || error_set(s->err, s->n, "what was written does not read back: %s", why);
}

/* Creates the temporary folder. */
static bool make_temporary(Save *s)
{
    const FsOps *fs = s->io->fs;
    if (fs->make_folder(fs->self, s->parent_fd, path_name(s->temporary), 0777) != 0)
        return error_set(s->err, s->n, "cannot create the folder %s: %s", s->temporary,
                         strerror(errno));
    s->fd = fs_open_folder(s->temporary, s->err, s->n);
    return s->fd >= 0;
}

static bool write_text(Save *s, const char *name, char *text, size_t bytes)
{
    char *path = text_format("%s/%s", s->temporary, name);
    bool good = write_whole_file(s->io->fs, s->fd, path, text, bytes, s->err, s->n);
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

/* Steps 1 and 2 of the list above: writes and syncs the temporary folder with all its files, and
 * opens it. */
static bool write_content(Save *s)
{
    if (!agree(s, !leads(s) || make_temporary(s))) return false;
    bool good = write_tensors(s->io, s->contents, &s->layout, s->temporary, s->err, s->n);
    /* The manifest is written last: if a folder has a manifest, all the files that it names are
     * there and synced. */
    if (!agree(s, good)) return false;
    return !leads(s) || (write_texts(s) && fs_sync(s->io->fs, s->fd, s->temporary, s->err, s->n) &&
                         reads_back(s));
}

/* fsyncs RUN/checkpoints, which has a new entry, and RUN, because the run's first save has just
 * created RUN/checkpoints in it. */
static bool sync_parents(Save *s)
{
    /* fsync of a file does not make its name durable. The name is stored in the folder, which needs
     * its own fsync. */
    int run_fd = fs_open_folder(s->run, s->err, s->n);
    bool good = run_fd >= 0 && fs_sync(s->io->fs, s->parent_fd, s->parent, s->err, s->n) &&
                fs_sync(s->io->fs, run_fd, s->run, s->err, s->n);
    if (run_fd >= 0) close(run_fd);
    return good;
}

/* Steps 3 to 5 of the list above. rename does not replace a folder that is not empty, so an
 * existing folder with the final name is moved out of the way first. */
static bool commit(Save *s)
{
    const FsOps *fs = s->io->fs;
    const char *temporary = path_name(s->temporary), *final = path_name(s->final);
    if (s->aside && fs->rename(fs->self, s->parent_fd, final, s->parent_fd, s->aside) != 0)
        return error_set(s->err, s->n, "cannot rename %s, which is not this save: %s", s->final,
                         strerror(errno));
    if (s->aside) log_warning("%s", s->aside_warning);
    if (fs->rename(fs->self, s->parent_fd, temporary, s->parent_fd, final) != 0)
        return error_set(s->err, s->n, "cannot rename %s to %s: %s", s->temporary, s->final,
                         strerror(errno));
    if (sync_parents(s)) return true;
    /* The caller is told that this save failed, so no reader may find it: the rename is undone
     * here, and save_anew removes the folder. */
    fs->rename(fs->self, s->parent_fd, final, s->parent_fd, temporary);
    return false;
}

/* Checks on all ranks what exists under the final name. Sets *saved if it is this step and
 * verifies. Otherwise sets s->aside to the name to which it will be moved. A damaged checkpoint
 * becomes trash, which is removed at the end of the save. A checkpoint that holds another step must
 * have been renamed by a user; it is kept under a name that contains its step. Returns false if it
 * may not be read: it may be intact, and must then not be replaced. */
static bool inspect_final(Save *s, bool *saved)
{
    char why[1024];
    const char *final = path_name(s->final);
    Checkpoint *c = NULL;
    *saved = false;
    bool there = !leads(s) || !checkpoint_gone(s->final);
    checkpoint_io_share(s->io, &there, sizeof there);
    if (!there) return true;
    if (checkpoint_io_far(s->io)) fs_await(s->final);
    bool opens = checkpoint_not_linked(s->final, why, sizeof why) &&
                 checkpoint_open_unnamed(s->final, &c, why, sizeof why);
    opens = checkpoint_io_agree(s->io, opens, why, sizeof why);
    int64_t step = opens ? checkpoint_manifest(c)->state.steps : -1;
    *saved =
        opens && step == s->contents->state->steps && checkpoint_verify(s->io, c, why, sizeof why);
    checkpoint_close(c);
    if (*saved) return true;
    if (opens && step != s->contents->state->steps) {
        s->aside = text_format("%s.holds-%" PRId64 "-%s", final, step, s->save_id);
        s->aside_warning =
            text_format("%s held step %" PRId64 ": it was moved to %s", s->final, step, s->aside);
        return true;
    }
    if (error_exit_code(why, EXIT_OK) == EXIT_PERMISSION) return error_set(s->err, s->n, "%s", why);
    s->aside = text_format(".trash-%s-%s", final, s->save_id);
    s->aside_warning = text_format("a damaged checkpoint makes way for a new one: %s", why);
    return true;
}

/* Draws a random id, by which files of two saves of the same step can be told apart if somebody
 * mixes them. */
static void draw_save_id(char out[SAVE_ID_DIGITS + 1])
{
    uint64_t id = 0;
    CHECK(getrandom(&id, sizeof id, 0) == sizeof id, "the system gives no random number");
    snprintf(out, SAVE_ID_DIGITS + 1, "%016" PRIx64, id);
}

/* Opens RUN/checkpoints and creates it if it is missing; only rank 0 calls this. */
static bool open_parent(Save *s)
{
    if (!fs_make_folders(s->io->fs, s->parent, s->err, s->n)) return false;
    s->parent_fd = fs_open_folder(s->parent, s->err, s->n);
    return s->parent_fd >= 0;
}

/* Removes leftovers of earlier saves. A failure to remove them does not make this save fail. */
static void remove_leftovers(Save *s)
{
    char ignored[256];
    if (leads(s)) checkpoint_remove_leftovers(s->io->fs, s->parent_fd, ignored, sizeof ignored);
}

/* Writes and commits the save. If either fails on any rank, or if this is a trial, removes
 * everything that was written. */
static bool save_anew(Save *s)
{
    char ignored[256];
    layout_build(&s->layout, s->contents, checkpoint_io_ranks(s->io), s->save_id);
    remove_leftovers(s); /* leftovers may be what fills the disk */
    bool good = write_content(s);
    good = agree(s, good && (s->contents->trial || !leads(s) || commit(s)));
    if ((!good || s->contents->trial) && leads(s))
        fs_remove_tree(s->io->fs, s->parent_fd, path_name(s->temporary), ignored, sizeof ignored);
    if (good) remove_leftovers(s);
    return good;
}

bool checkpoint_write(CheckpointIo *io, const char *run, const CheckpointContents *contents,
                      char *err, size_t n)
{
    Save s = {.io = io, .contents = contents, .parent_fd = -1, .fd = -1, .err = err, .n = n};
    bool saved = false;
    /* All ranks use the same id: it is in the name of the temporary folder and in every rank's
     * files. */
    if (leads(&s)) draw_save_id(s.save_id);
    checkpoint_io_share(io, s.save_id, sizeof s.save_id);
    s.run = must_strdup(run);
    s.parent = checkpoint_parent(run);
    s.final = checkpoint_path(run, contents->state->steps);
    s.temporary = text_format("%s.tmp-%s", s.final, s.save_id);
    bool good = agree(&s, !leads(&s) || open_parent(&s));
    if (good && !contents->trial) good = inspect_final(&s, &saved);
    if (good && !saved) good = save_anew(&s);
    if (s.fd >= 0) close(s.fd);
    if (s.parent_fd >= 0) close(s.parent_fd);
    layout_free(&s.layout);
    free(s.run);
    free(s.parent);
    free(s.final);
    free(s.temporary);
    free(s.aside);
    free(s.aside_warning);
    return good;
}

bool checkpoint_write_making_room(CheckpointIo *io, const char *run,
                                  const CheckpointContents *contents, char *err, size_t n)
{
    /* A user's quota can be exhausted while the disk has free space (EDQUOT). Both cases count as a
     * full disk. */
    while (!checkpoint_write(io, run, contents, err, n)) {
        bool full = error_says(err, ENOSPC) || error_says(err, EDQUOT);
        if (!full || checkpoint_make_room(io, run, checkpoint_bytes(contents)) == 0) return false;
    }
    return true;
}

int64_t checkpoint_bytes(const CheckpointContents *contents)
{
    size_t text = strlen(contents->config) + strlen(contents->machine) + strlen(contents->code) +
                  strlen(contents->data);
    int64_t writers = contents->writers > 1 ? contents->writers : 1;
    /* Texts are counted twice, because JSON escapes make them longer. A tensor has an entry in its
     * header and one in the manifest: 400 bytes and twice its name, and 12 bytes for the checksum
     * of each chunk. With several writers it also has an entry in an index, and longer file
     * names. */
    int64_t total = 8192 + 2 * (int64_t)text + 1024 * (writers - 1);
    for (int i = 0; i < contents->n_weights + contents->n_slots; i++) {
        SafetensorsEntry e = layout_entry(contents_piece(contents, i));
        total +=
            e.bytes + 400 + 2 * (int64_t)strlen(e.name) + 12 * (int64_t)manifest_chunk_count(&e);
        if (writers > 1) total += 80 + (int64_t)strlen(e.name);
    }
    return total;
}
