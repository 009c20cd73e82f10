/* read.c -- opening, verifying and reading checkpoints. See checkpoint.h.
 *
 * Nothing in a file is taken on trust. Opening compares three records of the same tensors: the
 * manifest, which ends with its own checksum, the header of each file, and the sizes of the files.
 * Reading compares every chunk of data with its checksum in the manifest. Both files and the
 * manifest carry the id of the save, so files of two saves of one run, each whole by itself, do not
 * pass. */
#include "parallel/checkpoint/checkpoint.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Checkpoint {
    char *path;
    int file[CHECKPOINT_FILES];
    Manifest manifest;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Reads and parses manifest.json. Its size is checked before memory is allocated by it. */
static bool open_manifest(Checkpoint *c, int folder, char *err, size_t n)
{
    char *path = text_format("%s/manifest.json", c->path), *text = NULL, why[512];
    int64_t bytes = 0;
    int fd = fs_open_file(folder, "manifest.json", path, &bytes, err, n);
    bool good = fd >= 0;
    if (good && bytes > MANIFEST_MAX_BYTES)
        good = error_set(err, n, "%s is damaged: %lld bytes are too many for a manifest", path,
                         (long long)bytes);
    good = good && file_read_open(fd, (size_t)bytes, path, &text, err, n);
    if (good && !manifest_parse(&c->manifest, text, (size_t)bytes, why, sizeof why))
        good = error_set(err, n, "%s is damaged: %s", path, why);
    if (fd >= 0) close(fd);
    free(text);
    free(path);
    return good;
}

static bool same_entry(const SafetensorsEntry *a, const SafetensorsEntry *b)
{
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dim, b->dim, sizeof a->dim) == 0 && a->offset == b->offset &&
           a->bytes == b->bytes;
}

/* Whether the header of file `which` and the manifest name the same tensors, in the same order, and
 * come from one save. The save's id is compared first: where files are mixed, that is the sentence
 * that helps. */
static bool compare_header(const Checkpoint *c, int which, const Safetensors *s, uint32_t crc,
                           const char *path, char *err, size_t n)
{
    const Manifest *m = &c->manifest;
    const ManifestFile *file = &m->file[which];
    const char *save_id = safetensors_metadata(s, "save_id");
    if (save_id == NULL || strcmp(save_id, m->save_id) != 0)
        return error_set(
            err, n,
            "%s is of save %.32s, the manifest beside it of save %s: files of two saves are mixed",
            path, save_id ? save_id : "(none)", m->save_id);
    if (crc != file->header_crc || s->data_at != file->header_bytes)
        return error_set(err, n, "%s is damaged: its header is not the one that was saved", path);
    int seen = 0;
    for (int i = 0; i < m->n_tensors; i++) {
        if ((int)m->tensor[i].file != which) continue;
        if (seen >= s->n || !same_entry(&s->entry[seen], &m->tensor[i].entry))
            return error_set(err, n, "%s is damaged: its tensor %s is not as the manifest says",
                             path, m->tensor[i].entry.name);
        seen++;
    }
    if (seen == s->n) return true;
    return error_set(err, n, "%s is damaged: it holds %d tensors, the manifest names %d", path,
                     s->n, seen);
}

/* Opens file `which`, reads its header and compares both with the manifest. The file stays open:
 * what is read later comes from the file that was checked, even if the run prunes the folder
 * meanwhile. */
static bool open_tensors(Checkpoint *c, int folder, int which, char *err, size_t n)
{
    char *path = text_format("%s/%s", c->path, checkpoint_file_name[which]);
    int64_t bytes = 0, saved = c->manifest.file[which].bytes;
    uint32_t crc = 0;
    Safetensors s = {0};
    int fd = fs_open_file(folder, checkpoint_file_name[which], path, &bytes, err, n);
    bool good = fd >= 0;
    c->file[which] = fd;
    if (good && bytes != saved)
        good = error_set(err, n, "%s is damaged: it has %lld bytes, %lld were saved", path,
                         (long long)bytes, (long long)saved);
    if (good && safetensors_read(&s, fd, bytes, path, &crc, err, n)) {
        good = compare_header(c, which, &s, crc, path, err, n);
        safetensors_free(&s);
    } else {
        good = false;
    }
    free(path);
    return good;
}

bool checkpoint_open_unnamed(const char *path, Checkpoint **out, char *err, size_t n)
{
    *out = NULL;
    int folder = fs_open_folder(path, err, n);
    if (folder < 0) return false;
    Checkpoint *c = must_calloc(1, sizeof *c);
    c->path = must_strdup(path);
    for (int f = 0; f < CHECKPOINT_FILES; f++)
        c->file[f] = -1;
    bool good = open_manifest(c, folder, err, n);
    for (int f = 0; good && f < CHECKPOINT_FILES; f++)
        good = open_tensors(c, folder, f, err, n);
    close(folder);
    if (good)
        *out = c;
    else
        checkpoint_close(c);
    return good;
}

/* A folder called step_N must hold step N; one of another name (a copy that a user made) may hold
 * any. Slashes at the end of the path are not part of the name. */
static bool check_name(const Checkpoint *c, char *err, size_t n)
{
    char *path = must_strdup(c->path);
    for (size_t last = strlen(path); last > 1 && path[last - 1] == '/'; last--)
        path[last - 1] = '\0';
    const char *slash = strrchr(path, '/');
    int64_t named = checkpoint_step_of(slash ? slash + 1 : path), held = c->manifest.state.steps;
    free(path);
    if (named < 0 || named == held) return true;
    return error_set(err, n, "%s holds step %lld, which is not what it is called", c->path,
                     (long long)held);
}

bool checkpoint_open(const char *path, Checkpoint **out, char *err, size_t n)
{
    if (!checkpoint_open_unnamed(path, out, err, n)) return false;
    if (check_name(*out, err, n)) return true;
    checkpoint_close(*out);
    *out = NULL;
    return false;
}

void checkpoint_close(Checkpoint *c)
{
    if (c == NULL) return;
    for (int f = 0; f < CHECKPOINT_FILES; f++)
        if (c->file[f] >= 0) close(c->file[f]);
    manifest_free(&c->manifest);
    free(c->path);
    free(c);
}

const Manifest *checkpoint_manifest(const Checkpoint *c)
{
    return &c->manifest;
}

const char *checkpoint_folder(const Checkpoint *c)
{
    return c->path;
}

/* ---- reading data ---------------------------------------------------------------------------- */

/* Reads all chunks of a tensor and compares their checksums: into dst, or, where dst is absent,
 * only to compare. The checksum of a chunk covers several pieces, so a device has already received
 * the bytes of a damaged chunk when it is found out: after false, dst is void. */
static bool read_tensor(CheckpointIo *io, const Checkpoint *c, const ManifestTensor *t, Tensor dst,
                        char *err, size_t n)
{
    int64_t chunk = manifest_chunk_bytes(&t->entry),
            data_at = c->manifest.file[t->file].header_bytes;
    bool keep = tensor_present(dst), good = true;
    char *path = text_format("%s/%s", c->path, checkpoint_file_name[t->file]);
    for (int i = 0; good && i < t->n_chunks; i++) {
        int64_t at = i * chunk, end = at + chunk < t->entry.bytes ? at + chunk : t->entry.bytes;
        uint32_t crc = 0;
        /* A chunk may be larger than the staging buffer, and goes through it in pieces. */
        while (good && at < end) {
            size_t piece = checkpoint_io_piece(end - at);
            void *to = keep ? checkpoint_io_target(io, dst, at) : io->staging;
            good = fs_read_at(c->file[t->file], to, piece, data_at + t->entry.offset + at, path,
                              err, n);
            if (!good) break;
            /* Over what the file gave; what a device has of it is not read back. */
            crc = crc32c(crc, to, piece);
            if (keep) checkpoint_io_store(io, dst, at, piece);
            at += (int64_t)piece;
        }
        if (good && crc != t->chunk[i])
            good = error_set(err, n,
                             "%s is damaged: tensor %s, chunk %d of %d, does not have the checksum "
                             "that was saved",
                             path, t->entry.name, i + 1, t->n_chunks);
    }
    free(path);
    return good;
}

bool checkpoint_verify(CheckpointIo *io, Checkpoint *c, char *err, size_t n)
{
    for (int i = 0; i < c->manifest.n_tensors; i++)
        if (!read_tensor(io, c, &c->manifest.tensor[i], NO_TENSOR, err, n)) return false;
    return true;
}

/* How a search for the newest checkpoint that verifies ended. */
typedef enum {
    SEARCH_FOUND,
    SEARCH_NONE_VERIFIES,
    SEARCH_DENIED,   /* the newest one left to try must not be read */
    SEARCH_OUTDATED, /* none verifies, but some of the list have been removed since it was made */
} SearchResult;

/* Tries the steps of a list, newest first. *out is the first that verifies; `why` is the reason
 * against the last one that was tried. A listed folder that is gone is no reason for a warning: a
 * live run prunes only after it has committed a newer checkpoint, which a new list will name. One
 * that must not be read ends the search, because it may be whole: to go on from an older one would
 * silently throw steps away. */
static SearchResult search_newest(CheckpointIo *io, const char *run, const int64_t *steps,
                                  int n_steps, Checkpoint **out, char *why, size_t n)
{
    bool outdated = false;
    for (int i = 0; i < n_steps; i++) {
        char *path = checkpoint_path(run, steps[i]);
        Checkpoint *c = NULL;
        bool whole = checkpoint_open(path, &c, why, n) && checkpoint_verify(io, c, why, n);
        bool gone = !whole && checkpoint_gone(path);
        free(path);
        if (whole) {
            *out = c;
            return SEARCH_FOUND;
        }
        checkpoint_close(c);
        outdated |= gone;
        if (gone) continue;
        if (error_exit_code(why, EXIT_DAMAGED) == EXIT_PERMISSION) return SEARCH_DENIED;
        log_warning("%s; this checkpoint is refused%s", why,
                    i + 1 < n_steps ? ", an older one is tried" : "");
    }
    return outdated ? SEARCH_OUTDATED : SEARCH_NONE_VERIFIES;
}

bool checkpoint_open_newest(CheckpointIo *io, const char *run, Checkpoint **out, char *err,
                            size_t n)
{
    char why[1024] = "";
    SearchResult result = SEARCH_OUTDATED;
    int n_steps = 0;
    *out = NULL;
    /* A list that is outdated is made again, but not for ever: a run that saves as fast as this
     * reads would keep both busy. */
    for (int i = 0; result == SEARCH_OUTDATED && i < CHECKPOINT_LIST_ATTEMPTS; i++) {
        int64_t *steps;
        n_steps = checkpoint_list(run, &steps, err, n);
        if (n_steps > 0) result = search_newest(io, run, steps, n_steps, out, why, sizeof why);
        free(steps);
        if (n_steps <= 0) return n_steps == 0;
    }
    if (result == SEARCH_FOUND) return true;
    if (result == SEARCH_DENIED)
        return error_set(err, n, "%s; it may be whole, so no older checkpoint is taken for it",
                         why);
    return error_set(err, n, "none of the %d checkpoints of %s can be used; the last: %s", n_steps,
                     run, why);
}

/* A tensor of this type and shape without data, to compare and to describe. */
static Tensor shape_of(DType dtype, int ndim, const int64_t *dim)
{
    Tensor t = {.dtype = dtype, .ndim = ndim};
    memcpy(t.dim, dim, sizeof t.dim);
    t.ld = tensor_cols(t);
    return t;
}

/* Whether the saved tensor and the run's of that name agree in type and shape. */
static bool check_fit(const Checkpoint *c, const SafetensorsEntry *e, const Piece *dst, char *err,
                      size_t n)
{
    char saved[96], needed[96];
    Tensor t = shape_of(e->dtype, e->ndim, e->dim), own = shape_of(dst->dtype, dst->ndim, dst->dim);
    if (t.dtype == own.dtype && tensor_same_shape(t, own)) return true;
    return error_set(err, n, "%s: tensor %s is %s there and %s in this run", c->path, e->name,
                     tensor_describe(t, saved, sizeof saved),
                     tensor_describe(own, needed, sizeof needed));
}

/* Sets source[i] to the manifest's tensor called dst[i].name. Every tensor of the part must have
 * its dst and every dst its tensor: weights that a run silently left out or started from zero would
 * look like a resume and be none. */
static bool match_names(const Checkpoint *c, CheckpointFile part, const Piece *dst, int n_dst,
                        const ManifestTensor **source, char *err, size_t n)
{
    for (int i = 0, next = 0; i < c->manifest.n_tensors; i++) {
        const ManifestTensor *t = &c->manifest.tensor[i];
        if (t->file != part) continue;
        /* The search begins behind the last match: a file that has the run's order takes one
         * comparison a tensor, and any other order still finds all. */
        int tried = 0;
        while (tried < n_dst && strcmp(dst[(next + tried) % n_dst].name, t->entry.name) != 0)
            tried++;
        if (tried == n_dst)
            return error_set(err, n, "%s holds a tensor %s that this run has not", c->path,
                             t->entry.name);
        int at = (next + tried) % n_dst;
        source[at] = t;
        next = at + 1;
        if (!check_fit(c, &t->entry, &dst[at], err, n)) return false;
    }
    for (int i = 0; i < n_dst; i++)
        if (source[i] == NULL)
            return error_set(err, n, "%s has no tensor %s, which this run needs", c->path,
                             dst[i].name);
    return true;
}

bool checkpoint_fits(const Checkpoint *c, CheckpointFile part, const Piece *dst, int n_dst,
                     char *err, size_t n)
{
    const ManifestTensor **source = must_calloc((size_t)n_dst + 1, sizeof(const ManifestTensor *));
    bool fits = match_names(c, part, dst, n_dst, source, err, n);
    free(source);
    return fits;
}

bool checkpoint_read(CheckpointIo *io, Checkpoint *c, CheckpointFile part, const Piece *dst,
                     int n_dst, char *err, size_t n)
{
    const ManifestTensor **source = must_calloc((size_t)n_dst + 1, sizeof(const ManifestTensor *));
    bool good = match_names(c, part, dst, n_dst, source, err, n);
    for (int i = 0; good && i < n_dst; i++)
        good = read_tensor(io, c, source[i], piece_tensor(&dst[i]), err, n);
    free(source);
    return good;
}
