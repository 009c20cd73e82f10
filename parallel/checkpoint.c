/* checkpoint.c -- saving: write a temporary folder, sync it, rename it; then prune. See
 * checkpoint.h. */
#include "parallel/checkpoint.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/log.h"
#include "parallel/checkpoint_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* One save under way. */
typedef struct {
    CheckpointIo *io;
    const CheckpointContents *contents;
    char *run, *parent, *temporary, *final; /* paths */
    int parent_fd, fd;                      /* RUN/checkpoints; the temporary folder */
    Manifest manifest;
    char *err;
    size_t n;
} Save;

static const char *last_part(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* ---- what is in the folder ------------------------------------------------------------------- */

static void step_name(char out[32], int64_t step)
{
    snprintf(out, 32, "step_%08" PRId64, step);
}

/* The step that a folder's name tells; -1 if it is not one that this program writes. */
static int64_t step_of_name(const char *name)
{
    char *end, again[32];
    if (strncmp(name, "step_", 5) != 0) return -1;
    errno = 0;
    int64_t step = strtoll(name + 5, &end, 10);
    step_name(again, step);
    return errno == 0 && step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static char *checkpoints_path(const char *run)
{
    return text_format("%s/checkpoints", run);
}

char *checkpoint_path(const char *run, int64_t step)
{
    char name[32];
    step_name(name, step);
    return text_format("%s/checkpoints/%s", run, name);
}

int checkpoint_list(const char *run, int64_t **steps)
{
    char *path = checkpoints_path(run);
    DIR *dir = opendir(path);
    int n = 0, capacity = 16;
    *steps = must_alloc((size_t)capacity * sizeof **steps);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        int64_t step = step_of_name(e->d_name);
        if (step < 0) continue;
        if (n == capacity) *steps = must_realloc(*steps, (size_t)(capacity *= 2) * sizeof **steps);
        (*steps)[n++] = step;
    }
    if (dir != NULL) closedir(dir);
    free(path);
    qsort(*steps, (size_t)n, sizeof **steps, newest_first);
    return n;
}

/* What a save or a removal leaves behind when it dies. */
static bool is_left_over(const char *name)
{
    return strncmp(name, ".trash-", 7) == 0 ||
           (strncmp(name, "step_", 5) == 0 && strstr(name, ".tmp-") != NULL);
}

/* Removes all left-overs. The run's lock tells that nobody else is writing here. */
static bool remove_left_overs(CheckpointIo *io, int parent_fd, char *err, size_t n)
{
    int fd = openat(parent_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return error_set(err, n, "cannot list the checkpoints: %s", strerror(errno));
    }
    bool good = true;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_left_over(e->d_name)) good &= fs_remove_tree(io->fs, parent_fd, e->d_name, err, n);
    closedir(dir);
    return good;
}

/* ---- writing one file ------------------------------------------------------------------------ */

static bool write_tensor(Save *s, int fd, const char *path, Tensor tensor, ManifestTensor *t)
{
    int64_t chunk = manifest_chunk_bytes(&t->entry);
    for (int c = 0; c < t->n_chunks; c++) {
        int64_t at = c * chunk, end = at + chunk < t->entry.bytes ? at + chunk : t->entry.bytes;
        while (at < end) {
            size_t piece = checkpoint_piece(end - at);
            const void *data = checkpoint_fetch(s->io, tensor, at, piece);
            t->chunk[c] = crc32c(t->chunk[c], data, piece);
            if (!fs_write_all(s->io->fs, fd, data, piece, path, s->err, s->n)) return false;
            at += (int64_t)piece;
        }
    }
    return true;
}

/* Creates `path`, lets `write` fill it, syncs and closes it. */
static bool write_file(Save *s, const char *path,
                       bool (*write)(Save *, int fd, const char *path, int which), int which)
{
    const FsOps *fs = s->io->fs;
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = fs->open(fs->self, s->fd, last_part(path), flags, 0600);
    if (fd < 0) return error_set(s->err, s->n, "cannot create %s: %s", path, strerror(errno));
    bool good = write(s, fd, path, which) && fs_sync(fs, fd, path, s->err, s->n);
    if (fs->close(fs->self, fd) != 0 && good)
        good = error_set(s->err, s->n, "cannot write %s: %s", path, strerror(errno));
    return good;
}

static const NamedTensor *part_of(const CheckpointContents *contents, int which, int *n)
{
    *n = which == CHECKPOINT_WEIGHTS ? contents->n_weights : contents->n_slots;
    return which == CHECKPOINT_WEIGHTS ? contents->weights : contents->slots;
}

static SafetensorsEntry entry_of(const NamedTensor *named)
{
    SafetensorsEntry e = {.name = (char *)(uintptr_t)named->name,
                          .dtype = named->tensor.dtype,
                          .ndim = named->tensor.ndim};
    CHECK(safetensors_name_valid(named->name), "a tensor called '%s' cannot be saved", named->name);
    CHECK(tensor_is_dense(named->tensor), "%s has gaps between its rows", named->name);
    memcpy(e.dim, named->tensor.dim, sizeof e.dim);
    bool fits = safetensors_size(e.dtype, e.ndim, e.dim, &e.bytes);
    CHECK(fits && e.bytes > 0, "%s has %d dimensions and no size", named->name, e.ndim);
    return e;
}

static const NamedTensor *find_named(const NamedTensor *named, int n, const char *name)
{
    while (n-- > 0)
        if (strcmp(named[n].name, name) == 0) return &named[n];
    return NULL;
}

/* Adds the part's tensors, in the order of the file, to the manifest; they own their names there.
 */
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

static bool write_tensors(Save *s, int fd, const char *path, int which)
{
    int n;
    const NamedTensor *named = part_of(s->contents, which, &n);
    SafetensorsEntry *entry = must_calloc((size_t)n + 1, sizeof *entry);
    char step[24];
    snprintf(step, sizeof step, "%" PRId64, s->contents->state->steps);
    const char *metadata[] = {"format", "pt", "save_id", s->manifest.save_id, "step", step};
    for (int i = 0; i < n; i++) {
        CHECK(find_named(named, i, named[i].name) == NULL, "two tensors are called %s",
              named[i].name);
        entry[i] = entry_of(&named[i]);
    }
    size_t bytes;
    char *header = safetensors_header(entry, n, metadata, 3, &bytes);
    ManifestTensor *t = add_to_manifest(&s->manifest, which, entry, n);
    ManifestFile *file = &s->manifest.file[which];
    file->header_bytes = file->bytes = (int64_t)bytes;
    file->header_crc = crc32c(0, header, bytes);
    bool good = fs_write_all(s->io->fs, fd, header, bytes, path, s->err, s->n);
    for (int i = 0; good && i < n; i++) {
        Tensor tensor = find_named(named, n, entry[i].name)->tensor;
        good = write_tensor(s, fd, path, tensor, &t[i]);
        file->bytes += entry[i].bytes;
    }
    free(header);
    free(entry);
    return good;
}

static bool write_manifest(Save *s, int fd, const char *path, int which)
{
    (void)which;
    size_t bytes;
    char *text = manifest_print(&s->manifest, &bytes);
    bool good = fs_write_all(s->io->fs, fd, text, bytes, path, s->err, s->n);
    free(text);
    return good;
}

/* ---- the save -------------------------------------------------------------------------------- */

static bool write_content(Save *s)
{
    const FsOps *fs = s->io->fs;
    if (fs->make_folder(fs->self, s->parent_fd, last_part(s->temporary), 0700) != 0)
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
    return good && fs_sync(fs, s->fd, s->temporary, s->err, s->n);
}

/* Both folders' entries reach the disk: the step in `checkpoints`, and `checkpoints` in the run. */
static bool sync_parents(Save *s)
{
    int run_fd = fs_open_folder(s->run, s->err, s->n);
    bool good = run_fd >= 0 && fs_sync(s->io->fs, s->parent_fd, s->parent, s->err, s->n) &&
                fs_sync(s->io->fs, run_fd, s->run, s->err, s->n);
    if (run_fd >= 0) close(run_fd);
    return good;
}

/* The rename that makes the save be there. A damaged folder of that name steps aside first. */
static bool commit(Save *s)
{
    const FsOps *fs = s->io->fs;
    const char *temporary = last_part(s->temporary), *final = last_part(s->final);
    struct stat st;
    if (fstatat(s->parent_fd, final, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        char *trash = text_format(".trash-%s-%s", final, s->manifest.save_id);
        int moved = fs->rename(fs->self, s->parent_fd, final, s->parent_fd, trash);
        free(trash);
        if (moved != 0)
            return error_set(s->err, s->n, "cannot rename the damaged %s: %s", s->final,
                             strerror(errno));
    }
    if (fs->rename(fs->self, s->parent_fd, temporary, s->parent_fd, final) != 0)
        return error_set(s->err, s->n, "cannot rename %s to %s: %s", s->temporary, s->final,
                         strerror(errno));
    if (sync_parents(s)) return true;
    fs->rename(fs->self, s->parent_fd, final, s->parent_fd, temporary); /* not durable: not there */
    return false;
}

/* Whether this step is saved already, and whole. */
static bool is_saved(Save *s)
{
    char why[1024];
    struct stat st;
    Checkpoint *c = NULL;
    if (lstat(s->final, &st) != 0) return false;
    bool whole = checkpoint_open(s->final, &c, why, sizeof why) &&
                 checkpoint_verify(s->io, c, why, sizeof why);
    checkpoint_close(c);
    if (!whole) log_warning("a damaged checkpoint is written anew: %s", why);
    return whole;
}

static void draw_save_id(char out[SAVE_ID_DIGITS + 1])
{
    uint64_t id = 0;
    CHECK(getrandom(&id, sizeof id, 0) == sizeof id, "the system gives no random number");
    snprintf(out, SAVE_ID_DIGITS + 1, "%016" PRIx64, id);
}

static void describe(Save *s)
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
    s.run = must_strdup(run);
    s.parent = checkpoints_path(run);
    s.final = checkpoint_path(run, contents->state->steps);
    bool good = fs_make_folders(io->fs, s.parent, err, n);
    if (good) good = (s.parent_fd = fs_open_folder(s.parent, err, n)) >= 0;
    if (good && !is_saved(&s)) {
        char ignored[256];
        remove_left_overs(io, s.parent_fd, ignored, sizeof ignored); /* they may fill the disk */
        describe(&s);
        good = write_content(&s) && commit(&s);
        if (!good)
            fs_remove_tree(io->fs, s.parent_fd, last_part(s.temporary), ignored, sizeof ignored);
        if (good) remove_left_overs(io, s.parent_fd, ignored, sizeof ignored);
    }
    if (s.fd >= 0) close(s.fd);
    if (s.parent_fd >= 0) close(s.parent_fd);
    manifest_free(&s.manifest);
    free(s.run);
    free(s.parent);
    free(s.final);
    free(s.temporary);
    return good;
}

int64_t checkpoint_bytes(const CheckpointContents *contents)
{
    size_t text = strlen(contents->config) + strlen(contents->machine) + strlen(contents->code) +
                  strlen(contents->data);
    int64_t total = 8192 + 2 * (int64_t)text;
    for (int which = 0; which < CHECKPOINT_FILES; which++) {
        int n;
        const NamedTensor *named = part_of(contents, which, &n);
        for (int i = 0; i < n; i++) {
            SafetensorsEntry e = entry_of(&named[i]);
            total += e.bytes + 400 + 2 * (int64_t)strlen(e.name) +
                     12 * (int64_t)manifest_chunk_count(&e);
        }
    }
    return total;
}

/* ---- pruning --------------------------------------------------------------------------------- */

static bool remove_step(CheckpointIo *io, int parent_fd, int64_t step, char *err, size_t n)
{
    char name[32], trash[48];
    step_name(name, step);
    snprintf(trash, sizeof trash, ".trash-%s", name);
    if (io->fs->rename(io->fs->self, parent_fd, name, parent_fd, trash) != 0)
        return error_set(err, n, "cannot rename the old checkpoint %s: %s", name, strerror(errno));
    return fs_remove_tree(io->fs, parent_fd, trash, err, n);
}

bool checkpoint_prune(CheckpointIo *io, const char *run, int64_t newest, int keep, char *err,
                      size_t n)
{
    CHECK(keep >= 1, "%d checkpoints to keep", keep);
    char *parent = checkpoints_path(run);
    int parent_fd = fs_open_folder(parent, err, n), kept = 0;
    free(parent);
    if (parent_fd < 0) return false;
    bool good = remove_left_overs(io, parent_fd, err, n);
    int64_t *steps;
    int n_steps = checkpoint_list(run, &steps);
    for (int i = 0; i < n_steps; i++) {
        if (steps[i] > newest) continue;
        if (kept >= keep) {
            good &= remove_step(io, parent_fd, steps[i], err, n);
            continue;
        }
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
