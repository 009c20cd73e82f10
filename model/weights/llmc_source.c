/* llmc_source.c -- reads a model file of llm.c as a WeightSource. See llmc.h. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/weights/llmc.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    WeightSource source; /* must come first: a WeightSource is this struct */
    LlmcPlace *place;    /* where each tensor is stored */
    int fd;
    char *path;
} LlmcSource;

static bool read_rows(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                      char *err, size_t n)
{
    LlmcSource *s = (LlmcSource *)source;
    const SourceTensor *t = &source->tensor[index];
    int64_t row = source_row_bytes(t);
    CHECK(first >= 0 && rows >= 0 && first <= t->dim[0] - rows, "%s: rows %lld to %lld of %lld",
          t->name, (long long)first, (long long)(first + rows), (long long)t->dim[0]);
    int64_t at = LLMC_HEADER_BYTES + s->place[index].offset * (int64_t)dtype_size(t->dtype);
    char why[1024];
    if (fs_read_at(s->fd, out, (size_t)(rows * row), at + first * row, s->path, why, sizeof why))
        return true;
    return error_set(err, n, "tensor %s: %s", t->name, why);
}

static void close_source(WeightSource *source)
{
    LlmcSource *s = (LlmcSource *)source;
    if (s->fd >= 0) close(s->fd);
    free(s->source.tensor);
    free(s->place);
    free(s->path);
    free(s);
}

/* ---- a run's folder -------------------------------------------------------------------------- */

/* Returns the step in the name DONE_%08d, or -1. */
static int64_t step_done(const char *name)
{
    char again[64];
    long long step = -1;
    if (sscanf(name, "DONE_%lld", &step) != 1 || step < 0) return -1;
    snprintf(again, sizeof again, "DONE_%08lld", step);
    return strcmp(again, name) == 0 ? step : -1;
}

/* Returns the path of the newest complete model in the folder; the caller frees it. If there is
 * none, returns NULL and sets `err`. llm.c writes DONE_N after all files of step N, so a model
 * without it may be truncated. */
static char *newest_model(const char *folder, char *err, size_t n)
{
    struct dirent **entry;
    int count = fs_scan(folder, &entry);
    int64_t newest = -1;
    if (count < 0) {
        error_set(err, n, "cannot look into %s: %s", folder, strerror(errno));
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        int64_t step = step_done(entry[i]->d_name);
        if (step > newest) newest = step;
        free(entry[i]);
    }
    free(entry);
    if (newest >= 0) return text_format("%s/model_%08lld.bin", folder, (long long)newest);
    error_set(err, n,
              "%s is not the folder of a run of llm.c: it has no file like DONE_00001000, which "
              "llm.c writes when a model is complete; give the model file itself",
              folder);
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Opens s->path, and reads and checks its header. */
static bool open_file(LlmcSource *s, LlmcHeader *header, bool *missing, char *err, size_t n)
{
    unsigned char bytes[LLMC_HEADER_BYTES];
    const char *reason;
    char why[1024];
    int64_t size;
    s->fd = fs_open_input(s->path, false, &size, &reason);
    *missing = s->fd < 0;
    if (*missing) return error_set(err, n, "cannot open %s: %s", s->path, reason);
    size_t first = size < LLMC_HEADER_BYTES ? (size_t)size : LLMC_HEADER_BYTES;
    if (!fs_read_at(s->fd, bytes, first, 0, s->path, err, n)) return false;
    return llmc_parse(header, bytes, first, size, why, sizeof why) ||
           error_set(err, n, "%s %s", s->path, why);
}

bool llmc_source_open(const char *path, LlmcHeader *header, WeightSource **out, char **opened,
                      bool *missing, char *err, size_t n)
{
    LlmcSource *s = must_calloc(1, sizeof *s);
    *s = (LlmcSource){.source = {.read = read_rows, .close = close_source}, .fd = -1};
    *out = NULL;
    *opened = NULL;
    *missing = true;
    s->path = fs_is_folder(path) ? newest_model(path, err, n) : must_strdup(path);
    bool good = s->path && open_file(s, header, missing, err, n);
    if (!good) {
        close_source(&s->source);
        return false;
    }
    s->place = llmc_places(header, &s->source.n_tensors);
    s->source.tensor = must_calloc((size_t)s->source.n_tensors, sizeof *s->source.tensor);
    for (int i = 0; i < s->source.n_tensors; i++)
        s->source.tensor[i] = s->place[i].tensor;
    *opened = must_strdup(s->path);
    *out = &s->source;
    return true;
}
