/* snapshot.c -- allocates, fills and writes a rank's snapshot. See snapshot.h. */
#include "parallel/checkpoint/snapshot.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/kernels/ops.h"
#include "parallel/checkpoint/out_file.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t checkpoint_snapshot_bytes(const CheckpointShare *share)
{
    return aligned(share->part[CHECKPOINT_WEIGHTS]) + aligned(share->part[CHECKPOINT_SLOTS]) +
           aligned(sizeof(StepState));
}

/* Returns the bytes of the tensors that the rank writes. */
static CheckpointShare share_of(const CheckpointContents *c, int ranks, int rank)
{
    int n = c->n_weights + c->n_slots;
    int64_t *bytes = must_calloc((size_t)n + 1, sizeof *bytes);
    for (int i = 0; i < n; i++)
        bytes[i] = layout_entry(contents_piece(c, i)).bytes;
    CheckpointShare share =
        checkpoint_share(bytes, c->n_weights, c->n_slots, c->writers, ranks, rank);
    free(bytes);
    return share;
}

void snapshot_open(Snapshot *s, Device *device, const CheckpointContents *contents, int ranks,
                   int rank)
{
    enum { PAGE = 4096 };
    CheckpointShare share = share_of(contents, ranks, rank);
    *s = (Snapshot){.device = device,
                    .bytes = checkpoint_snapshot_bytes(&share),
                    .slots_at = aligned(share.part[CHECKPOINT_WEIGHTS])};
    s->memory = device ? device_host_alloc(device, s->bytes, "the snapshot of a save")
                       : must_alloc(s->bytes);
    s->state = (StepState *)(void *)(s->memory + s->bytes - aligned(sizeof(StepState)));
    for (size_t at = 0; at < s->bytes; at += PAGE)
        *(volatile char *)(s->memory + at) = 0;
}

void snapshot_close(Snapshot *s)
{
    if (s->device)
        device_host_release(s->device, s->memory, s->bytes);
    else
        free(s->memory);
    *s = (Snapshot){0};
}

void *snapshot_at(const Snapshot *s, const Layout *layout, int tensor, int64_t element)
{
    const ManifestTensor *t = &layout->manifest.tensor[tensor];
    const SafetensorsEntry *e = &t->entry;
    size_t part = layout->manifest.file[t->file].part == CHECKPOINT_SLOTS ? s->slots_at : 0,
           at = part + (size_t)e->offset + (size_t)element * dtype_size(e->dtype);
    CHECK(at < s->bytes, "%s is at %zu of a snapshot of %zu bytes", e->name, at, s->bytes);
    return s->memory + at;
}

void snapshot_copy(Snapshot *s, Device *device, const CheckpointContents *contents,
                   const Layout *layout)
{
    for (int i = 0; i < layout->manifest.n_tensors; i++) {
        const Piece *piece = contents_piece(contents, layout->piece[i]);
        int64_t count = piece_elements(piece);
        CHECK(piece->extent.count == count, "%s is not whole", piece->name);
        Tensor to = tensor_1d(snapshot_at(s, layout, i, 0), piece->dtype, count);
        if (device && device->backend->place != piece->data.place)
            /* Optimizer states in host memory: a copy by CUDA within host memory waits for the
             * stream and blocks the host. A kernel copies without blocking the host. */
            op_copy(device, to, piece->data);
        else if (device)
            device_copy(device, to, piece->data);
        else
            memcpy(to.data, piece->data.data, tensor_bytes(to));
    }
}

/* Writes one tensor, window by window, and computes the checksums of its chunks. */
static void write_tensor(const Snapshot *s, Layout *layout, int tensor, OutFile *out)
{
    ManifestTensor *t = &layout->manifest.tensor[tensor];
    int64_t chunk = manifest_chunk_bytes(&t->entry), window = CHECKPOINT_STAGING_BYTES / 2;
    const char *data = snapshot_at(s, layout, tensor, 0);
    for (int64_t at = 0, end; at < t->entry.bytes && out->good; at = end) {
        uint32_t *crc = &t->chunk[at / chunk];
        end = (at / chunk + 1) * chunk;
        if (end > at + window) end = at + window;
        if (end > t->entry.bytes) end = t->entry.bytes;
        *crc = crc32c(*crc, data + at, (size_t)(end - at));
        out_file_put(out, data + at, (size_t)(end - at));
    }
}

bool snapshot_write(const Snapshot *s, const FsOps *fs, Layout *layout, int rank,
                    const char *folder, char *err, size_t n)
{
    OutFile out = out_file_open(fs, folder, err, n);
    for (int f = 0; f < layout->manifest.n_files; f++) {
        const LayoutFile *file = &layout->file[f];
        if (file->writer != rank) continue;
        out_file_begin(&out, layout->manifest.file[f].name);
        out_file_put(&out, file->header, (size_t)layout->manifest.file[f].header_bytes);
        for (int i = file->first; i < file->first + file->n; i++)
            write_tensor(s, layout, i, &out);
        out_file_end(&out);
    }
    out_file_close(&out);
    return out.good;
}
