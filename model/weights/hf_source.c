/* hf_source.c -- implements hf_source.h: finds our tensors in safetensors files, and reads them row
 * by row in our layout. */
#include "model/weights/hf_source.h"

#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/json.h"
#include "model/weights/hf_config.h"
#include "model/weights/hf_files.h"
#include "model/weights/hf_index.h"
#include "model/weights/hf_names.h"
#include "model/weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where one of our tensors is. */
typedef struct {
    int file;
    int64_t at;      /* offset in its file at which the file's tensor begins */
    int64_t width;   /* for a transposed tensor: the number of columns of the file's tensor */
    int64_t column;  /* where it begins in the file's tensor: element or, if transposed, column */
    bool transposed; /* the file stores it as (in, out) */
} Where;

typedef struct {
    WeightSource base; /* the first field: a WeightSource is this struct */
    ArchitectureKind kind;
    bool tied;
    char *folder;
    StringList files;
    Where *where; /* where each tensor is stored */
    int capacity;
    int fd, opened; /* the open file, and its number; -1: none */
    char *block;    /* rows of a transposed tensor, as stored in the file */
} HfSource;

enum { BLOCK_BYTES = 1 << 20 };

bool hf_folder_config(const char *folder, Architecture *out, char *err, size_t n, ExitCode *code)
{
    char *text = NULL;
    size_t bytes;
    *code = EXIT_MISSING;
    if (!hf_file_read(folder, "config.json", (int64_t)JSON_MAX_BYTES, &text, &bytes, err, n))
        return false;
    char *path = text_format("%s/config.json", folder);
    *code = EXIT_CONFIG;
    bool good = hf_config_parse(out, path, text, bytes, err, n);
    free(path);
    free(text);
    return good;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Opens file `which`, unless it is open, and closes the one before it. */
static bool open_file(HfSource *s, int which, char *err, size_t n)
{
    int64_t bytes;
    if (s->opened == which) return true;
    if (s->fd >= 0) close(s->fd);
    s->fd = hf_file_open(s->folder, s->files.item[which], &bytes, err, n);
    s->opened = s->fd >= 0 ? which : -1;
    return s->fd >= 0;
}

static void close_hf(WeightSource *source)
{
    HfSource *s = (HfSource *)source;
    if (s->fd >= 0) close(s->fd);
    string_list_free(&s->files);
    free(s->base.tensor);
    free(s->where);
    free(s->folder);
    free(s->block);
    free(s);
}

/* Transposes a part of the file's tensor, of which `block` has `rows_there` rows of `stride`
 * elements. Column r of `block`, r < rows, is copied to columns [from, from + rows_there) of row r
 * of `out`, which has `in` columns. */
static void transpose(char *out, const char *block, int64_t rows, int64_t in, int64_t from,
                      int64_t rows_there, int64_t stride, size_t size)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < rows_there; i++)
            memcpy(out + (size_t)(r * in + from + i) * size,
                   block + (size_t)(i * stride + r) * size, size);
}

/* Reads rows [first, first + rows) of a transposed tensor, which are columns of the file's. If they
 * are a large part of the file's columns, reads whole rows of the file, many at a time; otherwise
 * only the wanted columns. */
static bool read_transposed(HfSource *s, const Where *w, const SourceTensor *t, int64_t first,
                            int64_t rows, char *out, const char *path, char *err, size_t n)
{
    const int64_t GOOD_PART = 8;
    int64_t size = (int64_t)dtype_size(t->dtype), in = t->dim[1], column = w->column + first;
    bool whole = rows * GOOD_PART >= w->width;
    int64_t stride = whole ? w->width : rows, most = BLOCK_BYTES / (stride * size);
    if (!whole || most < 1) most = 1;
    s->block = must_realloc(s->block, (size_t)(most * stride * size));
    for (int64_t from = 0; from < in; from += most) {
        int64_t some = in - from < most ? in - from : most;
        int64_t begin = from * w->width + (whole ? 0 : column);
        if (!fs_read_at(s->fd, s->block, (size_t)(some * stride * size), w->at + begin * size, path,
                        err, n))
            return false;
        transpose(out, s->block + (whole ? column * size : 0), rows, in, from, some, stride,
                  (size_t)size);
    }
    return true;
}

static bool read_hf(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                    char *err, size_t n)
{
    HfSource *s = (HfSource *)source;
    const Where *w = &s->where[index];
    const SourceTensor *t = &source->tensor[index];
    CHECK(first >= 0 && rows >= 0 && first + rows <= t->dim[0], "rows %lld + %lld of %lld",
          (long long)first, (long long)rows, (long long)t->dim[0]);
    if (!open_file(s, w->file, err, n)) return false;
    char *path = text_format("%s/%s", s->folder, s->files.item[w->file]);
    int64_t row = source_row_bytes(t);
    bool good = w->transposed
                    ? read_transposed(s, w, t, first, rows, out, path, err, n)
                    : fs_read_at(s->fd, out, (size_t)(rows * row),
                                 w->at + w->column * (int64_t)dtype_size(t->dtype) + first * row,
                                 path, err, n);
    free(path);
    return good;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A list of tensors that do not belong to the model. */
typedef struct {
    FILE *to;
    int n;
} Strangers;

static void add_stranger(Strangers *l, const SafetensorsEntry *e, const char *why)
{
    enum { MOST = 20 };
    if (l->n++ >= MOST) return;
    fprintf(l->to, "%s%s %s ", l->n > 1 ? "; " : "", e->name, dtype_info[e->dtype].safetensors);
    safetensors_print_shape(l->to, e->ndim, e->dim, ", ");
    fprintf(l->to, " %s", why);
}

/* Adds one of our tensors, which is `part` of entry `e`. */
static void add_tensor(HfSource *s, const SafetensorsEntry *e, const HfPart *part, Where where)
{
    if (s->base.n_tensors == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->base.tensor = must_realloc(s->base.tensor, (size_t)s->capacity * sizeof *s->base.tensor);
        s->where = must_realloc(s->where, (size_t)s->capacity * sizeof *s->where);
    }
    SourceTensor *t = &s->base.tensor[s->base.n_tensors];
    int64_t last = e->dim[e->ndim - 1], width = part->part < 0 ? last : last / HF_MOST_PARTS;
    *t = (SourceTensor){.dtype = e->dtype, .ndim = e->ndim, .dim = {e->dim[0], 1}};
    memcpy(t->name, part->name, sizeof t->name);
    where.column = part->part < 0 ? 0 : part->part * width;
    where.transposed = part->transposed && e->ndim == 2;
    where.width = last;
    if (e->ndim == 1) t->dim[0] = width;
    if (e->ndim == 2) t->dim[1] = last;
    if (where.transposed) {
        t->dim[0] = width;
        t->dim[1] = e->dim[0];
    }
    s->where[s->base.n_tensors++] = where;
}

static void add_entry(HfSource *s, const SafetensorsEntry *e, int file, int64_t data_at,
                      Strangers *strangers)
{
    HfPart part[HF_MOST_PARTS];
    if (hf_name_is_buffer(s->kind, e->name)) return;
    if (s->tied && strcmp(e->name, "lm_head.weight") == 0) return;
    int n = hf_names_in(s->kind, e->name, part);
    const char *wrong = n == 0 ? "is no tensor of such a model"
                        : e->ndim < 1 || e->ndim > 2 || !dtype_is_float(e->dtype)
                            ? "is no matrix or vector of floating-point numbers"
                        : n > 1 && e->dim[e->ndim - 1] % n != 0 ? "cannot be q, k and v in one"
                                                                : NULL;
    if (wrong) add_stranger(strangers, e, wrong);
    for (int i = 0; wrong == NULL && i < n; i++)
        add_tensor(s, e, &part[i], (Where){.file = file, .at = data_at + e->offset});
}

static bool index_names(const HfIndex *index, const char *tensor, int file)
{
    for (int low = 0, high = index->n; low < high;) {
        int middle = low + (high - low) / 2, order = strcmp(tensor, index->entry[middle].tensor);
        if (order == 0) return index->entry[middle].file == file;
        *(order < 0 ? &high : &low) = order < 0 ? middle : middle + 1;
    }
    return false;
}

/* Checks that a file has exactly the tensors that the index assigns to it. Otherwise another reader
 * might use a tensor that this one does not see. */
static bool check_index(const HfIndex *index, const Safetensors *st, int file, const char *path,
                        char *err, size_t n)
{
    int expected = 0;
    for (int i = 0; i < index->n; i++)
        expected += index->entry[i].file == file;
    for (int i = 0; i < st->n; i++)
        if (!index_names(index, st->entry[i].name, file))
            return error_set(err, n, "%s has a tensor %s, which the index does not name there",
                             path, st->entry[i].name);
    return expected == st->n || error_set(err, n, "%s has %d tensors, and the index names %d there",
                                          path, st->n, expected);
}

/* Reads the header of each file and lists its tensors. */
static bool add_files(HfSource *s, const HfIndex *index, Strangers *strangers, char *err, size_t n)
{
    for (int f = 0; f < s->files.count; f++) {
        int64_t bytes;
        uint32_t crc;
        Safetensors st;
        int fd = hf_file_open(s->folder, s->files.item[f], &bytes, err, n);
        if (fd < 0) return false;
        char *path = text_format("%s/%s", s->folder, s->files.item[f]);
        bool good = safetensors_read(&st, fd, bytes, path, &crc, err, n);
        close(fd);
        if (good) {
            good = index == NULL || check_index(index, &st, f, path, err, n);
            for (int i = 0; good && i < st.n; i++)
                add_entry(s, &st.entry[i], f, st.data_at, strangers);
            safetensors_free(&st);
        }
        free(path);
        if (!good) return false;
    }
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Refuses files in which one of our tensors is stored twice: under a name with the prefix
 * "transformer." or "model.", and under one without it. */
static bool check_once(const HfSource *s, char *err, size_t n)
{
    int count = s->base.n_tensors;
    const char **name = must_calloc((size_t)count + 1, sizeof *name);
    for (int i = 0; i < count; i++)
        name[i] = s->base.tensor[i].name;
    qsort(name, (size_t)count, sizeof *name, by_name);
    bool good = true;
    for (int i = 1; good && i < count; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            good = error_set(err, n, "%s has two tensors for %s", s->folder, name[i]);
    free(name);
    return good;
}

static bool add_tensors(HfSource *s, const HfIndex *index, char *err, size_t n)
{
    char *list;
    size_t size;
    Strangers strangers = {.to = text_stream(&list, &size)};
    bool good = add_files(s, index, &strangers, err, n);
    fclose(strangers.to);
    if (good && strangers.n > 0)
        good = error_set(err, n, "%s: %d tensor%s of the files belong%s to no %s model: %s",
                         s->folder, strangers.n, strangers.n > 1 ? "s" : "",
                         strangers.n > 1 ? "" : "s", architecture_name(s->kind), list);
    free(list);
    return good && check_once(s, err, n);
}

bool hf_source_open(const char *folder, const Architecture *architecture, WeightSource **out,
                    char *err, size_t n, ExitCode *code)
{
    static const char one[] = "model.safetensors", index_name[] = "model.safetensors.index.json";
    HfIndex index = {0};
    bool single = hf_file_exists(folder, one);
    *out = NULL;
    *code = EXIT_MISSING;
    if (!single && !hf_file_exists(folder, index_name)) {
        hf_explain_no_weights(folder, err, n);
        return false;
    }
    HfSource *s = must_calloc(1, sizeof *s);
    *s = (HfSource){.base = {.read = read_hf, .close = close_hf},
                    .kind = architecture->kind,
                    .tied = architecture->tied,
                    .folder = must_strdup(folder),
                    .fd = -1,
                    .opened = -1};
    char *text = NULL, why[512];
    size_t bytes;
    bool good =
        single || hf_file_read(folder, index_name, HF_INDEX_MAX_BYTES, &text, &bytes, err, n);
    *code = EXIT_DAMAGED;
    if (good && !single)
        good = hf_index_parse(&index, text, bytes, why, sizeof why) ||
               error_set(err, n, "%s/%s: %s", folder, index_name, why);
    free(text);
    if (single) string_list_add(&s->files, one);
    for (int i = 0; i < index.files.count; i++)
        string_list_add(&s->files, index.files.item[i]);
    good = good && add_tensors(s, single ? NULL : &index, err, n);
    hf_index_free(&index);
    if (good)
        *out = &s->base;
    else
        close_hf(&s->base);
    return good;
}
