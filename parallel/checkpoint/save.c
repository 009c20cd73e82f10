/* save.c -- saving: write a temporary folder, sync it, read it back, rename it. See checkpoint.h.
 *
 * The order of the calls, and what a crash after each of them leaves:
 *   1. make RUN/checkpoints/step_N.tmp-ID, write and fsync its files, each by its writer; when all
 *      ranks agree that theirs are good, write and fsync the manifest, fsync the folder. Crash: a
 *      temporary folder, which no reader takes for a checkpoint and the next save removes.
 *   2. open it as any reader would. Wrong: the save fails, and nothing has changed for anybody.
 *   3. where step_N is there already and is not this save, rename it out of the way. Crash: step N
 * is not there; a resume takes the newest of the others.
 *   4. rename the temporary folder to step_N: from now on it is a checkpoint. Crash: the disk has
 *      the old name or the new one, and under either the whole content.
 *   5. fsync RUN/checkpoints and RUN: from now on it survives losing power, too.
 * All but the writers' files is rank 0's; the others learn how each part of it ended. */
#include "parallel/checkpoint/checkpoint.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/layout.h"
#include "parallel/checkpoint/prune.h"
#include "parallel/checkpoint/write.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* One save under way. */
typedef struct {
    CheckpointIo *io;
    const CheckpointContents *contents;
    char *run, *parent, *temporary, *final; /* paths */
    char *aside;         /* new name for a folder that has the name `final` already; else NULL */
    char *aside_warning; /* logged once it has been renamed so */
    int parent_fd, fd;   /* RUN/checkpoints; the temporary folder: rank 0's */
    char save_id[SAVE_ID_DIGITS + 1];
    Layout layout;
    char *err;
    size_t n;
} Save;

static bool leads(const Save *s)
{
    return checkpoint_io_leads(s->io);
}

/* Whether every rank succeeded; all get the same answer, and the sentence of the lowest that did
 * not. */
static bool agree(Save *s, bool good)
{
    return checkpoint_io_agree(s->io, good, s->err, s->n);
}

/* ---- the save -------------------------------------------------------------------------------- */

/* Opens what was written as a reader will: manifest and headers must agree before the folder may be
 * called a checkpoint. The data are not read again, which would double the time of a save; their
 * checksums were computed from the bytes that were written. */
static bool reads_back(Save *s)
{
    char why[1024];
    Checkpoint *c = NULL;
    bool good = checkpoint_open_unnamed(s->temporary, &c, why, sizeof why);
    checkpoint_close(c);
    return good || error_set(s->err, s->n, "what was written does not read back: %s", why);
}

/* The temporary folder, empty. */
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

/* What says which tensor is where: the indexes of parts in several files, and the manifest, which
 * has all checksums. */
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

/* Steps 1 and 2 of the order above: the temporary folder with all its files, on the disk. */
static bool write_content(Save *s)
{
    if (!agree(s, !leads(s) || make_temporary(s))) return false;
    bool good = write_tensors(s->io, s->contents, &s->layout, s->temporary, s->err, s->n);
    /* The manifest is written last: a folder that has one has all the files it names, synced. */
    if (!agree(s, good)) return false;
    return !leads(s) || (write_texts(s) && fs_sync(s->io->fs, s->fd, s->temporary, s->err, s->n) &&
                         reads_back(s));
}

/* fsyncs RUN/checkpoints, which has got a new name, and RUN, because the run's first save has just
 * made RUN/checkpoints. */
static bool sync_parents(Save *s)
{
    /* fsync of a file does not make its name durable: that is in the folder, which has its own. */
    int run_fd = fs_open_folder(s->run, s->err, s->n);
    bool good = run_fd >= 0 && fs_sync(s->io->fs, s->parent_fd, s->parent, s->err, s->n) &&
                fs_sync(s->io->fs, run_fd, s->run, s->err, s->n);
    if (run_fd >= 0) close(run_fd);
    return good;
}

/* Steps 3 to 5 of the order above. rename does not replace a folder that is not empty, so one that
 * has the final name is moved out of the way first. */
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
    /* The caller learns that this save failed, so nobody may find it: the rename is taken back,
     * and checkpoint_write removes the folder. */
    fs->rename(fs->self, s->parent_fd, final, s->parent_fd, temporary);
    return false;
}

/* Looks at what has the final name already, on all ranks. *saved: it is this step, and it
 * verifies. Otherwise s->aside becomes the name that it is moved to: a damaged checkpoint becomes
 * trash, which the end of the save removes; one that holds another step, which a person must have
 * renamed, is kept under a name that says which. False where it must not be read: it may be whole,
 * and then it must not be replaced. */
static bool inspect_final(Save *s, bool *saved)
{
    char why[1024];
    const char *final = path_name(s->final);
    Checkpoint *c = NULL;
    *saved = false;
    bool there = !leads(s) || !checkpoint_gone(s->final);
    checkpoint_io_share(s->io, &there, sizeof there);
    if (!there) return true;
    bool opens = checkpoint_io_agree(s->io, checkpoint_open_unnamed(s->final, &c, why, sizeof why),
                                     why, sizeof why);
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

/* Random, so that files of two saves of the same step can be distinguished when somebody mixes
 * them. */
static void draw_save_id(char out[SAVE_ID_DIGITS + 1])
{
    uint64_t id = 0;
    CHECK(getrandom(&id, sizeof id, 0) == sizeof id, "the system gives no random number");
    snprintf(out, SAVE_ID_DIGITS + 1, "%016" PRIx64, id);
}

/* Rank 0's folder RUN/checkpoints, made if it is missing. */
static bool open_parent(Save *s)
{
    if (!fs_make_folders(s->io->fs, s->parent, s->err, s->n)) return false;
    s->parent_fd = fs_open_folder(s->parent, s->err, s->n);
    return s->parent_fd >= 0;
}

/* Whether the leftovers of others could be removed does not decide about this save. */
static void remove_leftovers(Save *s)
{
    char ignored[256];
    if (leads(s)) checkpoint_remove_leftovers(s->io, s->parent_fd, ignored, sizeof ignored);
}

/* Writes and commits; where either fails on any rank, nothing of it stays. */
static bool save_anew(Save *s)
{
    char ignored[256];
    layout_build(&s->layout, s->contents, checkpoint_io_ranks(s->io), s->save_id);
    remove_leftovers(s); /* they may be what fills the disk */
    bool good = write_content(s);
    good = agree(s, good && (!leads(s) || commit(s)));
    if (!good && leads(s))
        fs_remove_tree(s->io->fs, s->parent_fd, path_name(s->temporary), ignored, sizeof ignored);
    if (good) remove_leftovers(s);
    return good;
}

bool checkpoint_write(CheckpointIo *io, const char *run, const CheckpointContents *contents,
                      char *err, size_t n)
{
    Save s = {.io = io, .contents = contents, .parent_fd = -1, .fd = -1, .err = err, .n = n};
    bool saved = false;
    /* One id for all: it is in the name of the temporary folder and in every rank's files. */
    if (leads(&s)) draw_save_id(s.save_id);
    checkpoint_io_share(io, s.save_id, sizeof s.save_id);
    s.run = must_strdup(run);
    s.parent = checkpoint_parent(run);
    s.final = checkpoint_path(run, contents->state->steps);
    s.temporary = text_format("%s.tmp-%s", s.final, s.save_id);
    bool good = agree(&s, !leads(&s) || open_parent(&s));
    if (good) good = inspect_final(&s, &saved);
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
    /* A quota counts the bytes of one user and leaves the disk room: both are full to this run. */
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
    /* Texts grow by their escapes. A tensor has a row in its header and one in the manifest: 400
     * bytes without its name, which is in both, and 12 for every chunk's checksum; with several
     * writers also one in an index, and another file's name in the manifest's. */
    int64_t total = 8192 + 2 * (int64_t)text + 1024 * (writers - 1);
    for (int i = 0; i < contents->n_weights + contents->n_slots; i++) {
        SafetensorsEntry e = layout_entry(contents_piece(contents, i));
        total +=
            e.bytes + 400 + 2 * (int64_t)strlen(e.name) + 12 * (int64_t)manifest_chunk_count(&e);
        if (writers > 1) total += 80 + (int64_t)strlen(e.name);
    }
    return total;
}
