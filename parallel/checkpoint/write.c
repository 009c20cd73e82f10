/* write.c -- saving: write a temporary folder, sync it, read it back, rename it. See
 * checkpoint.h.
 *
 * The order of the calls, and what a crash behind each of them leaves:
 *   1. make RUN/checkpoints/step_N.tmp-ID, write and fsync its files, fsync the folder. Crash: a
 *      temporary folder, which no reader takes for a checkpoint and the next save removes.
 *   2. open it as any reader would. Wrong: the save fails, and nothing has changed for anybody.
 *   3. where step_N stands already and is not this save, rename it out of the way. Crash: step N is
 *      not there; a resume takes the newest of the others.
 *   4. rename the temporary folder to step_N: from now on it is a checkpoint. Crash: the disk has
 *      the old name or the new one, with the whole content behind either.
 *   5. fsync RUN/checkpoints and RUN: from now on it survives losing power, too. */
#include "parallel/checkpoint/checkpoint.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/prune.h"

#include <errno.h>
#include <fcntl.h>
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
    char *aside;         /* new name for a folder that stands under `final` already; else NULL */
    char *aside_warning; /* logged once it has been renamed so */
    int parent_fd, fd;   /* RUN/checkpoints; the temporary folder */
    Manifest manifest;
    char *err;
    size_t n;
} Save;

/* ---- writing one file ------------------------------------------------------------------------ */

/* Writes a tensor's data and computes the checksum of every chunk from the bytes that are written.
 * A chunk is longer than the staging buffer, so it goes out in pieces; no piece reaches over the
 * end of its chunk. */
static bool write_tensor(Save *s, int fd, const char *path, Tensor tensor, ManifestTensor *t)
{
    int64_t chunk = manifest_chunk_bytes(&t->entry);
    for (int c = 0; c < t->n_chunks; c++) {
        int64_t at = c * chunk, end = at + chunk < t->entry.bytes ? at + chunk : t->entry.bytes;
        while (at < end) {
            size_t piece = checkpoint_io_piece(end - at);
            const void *data = checkpoint_io_fetch(s->io, tensor, at, piece);
            t->chunk[c] = crc32c(t->chunk[c], data, piece);
            if (!fs_write_all(s->io->fs, fd, data, piece, path, s->err, s->n)) return false;
            at += (int64_t)piece;
        }
    }
    return true;
}

/* Creates `path`, lets `write` fill it, syncs and closes it. Some file systems report an error of
 * an earlier write only in close, so its result counts as well. */
static bool write_file(Save *s, const char *path,
                       bool (*write)(Save *, int fd, const char *path, int which), int which)
{
    const FsOps *fs = s->io->fs;
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = fs->open(fs->self, s->fd, path_name(path), flags, 0666);
    if (fd < 0) return error_set(s->err, s->n, "cannot create %s: %s", path, strerror(errno));
    bool good = write(s, fd, path, which) && fs_sync(fs, fd, path, s->err, s->n);
    if (fs->close(fs->self, fd) != 0 && good)
        good = error_set(s->err, s->n, "cannot write %s: %s", path, strerror(errno));
    return good;
}

/* The tensors that belong in file `which`, and their number in *n. */
static const Piece *tensors_of(const CheckpointContents *contents, int which, int *n)
{
    *n = which == CHECKPOINT_WEIGHTS ? contents->n_weights : contents->n_slots;
    return which == CHECKPOINT_WEIGHTS ? contents->weights : contents->slots;
}

/* The header's row for a tensor; its offset follows when the header is laid out. */
static SafetensorsEntry entry_of(const Piece *named)
{
    SafetensorsEntry e = {
        .name = (char *)(uintptr_t)named->name, .dtype = named->dtype, .ndim = named->ndim};
    CHECK(safetensors_name_valid(named->name), "a tensor called '%s' cannot be saved", named->name);
    memcpy(e.dim, named->dim, sizeof e.dim);
    bool fits = safetensors_size(e.dtype, e.ndim, e.dim, &e.bytes);
    CHECK(fits && e.bytes > 0, "%s has %d dimensions and no size", named->name, e.ndim);
    return e;
}

static int by_name(const void *a, const void *b)
{
    const Piece *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The tensors sorted by name, for the bisection in find_named; the caller frees. Models have up to
 * tens of thousands of tensors: to compare each with each would take longer than to write them. */
static const Piece **sort_names(const Piece *named, int n)
{
    const Piece **sorted = must_calloc((size_t)n + 1, sizeof *sorted);
    for (int i = 0; i < n; i++)
        sorted[i] = &named[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    for (int i = 1; i < n; i++)
        CHECK(by_name(&sorted[i - 1], &sorted[i]) != 0, "two tensors are called %s",
              sorted[i]->name);
    return sorted;
}

static Tensor find_named(const Piece **sorted, int n, const char *name)
{
    const Piece wanted = {.name = name}, *key = &wanted;
    const Piece **found = bsearch(&key, sorted, (size_t)n, sizeof *sorted, by_name);
    CHECK(found != NULL, "no tensor is called %s", name);
    return piece_tensor(*found);
}

/* Adds the tensors of file `which`, in the order of its data, to the manifest, which keeps copies
 * of their names. Returns the first; its chunks' checksums are filled in by write_tensor. */
static ManifestTensor *add_to_manifest(Manifest *m, int which, const SafetensorsEntry *entry, int n)
{
    m->tensor = must_realloc(m->tensor, ((size_t)m->n_tensors + (size_t)n + 1) * sizeof *m->tensor);
    ManifestTensor *first = m->tensor + m->n_tensors;
    for (int i = 0; i < n; i++) {
        first[i] = (ManifestTensor){.file = (CheckpointFile)which, .entry = entry[i]};
        first[i].entry.name = must_strdup(entry[i].name);
        first[i].n_chunks = manifest_chunk_count(&entry[i]);
        first[i].chunk = must_calloc((size_t)first[i].n_chunks, sizeof *first[i].chunk);
    }
    m->n_tensors += n;
    return first;
}

/* Header and data of model.safetensors or optimizer.safetensors. safetensors_header sorts the
 * entries by the width of their type, so the data follow the entries and not the caller's order. */
static bool write_tensors(Save *s, int fd, const char *path, int which)
{
    int n;
    const Piece *named = tensors_of(s->contents, which, &n);
    SafetensorsEntry *entry = must_calloc((size_t)n + 1, sizeof *entry);
    char step[24];
    snprintf(step, sizeof step, "%" PRId64, s->contents->state->steps);
    const char *metadata[] = {"format", "pt", "save_id", s->manifest.save_id, "step", step};
    const Piece **sorted = sort_names(named, n);
    for (int i = 0; i < n; i++)
        entry[i] = entry_of(&named[i]);
    size_t bytes;
    char *header = safetensors_header(entry, n, metadata, 3, &bytes);
    ManifestTensor *t = add_to_manifest(&s->manifest, which, entry, n);
    ManifestFile *file = &s->manifest.file[which];
    file->header_bytes = file->bytes = (int64_t)bytes;
    file->header_crc = crc32c(0, header, bytes);
    bool good = fs_write_all(s->io->fs, fd, header, bytes, path, s->err, s->n);
    for (int i = 0; good && i < n; i++) {
        good = write_tensor(s, fd, path, find_named(sorted, n, entry[i].name), &t[i]);
        file->bytes += entry[i].bytes;
    }
    free(header);
    free(entry);
    free(sorted);
    return good;
}

static bool write_manifest(Save *s, int fd, const char *path, int which)
{
    (void)which; /* there is one manifest, and it is written last: it has all checksums */
    size_t bytes;
    char *text = manifest_print(&s->manifest, &bytes);
    bool good = fs_write_all(s->io->fs, fd, text, bytes, path, s->err, s->n);
    free(text);
    return good;
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

/* Steps 1 and 2 of the order above: the temporary folder with all its files, on the disk. */
static bool write_content(Save *s)
{
    const FsOps *fs = s->io->fs;
    if (fs->make_folder(fs->self, s->parent_fd, path_name(s->temporary), 0777) != 0)
        return error_set(s->err, s->n, "cannot create the folder %s: %s", s->temporary,
                         strerror(errno));
    s->fd = fs_open_folder(s->temporary, s->err, s->n);
    bool good = s->fd >= 0;
    for (int f = 0; good && f <= CHECKPOINT_FILES; f++) {
        bool last = f == CHECKPOINT_FILES;
        char *path =
            text_format("%s/%s", s->temporary, last ? "manifest.json" : checkpoint_file_name[f]);
        good = write_file(s, path, last ? write_manifest : write_tensors, f);
        free(path);
    }
    return good && fs_sync(fs, s->fd, s->temporary, s->err, s->n) && reads_back(s);
}

/* fsyncs RUN/checkpoints, which has got a new name, and RUN, because the run's first save has just
 * made RUN/checkpoints. */
static bool sync_parents(Save *s)
{
    int run_fd = fs_open_folder(s->run, s->err, s->n);
    bool good = run_fd >= 0 && fs_sync(s->io->fs, s->parent_fd, s->parent, s->err, s->n) &&
                fs_sync(s->io->fs, run_fd, s->run, s->err, s->n);
    if (run_fd >= 0) close(run_fd);
    return good;
}

/* Steps 3 to 5 of the order above. rename does not replace a folder that is not empty, so one that
 * stands under the final name is moved out of the way first. */
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
    /* The caller is told that this save failed, so nobody may find it: the rename is taken back,
     * and checkpoint_write removes the folder. */
    fs->rename(fs->self, s->parent_fd, final, s->parent_fd, temporary);
    return false;
}

/* Looks at what stands under the final name already. *saved: it is this step, and it verifies.
 * Otherwise s->aside becomes the name that it is moved to: a damaged checkpoint becomes trash,
 * which the end of the save removes; one that holds another step, which a person must have renamed,
 * is kept under a name that says which. False where it must not be read: it may be whole, and then
 * it must not be replaced. */
static bool inspect_final(Save *s, bool *saved)
{
    char why[1024];
    const char *final = path_name(s->final);
    Checkpoint *c = NULL;
    *saved = false;
    if (checkpoint_gone(s->final)) return true;
    bool opens = checkpoint_open_unnamed(s->final, &c, why, sizeof why);
    int64_t step = opens ? checkpoint_manifest(c)->state.steps : -1;
    *saved =
        opens && step == s->contents->state->steps && checkpoint_verify(s->io, c, why, sizeof why);
    checkpoint_close(c);
    if (*saved) return true;
    if (opens && step != s->contents->state->steps) {
        s->aside = text_format("%s.holds-%" PRId64 "-%s", final, step, s->manifest.save_id);
        s->aside_warning =
            text_format("%s held step %" PRId64 ": it was moved to %s", s->final, step, s->aside);
        return true;
    }
    if (error_exit_code(why, EXIT_OK) == EXIT_PERMISSION) return error_set(s->err, s->n, "%s", why);
    s->aside = text_format(".trash-%s-%s", final, s->manifest.save_id);
    s->aside_warning = text_format("a damaged checkpoint makes way for a new one: %s", why);
    return true;
}

/* Random, so that files of two saves of the same step are told apart when somebody mixes them. */
static void draw_save_id(char out[SAVE_ID_DIGITS + 1])
{
    uint64_t id = 0;
    CHECK(getrandom(&id, sizeof id, 0) == sizeof id, "the system gives no random number");
    snprintf(out, SAVE_ID_DIGITS + 1, "%016" PRIx64, id);
}

/* All of the manifest that is known before anything is written, and the temporary folder's name. */
static void begin_manifest(Save *s)
{
    const CheckpointContents *c = s->contents;
    draw_save_id(s->manifest.save_id);
    s->manifest.state = *c->state;
    s->manifest.config = must_strdup(c->config);
    s->manifest.machine = must_strdup(c->machine);
    s->manifest.code = must_strdup(c->code);
    s->manifest.data = must_strdup(c->data);
    s->temporary = text_format("%s.tmp-%s", s->final, s->manifest.save_id);
}

bool checkpoint_write(CheckpointIo *io, const char *run, const CheckpointContents *contents,
                      char *err, size_t n)
{
    Save s = {.io = io, .contents = contents, .parent_fd = -1, .fd = -1, .err = err, .n = n};
    bool saved = false;
    s.run = must_strdup(run);
    s.parent = checkpoint_parent(run);
    s.final = checkpoint_path(run, contents->state->steps);
    begin_manifest(&s);
    bool good = fs_make_folders(io->fs, s.parent, err, n);
    if (good) good = (s.parent_fd = fs_open_folder(s.parent, err, n)) >= 0;
    if (good) good = inspect_final(&s, &saved);
    if (good && !saved) {
        /* Leftovers may be what fills the disk. Whether they could be removed does not decide about
         * this save. */
        char ignored[256];
        checkpoint_remove_leftovers(io, s.parent_fd, ignored, sizeof ignored);
        good = write_content(&s) && commit(&s);
        if (!good)
            fs_remove_tree(io->fs, s.parent_fd, path_name(s.temporary), ignored, sizeof ignored);
        if (good) checkpoint_remove_leftovers(io, s.parent_fd, ignored, sizeof ignored);
    }
    if (s.fd >= 0) close(s.fd);
    if (s.parent_fd >= 0) close(s.parent_fd);
    manifest_free(&s.manifest);
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
    /* Texts grow by their escapes. A tensor has a row in its header and one in the manifest: 400
     * bytes without its name, which stands in both, and 12 for every chunk's checksum. */
    int64_t total = 8192 + 2 * (int64_t)text;
    for (int which = 0; which < CHECKPOINT_FILES; which++) {
        int n;
        const Piece *named = tensors_of(contents, which, &n);
        for (int i = 0; i < n; i++) {
            SafetensorsEntry e = entry_of(&named[i]);
            total += e.bytes + 400 + 2 * (int64_t)strlen(e.name) +
                     12 * (int64_t)manifest_chunk_count(&e);
        }
    }
    return total;
}
