/* source.c -- reads a checkpoint's weights as a WeightSource. See source.h. */
#include "parallel/checkpoint/source.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "parallel/checkpoint/opened.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    WeightSource source; /* must come first: a WeightSource is this struct */
    Checkpoint *checkpoint;
    const ManifestTensor **held; /* for each tensor of the source: the manifest's tensor */
    /* The chunk in memory, if there is one: its tensor (-1: none) and its number. */
    char *chunk;
    int64_t capacity;
    int chunk_tensor, chunk_index;
} CheckpointSource;

/* Reads chunk `i` of tensor `index` into memory, unless it is there, and compares its checksum.
 * Sets *bytes to its size. */
static bool take_chunk(CheckpointSource *s, int index, int i, int64_t *bytes, char *err, size_t n)
{
    const ManifestTensor *t = s->held[index];
    int64_t most = manifest_chunk_bytes(&t->entry), at = i * most;
    *bytes = at + most < t->entry.bytes ? most : t->entry.bytes - at;
    if (s->chunk_tensor == index && s->chunk_index == i) return true;
    if (*bytes > s->capacity) {
        free(s->chunk);
        s->chunk = must_alloc((size_t)*bytes);
        s->capacity = *bytes;
    }
    /* Whatever happens now, the old chunk is no longer in memory. */
    s->chunk_tensor = -1;
    if (!opened_read(s->checkpoint, t, s->chunk, (size_t)*bytes, at, err, n)) return false;
    if (crc32c(0, s->chunk, (size_t)*bytes) != t->chunk[i])
        return opened_chunk_error(s->checkpoint, t, i, err, n);
    s->chunk_tensor = index;
    s->chunk_index = i;
    return true;
}

static bool read_rows(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                      char *err, size_t n)
{
    CheckpointSource *s = (CheckpointSource *)source;
    const SourceTensor *t = &source->tensor[index];
    int64_t row = source_row_bytes(t), at = first * row, end = at + rows * row;
    int64_t most = manifest_chunk_bytes(&s->held[index]->entry);
    CHECK(first >= 0 && rows >= 0 && first <= t->dim[0] - rows, "%s: rows %lld to %lld of %lld",
          t->name, (long long)first, (long long)(first + rows), (long long)t->dim[0]);
    char *to = out;
    while (at < end) {
        int64_t i = at / most, bytes;
        if (!take_chunk(s, index, (int)i, &bytes, err, n)) {
            source->damaged = s->checkpoint->damaged;
            return false;
        }
        int64_t begins = at - i * most, count = bytes - begins;
        if (count > end - at) count = end - at;
        memcpy(to, s->chunk + begins, (size_t)count);
        to += count;
        at += count;
    }
    return true;
}

static void close_source(WeightSource *source)
{
    CheckpointSource *s = (CheckpointSource *)source;
    free(s->source.tensor);
    free(s->held);
    free(s->chunk);
    free(s);
}

/* Adds a tensor of the manifest to the source; returns false and sets `err` if it is not a weight.
 */
static bool add(CheckpointSource *s, const ManifestTensor *t, char *err, size_t n)
{
    const SafetensorsEntry *e = &t->entry;
    SourceTensor *out = &s->source.tensor[s->source.n_tensors];
    if (strlen(e->name) >= sizeof out->name || e->ndim < 1 || e->ndim > 2 ||
        !dtype_is_float(e->dtype))
        return error_set(err, n,
                         "%s: tensor %s is no weight of this program: a vector or a matrix of "
                         "floating-point numbers, with a name of fewer than %zu characters",
                         checkpoint_folder(s->checkpoint), e->name, sizeof out->name);
    *out = (SourceTensor){.dtype = e->dtype, .ndim = e->ndim, .dim = {e->dim[0], 1}};
    memcpy(out->name, e->name, strlen(e->name) + 1);
    if (e->ndim == 2) out->dim[1] = e->dim[1];
    s->held[s->source.n_tensors++] = t;
    return true;
}

bool checkpoint_source_open(Checkpoint *c, WeightSource **out, char *err, size_t n)
{
    const Manifest *m = checkpoint_manifest(c);
    CheckpointSource *s = must_calloc(1, sizeof *s);
    bool good = true;
    *s = (CheckpointSource){.checkpoint = c, .chunk_tensor = -1};
    s->source.read = read_rows;
    s->source.close = close_source;
    s->source.tensor = must_calloc((size_t)m->n_tensors + 1, sizeof *s->source.tensor);
    s->held = must_calloc((size_t)m->n_tensors + 1, sizeof(const ManifestTensor *));
    for (int i = 0; good && i < m->n_tensors; i++)
        if (m->file[m->tensor[i].file].part == CHECKPOINT_WEIGHTS)
            good = add(s, &m->tensor[i], err, n);
    *out = good ? &s->source : NULL;
    if (!good) close_source(&s->source);
    return good;
}

/* ---- master copies --------------------------------------------------------------------------- */

/* If `t` is the master copy of a weight, which is called WEIGHT.master, presents it instead of that
 * weight. A slot with another name or shape is not a master copy and is ignored. */
static void present_master(CheckpointSource *s, const ManifestTensor *t)
{
    static const char suffix[] = ".master"; /* as optimizer_slot_name names SLOT_MASTER */
    const SafetensorsEntry *e = &t->entry;
    size_t length = strlen(e->name), end = strlen(suffix);
    char name[sizeof s->source.tensor->name];
    if (length <= end || length - end >= sizeof name) return;
    if (strcmp(e->name + length - end, suffix) != 0 || !dtype_is_float(e->dtype)) return;
    memcpy(name, e->name, length - end);
    name[length - end] = '\0';
    int i = weight_source_find(&s->source, name);
    if (i < 0) return;
    SourceTensor *own = &s->source.tensor[i];
    if (e->ndim != own->ndim || e->dim[0] != own->dim[0]) return;
    if (e->ndim == 2 && e->dim[1] != own->dim[1]) return;
    own->dtype = e->dtype;
    s->held[i] = t;
}

bool checkpoint_source_open_masters(Checkpoint *c, WeightSource **out, char *err, size_t n)
{
    const Manifest *m = checkpoint_manifest(c);
    if (!checkpoint_source_open(c, out, err, n)) return false;
    for (int i = 0; i < m->n_tensors; i++)
        if (m->file[m->tensor[i].file].part == CHECKPOINT_SLOTS)
            present_master((CheckpointSource *)*out, &m->tensor[i]);
    return true;
}
