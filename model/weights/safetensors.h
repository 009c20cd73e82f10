/* safetensors.h -- the header of a safetensors file: written, and read strictly.
 *
 * File: u64 little-endian N, N bytes of JSON {name: {"dtype", "shape", "data_offsets": [begin,
 * end]}, ...}, then the data. The reader takes nothing on trust: sizes are multiplied with overflow
 * checks, names come from a fixed pattern, and the tensors must cover the data exactly, without
 * hole, overlap or duplicate. */
#ifndef MODEL_WEIGHTS_SAFETENSORS_H
#define MODEL_WEIGHTS_SAFETENSORS_H

#include "model/core/dtype.h"
#include "model/core/json_cursor.h"

#include <stdio.h>

#define SAFETENSORS_MAX_HEADER ((int64_t)64 << 20) /* bytes */
#define SAFETENSORS_MAX_NAME   255

typedef struct {
    char *name; /* [A-Za-z0-9._-]+ */
    DType dtype;
    int ndim; /* 0 ... 4; 0 is one element */
    int64_t dim[4];
    int64_t offset, bytes; /* from the start of the data */
} SafetensorsEntry;

typedef struct {
    SafetensorsEntry *entry; /* in the order of the file's data */
    int n;
    char *metadata; /* pairs of key and value, each ended by a NUL byte */
    size_t metadata_bytes;
    int64_t data_at;    /* where the data begin, in bytes from the start of the file */
    int64_t data_bytes; /* how many there are */
} Safetensors;

/* Whether `name` may name a tensor: 1 to SAFETENSORS_MAX_NAME characters out of [A-Za-z0-9._-]. */
bool safetensors_name_valid(const char *name);
/* Prints "[2, 3]" with this comma: ", " for people, "," where bytes count. */
void safetensors_print_shape(FILE *to, const SafetensorsEntry *e, const char *comma);
/* Reads "[2, 3]" into e->ndim and e->dim. No dimension may be below `least`, which is 0 or 1, and
 * e->ndim is 0 before. Otherwise false, and the cursor has the sentence. */
bool safetensors_parse_shape(JsonCursor *j, int64_t least, SafetensorsEntry *e);
/* Bytes of a tensor of this shape; false on overflow or a negative dimension. */
bool safetensors_size(DType dtype, int ndim, const int64_t *dim, int64_t *bytes);
/* Lays the tensors out: wider types first (so that every one is aligned), otherwise in the given
 * order; sorts the entries so and sets their offsets. Then returns the file's bytes up to the data
 * (the caller frees), with their count in *bytes. `metadata` holds 2 x n_metadata strings: key,
 * value, ... */
char *safetensors_header(SafetensorsEntry *entry, int n, const char *const *metadata,
                         int n_metadata, size_t *bytes);

/* Reads the bytes before the data, `header[0..n)`, of a file of file_bytes bytes. False with a
 * sentence; then nothing is held. Otherwise safetensors_free is due. */
bool safetensors_parse(Safetensors *out, const void *header, size_t n, int64_t file_bytes,
                       char *err, size_t err_n);
/* The same from an open file; `path` is for messages. *header_crc is the CRC32C of the bytes before
 * the data. */
bool safetensors_read(Safetensors *out, int fd, int64_t file_bytes, const char *path,
                      uint32_t *header_crc, char *err, size_t n);
void safetensors_free(Safetensors *s);
/* The metadata's value of `key`, or NULL. */
const char *safetensors_metadata(const Safetensors *s, const char *key);

#endif
