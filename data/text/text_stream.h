/* text_stream.h -- reads the bytes of a text file or of standard input piece by piece, and
 * decompresses them if necessary. */
#ifndef DATA_TEXT_TEXT_STREAM_H
#define DATA_TEXT_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TextStream TextStream;

/* The name of standard input in error messages; in a config it is "-". */
#define STANDARD_INPUT "standard input"

/* Opens `path`; "-" is standard input, which must not be a terminal. Returns NULL and sets `err` if
 * it cannot be opened, or if the library that decompresses it is missing; in both cases *missing is
 * true. Also returns NULL if the first bytes show that it is not text. */
TextStream *text_stream_open(const char *path, bool *missing, char *err, size_t n);
/* Reads up to `room` bytes. Returns 0 at the end; -1, with `err` set, on failure. */
int64_t text_stream_read(TextStream *s, void *to, int64_t room, char *err, size_t n);
void text_stream_close(TextStream *s);

#endif
