/* take.c -- fills the weights of a run from a WeightSource. See take.h. */
#include "parallel/checkpoint/take.h"

#include "model/core/check.h"
#include "model/weights/fit.h"
#include "parallel/checkpoint/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names and shapes ------------------------------------------------------------------------ */

/* Which rows of the source's tensor may be left out if it has more rows than the run's weight:
 * none, or the last ones, which belong to token ids or to positions that the run does not have. The
 * weight's name in the model determines it. */
typedef enum { ROWS_FIXED, ROWS_TOKENS, ROWS_POSITIONS } RowKind;

static RowKind row_kind(const char *name)
{
    if (strcmp(name, "token.weight") == 0 || strcmp(name, "head.weight") == 0) return ROWS_TOKENS;
    return strcmp(name, "position.weight") == 0 ? ROWS_POSITIONS : ROWS_FIXED;
}

/* How a tensor of the source fits a weight of the run. FIT_CUT: it fits if its last rows are left
 * out. */
typedef enum { FIT_EQUAL, FIT_CUT, FIT_NOT } Fit;

static Fit fit_of(const SourceTensor *t, const Piece *w, bool same_ids)
{
    RowKind kind = row_kind(w->name);
    if (t->ndim != w->ndim || (w->ndim > 1 && t->dim[1] != w->dim[1])) return FIT_NOT;
    if (t->dim[0] == w->dim[0]) return FIT_EQUAL;
    bool may = kind == ROWS_POSITIONS || (kind == ROWS_TOKENS && same_ids);
    return may && t->dim[0] > w->dim[0] ? FIT_CUT : FIT_NOT;
}

/* A comparison of a source with a run's weights, and the number of misfits (tensors that do not
 * fit) found so far. Only the first MOST are named, so the message stays readable. */
enum { MOST = 12 };
typedef struct {
    Take *take;
    const Piece *weights;
    FILE *to;
    int count;
} Misfits;

/* Appends a tensor that does not fit to the message: `t` or `w` is NULL if one side has no such
 * tensor. */
static void add_misfit(Misfits *m, const SourceTensor *t, const Piece *w)
{
    if (m->count++ >= MOST) return;
    if (m->count > 1) fputs("; ", m->to);
    if (w)
        weights_print_misfit(m->to, w->name, t, w->ndim, w->dim);
    else
        weights_print_misfit(m->to, t->name, t, 0, NULL);
}

/* Writes what to do about a table that has too few rows, or too many. */
static void add_advice(Misfits *m, const SourceTensor *t, const Piece *w)
{
    bool columns = w->ndim > 1 && t->ndim > 1 && t->dim[1] == w->dim[1];
    RowKind kind = row_kind(w->name);
    if (!columns || m->count > MOST) return;
    if (kind == ROWS_POSITIONS)
        fprintf(m->to, " (model.max_position_embeddings can be %lld at most)",
                (long long)t->dim[0]);
    else if (kind == ROWS_TOKENS)
        fprintf(m->to, " (the vocabulary is another one)");
}

/* Writes which rows of the source are left out. */
static void add_notice(Take *take, const SourceTensor *t, const Piece *w)
{
    size_t used = strlen(take->notice);
    const char *what = row_kind(w->name) == ROWS_POSITIONS ? "positions" : "token ids";
    snprintf(take->notice + used, sizeof take->notice - used,
             "%s%s: the first %lld of %lld %s are taken", used ? "; " : "", w->name,
             (long long)w->dim[0], (long long)t->dim[0], what);
}

static const char *name_of(const void *context, int i)
{
    const Misfits *m = context;
    return m->weights[i].name;
}

/* Compares weight i with the source's tensor of the same name (i < 0 or t NULL: there is none).
 * Adds a misfit to the message, and rows that are left out to the notice. */
static void compare(void *context, const SourceTensor *t, int i)
{
    Misfits *m = context;
    const Piece *w = i >= 0 ? &m->weights[i] : NULL;
    Fit fit = t && w ? fit_of(t, w, m->take->same_ids) : FIT_NOT;
    if (fit == FIT_NOT) add_misfit(m, t, w);
    if (fit == FIT_NOT && t && w) add_advice(m, t, w);
    if (fit == FIT_CUT) add_notice(m->take, t, w);
}

bool take_fits(const WeightSource *source, Take *take, const Piece *weights, int n_weights,
               char *err, size_t n)
{
    char *list;
    size_t bytes;
    Misfits m = {.take = take, .weights = weights, .to = text_stream(&list, &bytes)};
    take->notice[0] = '\0';
    weights_match(source, &(WeightMatch){.name = name_of, .visit = compare, .context = &m},
                  n_weights);
    if (m.count > MOST) fprintf(m.to, "; and %d more", m.count - MOST);
    fclose(m.to);
    if (m.count > 0)
        error_set(err, n, "%s: the weights do not fit this model: %s", take->from, list);
    free(list);
    take->refused = m.count > 0;
    return m.count == 0;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* The buffers of one rank: a window of rows in the source's dtype, and the same rows in f32 if the
 * source has f64 and the run computes in f32. */
typedef struct {
    CheckpointIo *io;
    WeightSource *source;
    Take *take;
    void *rows, *narrow;
    char *err;
    size_t n;
} Taking;

/* Returns how many rows of the tensor are read at once: at least one. */
static int64_t window_rows(const SourceTensor *t)
{
    int64_t row = source_row_bytes(t), most = (int64_t)CHECKPOINT_STAGING_BYTES;
    return row < most ? most / row : 1;
}

/* Sets the message that a number of values of a tensor do not fit a dtype; returns false. */
static bool beyond(Taking *t, const char *name, int64_t lost, DType dtype)
{
    t->take->refused = true;
    return error_set(t->err, t->n,
                     "%s: %lld values are beyond the range of %s, in which this run has its "
                     "weights",
                     name, (long long)lost, dtype_name(dtype));
}

/* Stores those of the elements [from, end) that the piece has. `window`: the values of all elements
 * [from, end), in dtype `have`. */
static bool put(Taking *t, const Piece *piece, int64_t from, int64_t end, const char *window,
                DType have)
{
    Stretch s;
    bool one;
    int64_t most = (int64_t)(CHECKPOINT_STAGING_BYTES / dtype_size(piece->dtype));
    for (int64_t at = from, next; at < end; at = next) {
        next = end - at < most ? end : at + most;
        if (extent_count(&piece->extent, at, next, &s, &one) == 0) continue;
        const char *in = window + (size_t)(at - from) * dtype_size(have);
        int64_t lost = weights_convert(t->io->staging, piece->dtype, in, have, next - at);
        if (lost > 0) return beyond(t, piece->name, lost, piece->dtype);
        checkpoint_io_put(t->io, piece, at, next, t->io->staging);
    }
    return true;
}

/* Reads a tensor in windows of rows and stores this rank's elements in the weight and, if there is
 * one, in its master. */
static bool take_tensor(Taking *t, int index, const Piece *weight, const Piece *master)
{
    const SourceTensor *have = &t->source->tensor[index];
    DType compute = dtype_compute(weight->dtype);
    int64_t rows = weight->dim[0], cols = weight->ndim > 1 ? weight->dim[1] : 1, count;
    for (int64_t first = 0; first < rows; first += count) {
        Stretch s;
        bool one;
        count = window_rows(have);
        if (count > rows - first) count = rows - first;
        int64_t from = first * cols, end = (first + count) * cols;
        const char *window = t->rows;
        DType dtype = have->dtype;
        if (extent_count(&weight->extent, from, end, &s, &one) == 0 &&
            (master->name == NULL || extent_count(&master->extent, from, end, &s, &one) == 0))
            continue;
        if (!t->source->read(t->source, index, first, count, t->rows, t->err, t->n)) return false;
        /* f64 is first rounded to f32, the dtype of master copies, because a weight must be its
         * master's value, rounded. */
        if (dtype == F64 && compute == F32) {
            int64_t lost = weights_convert(t->narrow, F32, t->rows, F64, count * cols);
            if (lost > 0) return beyond(t, have->name, lost, F32);
            window = t->narrow;
            dtype = F32;
        }
        if (!put(t, weight, from, end, window, dtype)) return false;
        if (master->name && !put(t, master, from, end, window, dtype)) return false;
    }
    return true;
}

bool take_weights(CheckpointIo *io, WeightSource *source, Take *take, const Piece *weights,
                  const Piece *masters, int n_weights, char *err, size_t n)
{
    Taking t = {.io = io, .source = source, .take = take, .err = err, .n = n};
    int64_t bytes = 0;
    bool good = true;
    for (int i = 0; i < source->n_tensors; i++) {
        int64_t window = window_rows(&source->tensor[i]) * source_row_bytes(&source->tensor[i]);
        if (window > bytes) bytes = window;
    }
    t.rows = must_alloc((size_t)bytes + 1);
    t.narrow = must_alloc((size_t)bytes + 1);
    for (int i = 0; good && i < n_weights; i++) {
        int index = weight_source_find(source, weights[i].name);
        CHECK(index >= 0, "%s is not in the source", weights[i].name);
        good = take_tensor(&t, index, &weights[i], &masters[i]);
    }
    free(t.rows);
    free(t.narrow);
    return checkpoint_io_agree(io, good, err, n);
}
