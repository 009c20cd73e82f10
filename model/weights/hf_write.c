/* hf_write.c -- implements hf_write.h: does the reverse of hf_source.c. */
#include "model/weights/hf_write.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"
#include "model/weights/hf_config.h"
#include "model/weights/hf_names.h"
#include "model/weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor of Hugging Face's files, made of one or three of ours. */
typedef struct {
    char name[HF_NAME];
    int part[HF_MOST_PARTS], n_parts; /* numbers of our tensors in the source */
    bool transposed;
    int file;
    SafetensorsEntry entry;
} Whole;

typedef struct {
    const HfModel *model;
    WeightSource *source;
    Whole *whole;
    int n, files;
    char *in, *out; /* rows of our tensors, as stored and as converted */
    HfWritten *written;
} Writing;

enum { WINDOW_BYTES = 1 << 20 };

/* ---- which tensors, and where ---------------------------------------------------------------- */

static Whole *find_whole(Writing *w, const HfPlace *place)
{
    /* Search from the end, because the parts of a tensor are close to each other. */
    for (int i = w->n; i-- > 0;)
        if (strcmp(w->whole[i].name, place->name) == 0) return &w->whole[i];
    Whole *whole = &w->whole[w->n++];
    *whole = (Whole){.transposed = place->transposed};
    memcpy(whole->name, place->name, sizeof whole->name);
    return whole;
}

/* Sets the shape of the whole tensor. A transposed matrix is (in, out), with its parts side by
 * side; a vector has its parts one after the other. */
static void set_entry(Writing *w, Whole *whole)
{
    const SourceTensor *t = &w->source->tensor[whole->part[0]];
    SafetensorsEntry *e = &whole->entry;
    *e = (SafetensorsEntry){.name = whole->name, .dtype = w->model->dtype, .ndim = t->ndim};
    e->dim[0] = t->dim[0] * whole->n_parts;
    if (t->ndim == 2) e->dim[1] = t->dim[1];
    if (whole->transposed) {
        e->dim[0] = t->dim[1];
        e->dim[1] = t->dim[0] * whole->n_parts;
    }
    bool fits = safetensors_size(e->dtype, e->ndim, e->dim, &e->bytes);
    CHECK(fits, "%s overflows", e->name);
}

static bool list_tensors(Writing *w, char *err, size_t n)
{
    const WeightSource *s = w->source;
    w->whole = must_calloc((size_t)s->n_tensors + 1, sizeof *w->whole);
    for (int i = 0; i < s->n_tensors; i++) {
        HfPlace place;
        if (!hf_name_of(w->model->architecture.kind, s->tensor[i].name, &place))
            return error_set(err, n, "%s has no name in a model of type %s", s->tensor[i].name,
                             architecture_name(w->model->architecture.kind));
        Whole *whole = find_whole(w, &place);
        int part = place.part < 0 ? 0 : place.part;
        whole->part[part] = i;
        if (part >= whole->n_parts) whole->n_parts = part + 1;
    }
    for (int i = 0; i < w->n; i++)
        set_entry(w, &w->whole[i]);
    return true;
}

/* Distributes the tensors over files, in order. */
static void cut(Writing *w)
{
    int64_t bytes = 0;
    w->files = 1;
    for (int i = 0; i < w->n; i++) {
        if (bytes > 0 && bytes + w->whole[i].entry.bytes > w->model->shard_bytes) {
            w->files++;
            bytes = 0;
        }
        bytes += w->whole[i].entry.bytes;
        w->whole[i].file = w->files - 1;
    }
}

int64_t hf_write_bytes(const HfModel *model, const WeightSource *source, char *err, size_t n)
{
    Writing w = {.model = model, .source = (WeightSource *)(uintptr_t)source};
    bool good = list_tensors(&w, err, n);
    int64_t bytes = 0;
    for (int i = 0; good && i < w.n; i++)
        bytes += w.whole[i].entry.bytes + 256; /* plus its entries in header and index */
    free(w.whole);
    return good ? bytes : -1;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Reads rows [first, first + rows) of one of our tensors, and converts them. */
static bool read_rows(Writing *w, int index, int64_t first, int64_t rows, char *err, size_t n)
{
    const SourceTensor *t = &w->source->tensor[index];
    int64_t cols = t->ndim > 1 ? t->dim[1] : 1;
    if (!w->source->read(w->source, index, first, rows, w->in, err, n)) return false;
    w->written->overflows += weights_convert(w->out, w->model->dtype, w->in, t->dtype, rows * cols);
    return true;
}

/* Allocates room for some rows of a tensor, and returns how many. */
static int64_t make_room(Writing *w, const SourceTensor *t)
{
    int64_t cols = t->ndim > 1 ? t->dim[1] : 1, rows = WINDOW_BYTES / (8 * cols);
    if (rows < 1) rows = 1;
    if (rows > t->dim[0]) rows = t->dim[0];
    w->in = must_realloc(w->in, (size_t)(8 * rows * cols));
    w->out = must_realloc(w->out, (size_t)(8 * rows * cols));
    return rows;
}

static bool write_plain(Writing *w, const Whole *whole, AtomicFile *file, char *err, size_t n)
{
    for (int p = 0; p < whole->n_parts; p++) {
        const SourceTensor *t = &w->source->tensor[whole->part[p]];
        int64_t most = make_room(w, t), cols = t->ndim > 1 ? t->dim[1] : 1;
        for (int64_t first = 0; first < t->dim[0]; first += most) {
            int64_t rows = t->dim[0] - first < most ? t->dim[0] - first : most;
            if (!read_rows(w, whole->part[p], first, rows, err, n) ||
                !atomic_file_write(file, w->out,
                                   (size_t)(rows * cols) * dtype_size(w->model->dtype), err, n))
                return false;
        }
    }
    return true;
}

/* Writes a matrix as (in, out). It is built in memory, because each row of the file has one element
 * of every row of ours. */
static bool write_transposed(Writing *w, const Whole *whole, AtomicFile *file, char *err, size_t n)
{
    size_t size = dtype_size(w->model->dtype);
    int64_t in = whole->entry.dim[0], out = whole->entry.dim[1];
    char *all = must_alloc((size_t)whole->entry.bytes);
    bool good = true;
    for (int p = 0; good && p < whole->n_parts; p++) {
        const SourceTensor *t = &w->source->tensor[whole->part[p]];
        int64_t most = make_room(w, t);
        for (int64_t first = 0; good && first < t->dim[0]; first += most) {
            int64_t rows = t->dim[0] - first < most ? t->dim[0] - first : most,
                    column = p * t->dim[0] + first;
            good = read_rows(w, whole->part[p], first, rows, err, n);
            for (int64_t i = 0; good && i < in; i++)
                for (int64_t r = 0; r < rows; r++)
                    memcpy(all + (size_t)(i * out + column + r) * size,
                           w->out + (size_t)(r * in + i) * size, size);
        }
    }
    good = good && atomic_file_write(file, all, (size_t)whole->entry.bytes, err, n);
    free(all);
    return good;
}

/* ---- files ----------------------------------------------------------------------------------- */

static char *file_name(const Writing *w, int file)
{
    if (w->files == 1) return must_strdup("model.safetensors");
    return text_format("model-%05d-of-%05d.safetensors", file + 1, w->files);
}

static bool write_file(Writing *w, const char *folder, int number,
                       void (*progress)(void *context, int done, int all), void *context, char *err,
                       size_t n)
{
    static const char *const metadata[] = {"format", "pt"};
    SafetensorsEntry *entry = must_calloc((size_t)w->n + 1, sizeof *entry);
    int first = 0, count = 0;
    size_t header_bytes;
    while (w->whole[first].file != number)
        first++;
    while (first + count < w->n && w->whole[first + count].file == number) {
        entry[count] = w->whole[first + count].entry;
        w->written->bytes += entry[count++].bytes;
    }
    /* All tensors have the same type, so safetensors_header keeps their order. */
    char *header = safetensors_header(entry, count, metadata, 1, &header_bytes);
    char *name = file_name(w, number), *path = text_format("%s/%s", folder, name);
    AtomicFile file;
    bool good = atomic_file_open(&file, &fs_system, path, err, n);
    bool opened = good;
    good = good && atomic_file_write(&file, header, header_bytes, err, n);
    for (int i = first; good && i < first + count; i++) {
        const Whole *whole = &w->whole[i];
        good = (whole->transposed ? write_transposed : write_plain)(w, whole, &file, err, n);
        if (progress) progress(context, i + 1, w->n);
    }
    if (opened && good)
        good = atomic_file_commit(&file, err, n);
    else if (opened)
        atomic_file_abort(&file);
    free(path);
    free(name);
    free(header);
    free(entry);
    return good;
}

/* Writes `text` to a file of the folder, and frees it. */
static bool write_text(const char *folder, const char *name, char *text, char *err, size_t n)
{
    bool good = file_write_in(&fs_system, folder, name, text, strlen(text), err, n);
    free(text);
    return good;
}

static char *index_text(const Writing *w)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    fprintf(to, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {\n",
            (long long)w->written->bytes);
    for (int i = 0; i < w->n; i++) {
        char *file = file_name(w, w->whole[i].file);
        fprintf(to, "    \"%s\": \"%s\"%s\n", w->whole[i].name, file, i + 1 < w->n ? "," : "");
        free(file);
    }
    fputs("  }\n}\n", to);
    fclose(to);
    return text;
}

static char *generation_text(const HfModel *m)
{
    char bos[16] = "null", eos[16] = "null";
    if (m->bos >= 0) snprintf(bos, sizeof bos, "%d", m->bos);
    if (m->eos >= 0) snprintf(eos, sizeof eos, "%d", m->eos);
    return text_format("{\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s\n}\n", bos, eos);
}

bool hf_write(const char *folder, const HfModel *model, WeightSource *source,
              void (*progress)(void *context, int done, int all), void *context, HfWritten *written,
              char *err, size_t n)
{
    Writing w = {.model = model, .source = source, .written = written};
    *written = (HfWritten){0};
    bool good = list_tensors(&w, err, n);
    if (good) cut(&w);
    for (int f = 0; good && f < w.files; f++)
        good = write_file(&w, folder, f, progress, context, err, n);
    written->files = w.files;
    if (good && w.files > 1)
        good = write_text(folder, "model.safetensors.index.json", index_text(&w), err, n);
    good = good && write_text(folder, "generation_config.json", generation_text(model), err, n) &&
           write_text(folder, "config.json",
                      hf_config_print(&model->architecture, model->dtype, model->bos, model->eos),
                      err, n);
    free(w.whole);
    free(w.in);
    free(w.out);
    return good;
}
