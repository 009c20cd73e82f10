/* unpack.h -- unpacks gzip and zstd, with zlib and libzstd, which are opened at run time if they
 * are installed. Also names other kinds of files that are not text. */
#ifndef DATA_TEXT_UNPACK_H
#define DATA_TEXT_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD } Packed;

/* Returns how a file that begins with these bytes is packed. */
Packed unpack_kind(const uint8_t *head, int64_t size);
/* Returns whether a file that begins with these bytes may be text in UTF-8. If it is known to be
 * something else, such as UTF-16 or an archive, sets `err` to what the file `name` is and what to
 * do. Bytes of no known kind are left to the check of each byte. */
bool unpack_may_be_text(const char *name, const uint8_t *head, int64_t size, char *err, size_t n);

/* The library that unpacks a kind of file, with the Debian package that has it. */
typedef struct {
    const char *name, *package; /* "libz.so.1", "zlib1g" */
} UnpackLibrary;
UnpackLibrary unpack_library(Packed kind);

typedef struct Unpacker Unpacker;

/* Opens the library `library`; NULL: the one of this kind that the system has. Returns NULL, with
 * `err` set to what the file `name` is and how to install the library, if there is none. */
Unpacker *unpacker_open(Packed kind, const char *name, const char *library, char *err, size_t n);
/* Unpacks from in[*at .. size) into out[0 .. room), and moves *at behind what it has read. Returns
 * how many bytes it has written; fewer than `room` if all input is used up. Returns -1 and sets
 * `err` if the data are damaged. */
int64_t unpacker_run(Unpacker *u, const uint8_t *in, int64_t size, int64_t *at, uint8_t *out,
                     int64_t room, char *err, size_t n);
/* Returns whether the input so far is complete: not cut inside packed data. */
bool unpacker_complete(const Unpacker *u);
void unpacker_close(Unpacker *u);

#endif
