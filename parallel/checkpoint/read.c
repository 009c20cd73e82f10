/* read.c -- reads a checkpoint's tensors into this rank's pieces. See checkpoint.h. */
#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/opened.h"

#include <stdlib.h>
#include <string.h>

/* Returns a tensor of this dtype and shape without data, for comparisons and messages. */
static Tensor shape_of(DType dtype, int ndim, const int64_t *dim)
{
    Tensor t = {.dtype = dtype, .ndim = ndim};
    memcpy(t.dim, dim, sizeof t.dim);
    t.ld = tensor_cols(t);
    return t;
}

/* Returns whether a saved tensor and the run's tensor of the same name agree in dtype and shape;
 * sets `err` if not. */
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

/* Sets source[i] to the manifest's tensor called dst[i].name. Every tensor of the part must have a
 * dst and every dst a tensor: if some weights were silently ignored or kept their initial values,
 * the run would not really be resumed. */
static bool match_names(const Checkpoint *c, CheckpointPart part, const Piece *dst, int n_dst,
                        const ManifestTensor **source, char *err, size_t n)
{
    for (int i = 0, next = 0; i < c->manifest.n_tensors; i++) {
        const ManifestTensor *t = &c->manifest.tensor[i];
        if (c->manifest.file[t->file].part != part) continue;
        /* The search begins after the last match. If the file has the same order as `dst`, each
         * tensor takes one comparison; in any other order, all tensors are still found. */
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

bool checkpoint_fits(const Checkpoint *c, CheckpointPart part, const Piece *dst, int n_dst,
                     char *err, size_t n)
{
    const ManifestTensor **source = must_calloc((size_t)n_dst + 1, sizeof(const ManifestTensor *));
    bool fits = match_names(c, part, dst, n_dst, source, err, n);
    free(source);
    return fits;
}

/* Reads elements [from, end) of a tensor and stores those that this rank has in the piece. With
 * `crc`, reads all of them and updates the checksum; without it, reads only from the first to the
 * last element that this rank has. */
static bool read_window(CheckpointIo *io, Checkpoint *c, const ManifestTensor *t, const Piece *dst,
                        int64_t from, int64_t end, uint32_t *crc, char *err, size_t n)
{
    size_t size = dtype_size(t->entry.dtype);
    Stretch s;
    bool one;
    int64_t count = extent_count(&dst->extent, from, end, &s, &one);
    if (count == 0 && crc == NULL) return true;
    /* Without a checksum, only the elements of this rank have to be read. */
    if (crc == NULL) {
        from = s.at;
        if (one) end = s.at + s.count;
    }
    size_t bytes = (size_t)(end - from) * size;
    /* A single stretch in host memory is read in place; data for a device pass through the staging
     * buffer. */
    bool direct = one && s.count == end - from && dst->data.place == PLACE_HOST;
    void *to = direct ? (char *)dst->data.data + (size_t)s.within * size : io->staging;
    if (!opened_read(c, t, to, bytes, from * (int64_t)size, err, n)) return false;
    /* The checksum is computed from the bytes that were read, before they are copied to a
     * device. */
    if (crc) *crc = crc32c(*crc, to, bytes);
    if (!direct) checkpoint_io_put(io, dst, from, end, io->staging);
    return true;
}

/* Reads this rank's elements of a tensor. A single rank also compares the checksums, for which it
 * reads all chunks in full. Its device may then receive bytes of a chunk before the chunk is found
 * to be damaged. */
static bool read_tensor(CheckpointIo *io, Checkpoint *c, const ManifestTensor *t, const Piece *dst,
                        char *err, size_t n)
{
    /* A single rank reads all bytes anyway, so it compares checksums in the same pass. */
    bool compare = checkpoint_io_ranks(io) == 1;
    int64_t size = (int64_t)dtype_size(t->entry.dtype), chunk = manifest_chunk_bytes(&t->entry),
            most = (int64_t)CHECKPOINT_STAGING_BYTES;
    for (int i = 0; i < t->n_chunks; i++) {
        int64_t at = i * chunk, end = at + chunk < t->entry.bytes ? at + chunk : t->entry.bytes;
        uint32_t crc = 0;
        for (int64_t next; at < end; at = next) {
            next = end - at < most ? end : at + most;
            if (!read_window(io, c, t, dst, at / size, next / size, compare ? &crc : NULL, err, n))
                return false;
        }
        if (compare && crc != t->chunk[i]) return opened_chunk_error(c, t, i, err, n);
    }
    return true;
}

bool checkpoint_read(CheckpointIo *io, Checkpoint *c, CheckpointPart part, const Piece *dst,
                     int n_dst, char *err, size_t n)
{
    const ManifestTensor **source = must_calloc((size_t)n_dst + 1, sizeof(const ManifestTensor *));
    bool good = match_names(c, part, dst, n_dst, source, err, n);
    good = checkpoint_io_agree(io, good, err, n);
    /* Several ranks may read parts of the same tensor, so they verify all data once beforehand and
     * share the work. */
    if (good && checkpoint_io_ranks(io) > 1 && !c->verified)
        good = checkpoint_verify(io, c, err, n);
    if (good) {
        for (int i = 0; good && i < n_dst; i++)
            good = read_tensor(io, c, source[i], &dst[i], err, n);
        good = checkpoint_io_agree(io, good, err, n);
    }
    free(source);
    return good;
}
