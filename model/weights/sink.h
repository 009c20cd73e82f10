/* sink.h -- WeightSink: writes weights of a source to a file of another program, in windows (groups
 * of rows) of a few MiB, converted to another type on the way. The file is replaced atomically: its
 * path does not change until sink_close. */
#ifndef MODEL_WEIGHTS_SINK_H
#define MODEL_WEIGHTS_SINK_H

#include "model/core/files.h"
#include "model/weights/source.h"

typedef struct {
    AtomicFile file;
    int lock;          /* lock on the temporary file (temporary.h); -1: none */
    int64_t written;   /* bytes written so far */
    int64_t overflows; /* finite weights that became infinite */
    void *in, *out;    /* a window before and after the conversion */
    size_t in_bytes, out_bytes;
} WeightSink;

/* Begins the file `path`, which will have `bytes` bytes, after removing temporary files that killed
 * processes left next to it. Returns false and sets `err` if the disk has less room, or if the file
 * cannot be created; nothing needs to be released then. */
bool sink_open(WeightSink *sink, const FsOps *fs, const char *path, int64_t bytes, char *err,
               size_t n);
bool sink_write(WeightSink *sink, const void *data, size_t bytes, char *err, size_t n);
bool sink_zeros(WeightSink *sink, int64_t bytes, char *err, size_t n);
/* Writes a whole tensor of the source as type `to`, rows in order. If `head` is not 0, it is the
 * number of rows per head, and the two halves of each head are interleaved: row s * head/2 + i (s =
 * 0, 1) becomes row 2 i + s. The reason: RoPE pairs rows of the two halves here, but adjacent rows
 * in other programs. */
bool sink_tensor(WeightSink *sink, WeightSource *source, int index, DType to, int64_t head,
                 char *err, size_t n);
/* Ends the file: if `good`, syncs and renames it; otherwise removes it. Returns whether the file
 * now exists; `err` is only set if `good`. */
bool sink_close(WeightSink *sink, bool good, char *err, size_t n);

#endif
