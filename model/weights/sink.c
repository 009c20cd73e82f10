/* sink.c -- writes weights to files of other programs. See sink.h. */
#include "model/weights/sink.h"

#include "model/core/check.h"
#include "model/core/temporary.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_BYTES ((int64_t)4 << 20)

bool sink_open(WeightSink *sink, const FsOps *fs, const char *path, int64_t bytes, char *err,
               size_t n)
{
    *sink = (WeightSink){.lock = -1};
    temporary_sweep(fs, path);
    if (!file_room(fs, path, bytes, err, n) || !atomic_file_open(&sink->file, fs, path, err, n))
        return false;
    sink->lock = temporary_hold(sink->file.temporary);
    return true;
}

bool sink_write(WeightSink *sink, const void *data, size_t bytes, char *err, size_t n)
{
    sink->written += (int64_t)bytes;
    return atomic_file_write(&sink->file, data, bytes, err, n);
}

bool sink_zeros(WeightSink *sink, int64_t bytes, char *err, size_t n)
{
    static const char zeros[4096];
    while (bytes > 0) {
        size_t part = bytes < (int64_t)sizeof zeros ? (size_t)bytes : sizeof zeros;
        if (!sink_write(sink, zeros, part, err, n)) return false;
        bytes -= (int64_t)part;
    }
    return true;
}

/* Interleaves the two halves of each head of `head` rows. `out` and `in` have `rows` rows each. */
static void interleave(char *out, const char *in, int64_t rows, int64_t head, size_t row_bytes)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t first = r - r % head, within = r % head;
        int64_t from = first + within % 2 * (head / 2) + within / 2;
        memcpy(out + (size_t)r * row_bytes, in + (size_t)from * row_bytes, row_bytes);
    }
}

bool sink_tensor(WeightSink *sink, WeightSource *source, int index, DType to, int64_t head,
                 char *err, size_t n)
{
    const SourceTensor *t = &source->tensor[index];
    int64_t row = source_row_bytes(t), cols = row / (int64_t)dtype_size(t->dtype);
    /* If `head` is given, a window consists of whole heads, so that each can be interleaved. */
    int64_t least = head > 0 ? head : 1, window = WINDOW_BYTES / row / least * least;
    if (window < least) window = least;
    CHECK(head == 0 || (head % 2 == 0 && t->dim[0] % head == 0), "%s: heads of %lld rows", t->name,
          (long long)head);
    for (int64_t at = 0; at < t->dim[0]; at += window) {
        int64_t rows = t->dim[0] - at < window ? t->dim[0] - at : window;
        size_t in = (size_t)(rows * row), out = (size_t)(rows * cols) * dtype_size(to);
        weights_reserve(&sink->in, &sink->in_bytes, in);
        weights_reserve(&sink->out, &sink->out_bytes, in > out ? in : out);
        if (!source->read(source, index, at, rows, sink->in, err, n)) return false;
        if (head > 0) {
            void *read = sink->in;
            size_t bytes = sink->in_bytes;
            interleave(sink->out, read, rows, head, (size_t)row);
            sink->in = sink->out;
            sink->in_bytes = sink->out_bytes;
            sink->out = read;
            sink->out_bytes = bytes;
            weights_reserve(&sink->out, &sink->out_bytes, out);
        }
        sink->overflows += weights_convert(sink->out, to, sink->in, t->dtype, rows * cols);
        if (!sink_write(sink, sink->out, out, err, n)) return false;
    }
    return true;
}

bool sink_close(WeightSink *sink, bool good, char *err, size_t n)
{
    good = good && atomic_file_commit(&sink->file, err, n);
    if (!good) atomic_file_abort(&sink->file);
    if (sink->lock >= 0) close(sink->lock);
    free(sink->in);
    free(sink->out);
    *sink = (WeightSink){.lock = -1};
    return good;
}
