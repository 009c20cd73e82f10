/* safetensors.h -- writes and strictly parses the header of a safetensors file.
 *
 * A file consists of a little-endian u64 N, N bytes of JSON {name: {"dtype", "shape",
 * "data_offsets": [begin, end]}, ...}, and the data. The parser trusts nothing: it checks sizes for
 * overflow, allows only certain characters in names, and requires that the tensors cover the data
 * exactly, without holes, overlaps or duplicates. */
#ifndef MODEL_WEIGHTS_SAFETENSORS_H
#define MODEL_WEIGHTS_SAFETENSORS_H

#include "model/core/dtype.h"
#include "model/core/json_cursor.h"

#include <stdio.h>

#define SAFETENSORS_MAX_HEADER ((int64_t)64 << 20) /* largest header that is read, in bytes */
#define SAFETENSORS_MAX_NAME   255

typedef struct {
    char *name; /* matches [A-Za-z0-9._-]+ */
    DType dtype;
    int ndim; /* 0 to 4; a tensor with 0 dimensions has one element */
    int64_t dim[4];
    int64_t offset, bytes; /* position from the start of the data, and size */
} SafetensorsEntry;

typedef struct {
    SafetensorsEntry *entry; /* in the order of the data in the file */
    int n;
    char *metadata; /* pairs of key and value, each ended by a NUL byte */
    size_t metadata_bytes;
    int64_t data_at;    /* start of the data, in bytes from the start of the file */
    int64_t data_bytes; /* size of the data */
} Safetensors;

/* Returns whether `name` is a valid tensor name: 1 to SAFETENSORS_MAX_NAME characters out of
 * [A-Za-z0-9._-]. */
bool safetensors_name_valid(const char *name);
/* Prints the shape, such as "[2, 3]", with `comma` as the separator: ", " for people, "," in
 * files. */
void safetensors_print_shape(FILE *to, int ndim, const int64_t *dim, const char *comma);
/* Parses a shape such as "[2, 3]" into e->ndim and e->dim; e->ndim must be 0 before the call. Each
 * dimension must be at least `least`, which is 0 or 1. Returns false and records the error in the
 * cursor if the shape is invalid. */
bool safetensors_parse_shape(JsonCursor *j, int64_t least, SafetensorsEntry *e);
/* Computes the bytes of a tensor of this shape. Returns false on overflow or a negative
 * dimension. */
bool safetensors_size(DType dtype, int ndim, const int64_t *dim, int64_t *bytes);
/* Lays out a file: sorts the entries so that wider types come first (which aligns every tensor) and
 * otherwise keep their order, and sets their offsets. Returns the part of the file before the data,
 * and sets *bytes to its size; the caller frees it. `metadata` has 2 x n_metadata strings: key,
 * value, ... */
char *safetensors_header(SafetensorsEntry *entry, int n, const char *const *metadata,
                         int n_metadata, size_t *bytes);

/* Parses `header[0..n)`, the part before the data, of a file of file_bytes bytes. If it returns
 * true, the caller must call safetensors_free. Returns false and sets err on failure; nothing needs
 * to be freed then. */
bool safetensors_parse(Safetensors *out, const void *header, size_t n, int64_t file_bytes,
                       char *err, size_t err_n);
/* Reads and parses the header of an open file; `path` is only used in error messages. Sets
 * *header_crc to the CRC32C of the part before the data. */
bool safetensors_read(Safetensors *out, int fd, int64_t file_bytes, const char *path,
                      uint32_t *header_crc, char *err, size_t n);
void safetensors_free(Safetensors *s);
/* Returns the metadata value of `key`, or NULL. */
const char *safetensors_metadata(const Safetensors *s, const char *key);

#endif
