/* layout.c -- see layout.h. */
#include "parallel/checkpoint/layout.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const Piece *contents_piece(const CheckpointContents *c, int piece)
{
    return piece < c->n_weights ? &c->weights[piece] : &c->slots[piece - c->n_weights];
}

/* How many ranks write. */
static int layout_writers(const CheckpointContents *contents, int ranks)
{
    int writers = contents->writers > 0 ? contents->writers : 1;
    if (writers > CHECKPOINT_MAX_WRITERS) writers = CHECKPOINT_MAX_WRITERS;
    return writers < ranks ? writers : ranks;
}

int layout_writer(int k, int writers, int ranks)
{
    /* Neighbouring ranks tend to share a machine: spread out, the writers use all machines' disks
     * and network cards. */
    return (int)((int64_t)k * ranks / writers);
}

void layout_cut(const int64_t *bytes, int n, int files, int *first)
{
    int64_t total = 0, before = 0;
    for (int i = 0; i < n; i++)
        total += bytes[i];
    first[0] = 0;
    /* Tensors are never cut, which keeps a file readable without the others; a file is thus at most
     * one tensor larger than its share. */
    for (int k = 1, i = 0; k <= files; k++) {
        /* A tensor goes to the file in whose share its middle lies; the files after it keep one
         * each.
         */
        int least = i + (n > 0), most = n - (files - k);
        while (i < most && (i < least || k == files ||
                            (double)before + 0.5 * (double)bytes[i] < (double)total * k / files))
            before += bytes[i++];
        first[k] = i;
    }
}

SafetensorsEntry layout_entry(const Piece *piece)
{
    SafetensorsEntry e = {
        .name = (char *)(uintptr_t)piece->name, .dtype = piece->dtype, .ndim = piece->ndim};
    CHECK(safetensors_name_valid(piece->name), "a tensor called '%s' cannot be saved", piece->name);
    memcpy(e.dim, piece->dim, sizeof e.dim);
    bool fits = safetensors_size(e.dtype, e.ndim, e.dim, &e.bytes);
    CHECK(fits && e.bytes > 0, "%s has %d dimensions and no size", piece->name, e.ndim);
    return e;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* An entry's name and where it came from, for a bisection: models have up to tens of thousands of
 * tensors, and to compare each with each would take longer than to write them. */
typedef struct {
    const char *name;
    int piece;
} Named;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Named *)a)->name, ((const Named *)b)->name);
}

static Named *sort_names(const CheckpointContents *contents, int first, int n)
{
    Named *sorted = must_calloc((size_t)n + 1, sizeof *sorted);
    for (int i = 0; i < n; i++)
        sorted[i] = (Named){contents_piece(contents, first + i)->name, first + i};
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    for (int i = 1; i < n; i++)
        CHECK(by_name(&sorted[i - 1], &sorted[i]) != 0, "two tensors are called %s",
              sorted[i].name);
    return sorted;
}

/* Appends a file with pieces [first, first + n) to the layout. safetensors_header sorts the entries
 * by the width of their type, so tensors lie in that order and not in the caller's. */
static void add_file(Layout *l, const CheckpointContents *contents, int first, int n)
{
    Manifest *m = &l->manifest;
    ManifestFile *file = &m->file[m->n_files];
    LayoutFile *own = &l->file[m->n_files];
    SafetensorsEntry *entry = must_calloc((size_t)n + 1, sizeof *entry);
    /* The header changes the order of the entries below; the names lead back to the pieces. */
    Named *sorted = sort_names(contents, first, n);
    char step[24];
    size_t bytes;
    snprintf(step, sizeof step, "%" PRId64, contents->state->steps);
    /* "format" is what Hugging Face's loaders ask for. The save's id is in every file, so that
     * files of two saves of one step, which look alike, are not taken for one checkpoint. */
    const char *metadata[] = {"format", "pt", "save_id", m->save_id, "step", step};
    for (int i = 0; i < n; i++)
        entry[i] = layout_entry(contents_piece(contents, first + i));
    own->header = safetensors_header(entry, n, metadata, 3, &bytes);
    /* The manifest takes the tensors in the file's order: writing, verifying and reading all go
     * through a file from its beginning to its end. */
    own->first = m->n_tensors;
    own->n = n;
    file->header_bytes = file->bytes = (int64_t)bytes;
    file->header_crc = crc32c(0, own->header, bytes);
    for (int i = 0; i < n; i++) {
        const Named wanted = {.name = entry[i].name},
                    *found = bsearch(&wanted, sorted, (size_t)n, sizeof *sorted, by_name);
        ManifestTensor *t = &m->tensor[m->n_tensors];
        *t = (ManifestTensor){.file = m->n_files, .entry = entry[i]};
        t->entry.name = must_strdup(entry[i].name);
        t->n_chunks = manifest_chunk_count(&entry[i]);
        t->chunk = must_calloc((size_t)t->n_chunks, sizeof *t->chunk);
        l->piece[m->n_tensors++] = found->piece;
        file->bytes += entry[i].bytes;
    }
    m->n_files++;
    free(entry);
    free(sorted);
}

/* ---- all files --------------------------------------------------------------------------------
 */

static void add_part(Layout *l, const CheckpointContents *contents, CheckpointPart part, int ranks)
{
    int begin = part == CHECKPOINT_WEIGHTS ? 0 : contents->n_weights,
        n = part == CHECKPOINT_WEIGHTS ? contents->n_weights : contents->n_slots,
        writers = layout_writers(contents, ranks),
        files = writers < n ? writers
                : n > 0     ? n
                            : 1;
    /* No empty files, but for a part without tensors (SGD without momentum has no slots): readers
     * find the same two parts in every checkpoint. */
    int64_t *bytes = must_calloc((size_t)n + 1, sizeof *bytes);
    int first[CHECKPOINT_MAX_WRITERS + 1];
    for (int i = 0; i < n; i++)
        bytes[i] = layout_entry(contents_piece(contents, begin + i)).bytes;
    layout_cut(bytes, n, files, first);
    for (int k = 0; k < files; k++) {
        int at = l->manifest.n_files;
        l->file[at].writer = layout_writer(k, writers, ranks);
        l->manifest.file[at].part = part;
        checkpoint_file_name(l->manifest.file[at].name, part, k, files);
        add_file(l, contents, begin + first[k], first[k + 1] - first[k]);
    }
    free(bytes);
}

void layout_build(Layout *layout, const CheckpointContents *contents, int ranks,
                  const char *save_id)
{
    Layout *l = layout;
    *l = (Layout){.n_pieces = contents->n_weights + contents->n_slots};
    Manifest *m = &l->manifest;
    GridPlace grid = contents->grid;
    if (grid.dp == 0) grid = GRID_OF_ONE;
    /* Every rank makes this layout for itself. One that thought of another number of ranks would
     * send to the wrong writer, and the save would hang. */
    CHECK(grid.pp * grid.dp * grid.cp * grid.tp == ranks,
          "%d ranks save what %d x %d x %d x %d have", ranks, grid.pp, grid.dp, grid.cp, grid.tp);
    snprintf(m->save_id, sizeof m->save_id, "%s", save_id);
    m->version = MANIFEST_VERSION;
    m->world = (ManifestWorld){.ranks = ranks,
                               .pp = grid.pp,
                               .dp = grid.dp,
                               .cp = grid.cp,
                               .tp = grid.tp,
                               .zero_stage = contents->zero_stage,
                               .writers = layout_writers(contents, ranks)};
    /* Copies: the manifest frees what it has, as one that was read from a file does. */
    m->state = *contents->state;
    m->config = must_strdup(contents->config);
    m->machine = must_strdup(contents->machine);
    m->code = must_strdup(contents->code);
    m->data = must_strdup(contents->data);
    size_t files = CHECKPOINT_PARTS * CHECKPOINT_MAX_WRITERS, n = (size_t)l->n_pieces + 1;
    m->file = must_calloc(files, sizeof *m->file);
    l->file = must_calloc(files, sizeof *l->file);
    m->tensor = must_calloc(n, sizeof *m->tensor);
    l->piece = must_calloc(n, sizeof *l->piece);
    for (int part = 0; part < CHECKPOINT_PARTS; part++)
        add_part(l, contents, (CheckpointPart)part, ranks);
}

void layout_free(Layout *l)
{
    for (int f = 0; f < l->manifest.n_files; f++)
        free(l->file[f].header);
    manifest_free(&l->manifest);
    free(l->file);
    free(l->piece);
    *l = (Layout){0};
}
