/* layout.c -- assigns tensors to files and files to ranks, and builds the headers and the manifest.
 * See layout.h. */
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

/* Returns the number of ranks that write files. */
static int layout_writers(int wanted, int ranks)
{
    int writers = wanted > 0 ? wanted : 1;
    if (writers > CHECKPOINT_MAX_WRITERS) writers = CHECKPOINT_MAX_WRITERS;
    return writers < ranks ? writers : ranks;
}

int layout_writer(int k, int writers, int ranks)
{
    /* Neighbouring ranks are often on the same machine. Spreading the writers uses the disks and
     * network cards of all machines. */
    return (int)((int64_t)k * ranks / writers);
}

void layout_cut(const int64_t *bytes, int n, int files, int *first)
{
    int64_t total = 0, before = 0;
    for (int i = 0; i < n; i++)
        total += bytes[i];
    first[0] = 0;
    /* Tensors are never cut, so each file can be read without the others. A file is therefore at
     * most one tensor larger than an equal share. */
    for (int k = 1, i = 0; k <= files; k++) {
        /* A tensor goes to the file whose equal share of the bytes contains its middle, but every
         * later file must get at least one tensor. */
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

/* Returns the number of files of a part with n tensors. A file is empty only if its part has no
 * tensors (SGD without momentum has no slots). Even then there is a file, so every checkpoint has
 * both parts. */
static int layout_files(int n, int writers)
{
    return writers < n ? writers : n > 0 ? n : 1;
}

bool layout_writes(const CheckpointContents *contents, int ranks, int rank)
{
    int writers = layout_writers(contents->writers, ranks);
    for (int k = 0; k < writers; k++)
        if (layout_writer(k, writers, ranks) == rank) return true;
    return false;
}

int checkpoint_writers(int writers, int ranks, int *rank)
{
    writers = layout_writers(writers, ranks);
    for (int k = 0; k < writers; k++)
        rank[k] = layout_writer(k, writers, ranks);
    return writers;
}

CheckpointShare checkpoint_share(const int64_t *bytes, int n_weights, int n_slots, int writers,
                                 int ranks, int rank)
{
    CheckpointShare share = {{0}};
    int first[CHECKPOINT_MAX_WRITERS + 1];
    writers = layout_writers(writers, ranks);
    for (int part = 0; part < CHECKPOINT_PARTS; part++) {
        int n = part == CHECKPOINT_WEIGHTS ? n_weights : n_slots, files = layout_files(n, writers);
        const int64_t *own = part == CHECKPOINT_WEIGHTS ? bytes : bytes + n_weights;
        layout_cut(own, n, files, first);
        for (int k = 0; k < files; k++)
            for (int i = first[k]; i < first[k + 1] && layout_writer(k, writers, ranks) == rank;
                 i++)
                share.part[part] += own[i];
    }
    return share;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* The name and number of a piece. Arrays of them are sorted by name for a binary search: a model
 * can have tens of thousands of tensors, and comparing all pairs would take longer than writing
 * them. */
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
 * by the size of their dtype, so the tensors are in that order in the file. */
static void add_file(Layout *l, const CheckpointContents *contents, int first, int n)
{
    Manifest *m = &l->manifest;
    ManifestFile *file = &m->file[m->n_files];
    LayoutFile *own = &l->file[m->n_files];
    SafetensorsEntry *entry = must_calloc((size_t)n + 1, sizeof *entry);
    /* safetensors_header reorders the entries below; the names are used to find their pieces
     * again. */
    Named *sorted = sort_names(contents, first, n);
    char step[24];
    size_t bytes;
    snprintf(step, sizeof step, "%" PRId64, contents->state->steps);
    /* Hugging Face's loaders require "format". Two saves of the same step look alike, so every file
     * contains the id of its save, which shows if files of both were mixed. */
    const char *metadata[] = {"format", "pt", "save_id", m->save_id, "step", step};
    for (int i = 0; i < n; i++)
        entry[i] = layout_entry(contents_piece(contents, first + i));
    own->header = safetensors_header(entry, n, metadata, 3, &bytes);
    /* The manifest lists the tensors in the order of the file, so writing, verifying and reading
     * all access a file sequentially. */
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
        writers = layout_writers(contents->writers, ranks), files = layout_files(n, writers);
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
    /* Every rank computes this layout itself. A rank with a wrong number of ranks would send to the
     * wrong writer, and the save would hang. */
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
                               .writers = layout_writers(contents->writers, ranks)};
    /* manifest_free frees these texts, as it does for a manifest that was read from a file, so they
     * must be copies. */
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
