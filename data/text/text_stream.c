/* text_stream.c -- reads files and standard input, and decompresses them; see text_stream.h. */
#include "data/text/text_stream.h"

#include "data/text/unpack.h"
#include "model/core/check.h"
#include "model/core/fs.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAM_PIECE = 1 << 18 };

struct TextStream {
    int fd;
    bool standard; /* standard input, which is not closed */
    const char *name;
    Unpacker *unpacker; /* NULL: the bytes are the text */
    bool begun;         /* decompressed bytes have been read */
    bool ended;         /* the end of the file has been read */
    int64_t at, size;   /* piece[at .. size) has not been used yet */
    uint8_t piece[STREAM_PIECE];
};

/* Fills the piece from the file, until it is full or the file ends. */
static bool fill(TextStream *s, char *err, size_t n)
{
    s->at = s->size = 0;
    while (s->size < STREAM_PIECE && !s->ended) {
        ssize_t got = read(s->fd, s->piece + s->size, (size_t)(STREAM_PIECE - s->size));
        if (got > 0)
            s->size += got;
        else if (got == 0)
            s->ended = true;
        else if (errno == EAGAIN) /* standard input may be non-blocking */
            poll(&(struct pollfd){.fd = s->fd, .events = POLLIN}, 1, -1);
        else if (errno != EINTR)
            return error_set(err, n, "%s cannot be read: %s", s->name, strerror(errno));
    }
    return true;
}

/* Opens the file descriptor. */
static bool open_file(TextStream *s, const char *path, char *err, size_t n)
{
    int64_t bytes;
    const char *why = "";
    s->standard = strcmp(path, "-") == 0;
    s->name = s->standard ? STANDARD_INPUT : path;
    s->fd = s->standard ? STDIN_FILENO : fs_open_input(path, false, &bytes, &why);
    if (s->fd < 0) return error_set(err, n, "%s cannot be opened: %s", path, why);
    if (s->standard && isatty(s->fd))
        return error_set(err, n,
                         "data.text is \"-\", and " STANDARD_INPUT
                         " is a terminal: pipe the text into the command");
    return true;
}

TextStream *text_stream_open(const char *path, bool *missing, char *err, size_t n)
{
    TextStream *s = must_alloc(sizeof *s);
    *s = (TextStream){.fd = -1};
    *missing = true;
    if (open_file(s, path, err, n)) {
        *missing = false;
        Packed kind = PACKED_NOT;
        bool good = fill(s, err, n);
        if (good) kind = unpack_kind(s->piece, s->size);
        if (kind != PACKED_NOT) {
            s->unpacker = unpacker_open(kind, s->name, NULL, err, n);
            *missing = s->unpacker == NULL;
            good = !*missing;
        }
        if (good && (kind != PACKED_NOT || unpack_may_be_text(s->name, s->piece, s->size, err, n)))
            return s;
    }
    text_stream_close(s);
    return NULL;
}

/* Returns whether the first decompressed bytes may be text; sets `err` if not. */
static bool check_unpacked(TextStream *s, const uint8_t *bytes, int64_t size, char *err, size_t n)
{
    if (s->begun || size <= 0) return true;
    s->begun = true;
    char *name = text_format("%s, unpacked,", s->name);
    bool good = unpack_may_be_text(name, bytes, size, err, n);
    free(name);
    return good;
}

int64_t text_stream_read(TextStream *s, void *to, int64_t room, char *err, size_t n)
{
    int64_t got = 0;
    while (got == 0) {
        if (s->at == s->size && !s->ended && !fill(s, err, n)) return -1;
        if (s->at == s->size && s->unpacker == NULL) return 0;
        if (s->unpacker == NULL) {
            got = s->size - s->at < room ? s->size - s->at : room;
            memcpy(to, s->piece + s->at, (size_t)got);
            s->at += got;
            return got;
        }
        bool last = s->at == s->size;
        got = unpacker_run(s->unpacker, s->piece, s->size, &s->at, to, room, err, n);
        if (!check_unpacked(s, to, got, err, n)) return -1;
        if (got == 0 && last && !unpacker_complete(s->unpacker)) {
            error_set(err, n, "%s ends within its compressed data, so a part of it is missing",
                      s->name);
            return -1;
        }
        if (got == 0 && last) return 0;
    }
    return got;
}

void text_stream_close(TextStream *s)
{
    if (s->fd >= 0 && !s->standard) close(s->fd);
    unpacker_close(s->unpacker);
    free(s);
}
