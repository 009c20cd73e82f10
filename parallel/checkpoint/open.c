/* open.c -- opens checkpoints. See checkpoint.h.
 *
 * Nothing in a file is trusted. Opening a checkpoint compares three descriptions of the same
 * tensors: the manifest, which ends with its own checksum, the header of each file, and the sizes
 * of the files. verify.c and read.c compare every chunk of data with its checksum in the manifest.
 * The manifest and all files contain the id of the save, so a mixture of files from two saves is
 * detected, even if each file is intact. */
#include "parallel/checkpoint/opened.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/grid/machines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* Reads and parses manifest.json. Its size is checked before memory of that size is allocated. */
static bool open_manifest(Checkpoint *c, char *err, size_t n)
{
    char *path = text_format("%s/manifest.json", c->path), *text = NULL, why[512];
    /* Opened relative to the folder's descriptor, not by its path. Another process may rename or
     * prune the folder meanwhile, and then the manifest and the files would come from two saves. */
    int64_t bytes = 0;
    int fd = fs_open_file(c->folder, "manifest.json", path, &bytes, err, n);
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

/* Returns whether the header of file `which` and the manifest list the same tensors in the same
 * order and come from one save; sets `err` if not. The id of the save is compared first, because
 * for mixed files that gives the most helpful message. */
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
    /* The header's checksum shows that the header is as it was saved. This loop checks that the
     * manifest agrees with it, since either could have been damaged or rewritten alone. */
    int seen = 0;
    for (int i = 0; i < m->n_tensors; i++) {
        if (m->tensor[i].file != which) continue;
        if (seen >= s->n || !same_entry(&s->entry[seen], &m->tensor[i].entry))
            return error_set(err, n, "%s is damaged: its tensor %s is not as the manifest says",
                             path, m->tensor[i].entry.name);
        seen++;
    }
    if (seen == s->n) return true;
    return error_set(err, n, "%s is damaged: it holds %d tensors, the manifest names %d", path,
                     s->n, seen);
}

/* Returns whether all files stay open. */
static bool keeps_files(const Checkpoint *c)
{
    return c->manifest.n_files <= CHECKPOINT_OPEN_FILES;
}

/* Opens file `which`, unless it is open, and compares its size with the manifest's. If not all
 * files can stay open, closes the file that was opened last. Returns false and sets `err` on
 * failure. */
static bool open_file(Checkpoint *c, int which, const char *path, char *err, size_t n)
{
    int64_t bytes = 0, saved = c->manifest.file[which].bytes;
    if (c->file[which] >= 0) return true;
    /* Ranks may be threads of one process: 64 ranks with 128 open files each would far exceed the
     * usual limit of 1024 descriptors. */
    if (!keeps_files(c)) {
        if (c->passing >= 0) {
            close(c->file[c->passing]);
            c->file[c->passing] = -1;
        }
        c->passing = which;
    }
    c->file[which] = fs_open_file(c->folder, c->manifest.file[which].name, path, &bytes, err, n);
    if (c->file[which] < 0) return false;
    /* Checked at every opening: a file that was closed in between may have been truncated since. */
    if (bytes == saved) return true;
    c->damaged = true;
    return error_set(err, n, "%s is damaged: it has %lld bytes, %lld were saved", path,
                     (long long)bytes, (long long)saved);
}

bool opened_read(Checkpoint *c, const ManifestTensor *t, void *to, size_t bytes, int64_t at,
                 char *err, size_t n)
{
    const ManifestFile *file = &c->manifest.file[t->file];
    char *path = text_format("%s/%s", c->path, file->name);
    bool good = open_file(c, t->file, path, err, n) &&
                fs_read_at(c->file[t->file], to, bytes, file->header_bytes + t->entry.offset + at,
                           path, err, n);
    free(path);
    return good;
}

bool opened_chunk_error(Checkpoint *c, const ManifestTensor *t, int chunk, char *err, size_t n)
{
    c->damaged = true;
    return error_set(err, n,
                     "%s/%s is damaged: tensor %s, chunk %d of %d, does not have the checksum that "
                     "was saved",
                     c->path, c->manifest.file[t->file].name, t->entry.name, chunk + 1,
                     t->n_chunks);
}

/* Opens file `which`, reads its header and compares both with the manifest. */
static bool open_tensors(Checkpoint *c, int which, char *err, size_t n)
{
    const ManifestFile *file = &c->manifest.file[which];
    char *path = text_format("%s/%s", c->path, file->name);
    uint32_t crc = 0;
    Safetensors s = {0};
    bool good = open_file(c, which, path, err, n);
    if (good && safetensors_read(&s, c->file[which], file->bytes, path, &crc, err, n)) {
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
    c->folder = folder;
    c->passing = -1;
    bool good = open_manifest(c, err, n);
    /* All are set to -1 before the first file is opened. If they were 0 and opening
     * one failed, checkpoint_close would close descriptor 0, which is standard input. */
    c->file = must_calloc((size_t)c->manifest.n_files + 1, sizeof *c->file);
    for (int f = 0; f < c->manifest.n_files; f++)
        c->file[f] = -1;
    for (int f = 0; good && f < c->manifest.n_files; f++)
        good = open_tensors(c, f, err, n);
    if (good)
        *out = c;
    else
        checkpoint_close(c);
    return good;
}

/* Checks the folder's name: a folder called step_N must hold step N. A folder with another kind of
 * name, such as a copy that a user made, may hold any step. Slashes at the end of the path are not
 * part of the name. */
static bool check_name(const Checkpoint *c, char *err, size_t n)
{
    char *path = path_trimmed(c->path);
    /* A resume takes the newest step by name, so a folder that was renamed to a higher number would
     * make the run lose its real steps. */
    int64_t named = checkpoint_step_of(path_name(path)), held = c->manifest.state.steps;
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

bool checkpoint_open_everywhere(CheckpointIo *io, const char *path, Checkpoint **out, char *err,
                                size_t n)
{
    /* On a network file system, one machine may for some seconds see a folder that another does
     * not. So ranks on other machines than rank 0's wait for a folder that rank 0 has opened. All
     * ranks use the checkpoint or none: ranks that resumed from different steps would train an
     * inconsistent model. */
    bool far = checkpoint_io_far(io), found = far || checkpoint_open(path, out, err, n);
    bool first = found;
    if (machines_of(io->world).count > 1) checkpoint_io_share(io, &first, sizeof first);
    if (far && first) {
        char *manifest = text_format("%s/manifest.json", path);
        fs_await(manifest);
        free(manifest);
        found = checkpoint_open(path, out, err, n);
    }
    if (checkpoint_io_agree(io, found, err, n)) return true;
    checkpoint_close(*out);
    *out = NULL;
    return false;
}

void checkpoint_close(Checkpoint *c)
{
    if (c == NULL) return;
    for (int f = 0; f < c->manifest.n_files; f++)
        if (c->file[f] >= 0) close(c->file[f]);
    close(c->folder);
    free(c->file);
    manifest_free(&c->manifest);
    free(c->path);
    free(c);
}

const Manifest *checkpoint_manifest(const Checkpoint *c)
{
    return &c->manifest;
}

bool checkpoint_weights_only(const Checkpoint *c)
{
    const Manifest *m = &c->manifest;
    for (int i = 0; i < m->n_tensors; i++)
        if (m->file[m->tensor[i].file].part == CHECKPOINT_SLOTS) return false;
    return m->state.steps == 0;
}

const char *checkpoint_folder(const Checkpoint *c)
{
    return c->path;
}
