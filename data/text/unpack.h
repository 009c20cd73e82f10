/* unpack.h -- decompresses gzip and zstd, with zlib and libzstd, which are opened at run time if
 * they are installed. Also recognizes other kinds of files that are not text. */
#ifndef DATA_TEXT_UNPACK_H
#define DATA_TEXT_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD } Packed;

/* Returns how a file that begins with these bytes is compressed. */
Packed unpack_kind(const uint8_t *head, int64_t size);
/* Returns whether a file that begins with these bytes may be UTF-8 text. If it is of a known other
 * kind, such as UTF-16 or an archive, sets `err` to what the file `name` is and what to do. For
 * unknown kinds it returns true; their bytes are checked later. */
bool unpack_may_be_text(const char *name, const uint8_t *head, int64_t size, char *err, size_t n);

/* The library that decompresses a kind of file, and the Debian package that contains it. */
typedef struct {
    const char *name, *package; /* "libz.so.1", "zlib1g" */
} UnpackLibrary;
UnpackLibrary unpack_library(Packed kind);

typedef struct Unpacker Unpacker;

/* Opens the library `library`; NULL: the system's library for this kind. If there is none, returns
 * NULL and sets `err` to what the file `name` is and how to install the library. */
Unpacker *unpacker_open(Packed kind, const char *name, const char *library, char *err, size_t n);
/* Decompresses from in[*at .. size) into out[0 .. room), and advances *at by the number of bytes
 * read. Returns the number of bytes written, which is less than `room` if all input has been read.
 * Returns -1 and sets `err` if the data are damaged. */
int64_t unpacker_run(Unpacker *u, const uint8_t *in, int64_t size, int64_t *at, uint8_t *out,
                     int64_t room, char *err, size_t n);
/* Returns whether the input so far is complete: it does not end inside compressed data. */
bool unpacker_complete(const Unpacker *u);
void unpacker_close(Unpacker *u);

#endif
