/* unpack.c -- calls zlib and libzstd, and knows the first bytes of common files; see unpack.h.
 *
 * The libraries' headers are not needed to build: the few functions and structs below are part of
 * their stable interfaces. */
#include "data/text/unpack.h"

#include "model/core/check.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- kinds of files -------------------------------------------------------------------------- */

#define MAGIC(bytes) .magic = (bytes), .size = sizeof(bytes) - 1

static const struct {
    const char *magic;
    int size;
    const char *what, *remedy;
} known[] = {
    {MAGIC("\xFD"
           "7zXZ"),
     "an xz archive", "unpack it first: xz -d"},
    {MAGIC("BZh"), "a bzip2 archive", "unpack it first: bzip2 -d"},
    {MAGIC("PK\x03\x04"), "a zip archive", "unpack it first: unzip"},
    {MAGIC("7z\xBC\xAF\x27\x1C"), "a 7z archive", "unpack it first: 7z x"},
    {MAGIC("%PDF-"), "a PDF", "convert it to text first: pdftotext"},
    {MAGIC("PAR1"), "a Parquet file", "write its text as JSON lines first"},
};

static bool begins(const uint8_t *head, int64_t size, const char *magic, int length)
{
    return size >= length && memcmp(head, magic, (size_t)length) == 0;
}

Packed unpack_kind(const uint8_t *head, int64_t size)
{
    if (begins(head, size, "\x1F\x8B", 2)) return PACKED_GZIP;
    return begins(head, size, "\x28\xB5\x2F\xFD", 4) ? PACKED_ZSTD : PACKED_NOT;
}

/* Returns iconv's name of a 16- or 32-bit encoding. It is recognized by the byte-order mark or,
 * without one, by nearly every other byte being zero, as in western text. NULL: probably another
 * encoding. */
static const char *wide_encoding(const uint8_t *head, int64_t size)
{
    int64_t zeros[2] = {0}, most = size < 512 ? size / 2 * 2 : 512;
    if (begins(head, size, "\xFF\xFE\0\0", 4) || begins(head, size, "\0\0\xFE\xFF", 4))
        return "utf-32";
    if (begins(head, size, "\xFF\xFE", 2) || begins(head, size, "\xFE\xFF", 2)) return "utf-16";
    for (int64_t i = 0; i < most; i++)
        zeros[i % 2] += head[i] == 0;
    if (most < 4) return NULL;
    if (zeros[0] == 0 && 10 * zeros[1] >= 9 * (most / 2)) return "utf-16le";
    return zeros[1] == 0 && 10 * zeros[0] >= 9 * (most / 2) ? "utf-16be" : NULL;
}

bool unpack_may_be_text(const char *name, const uint8_t *head, int64_t size, char *err, size_t n)
{
    const char *wide = wide_encoding(head, size);
    if (wide)
        return error_set(err, n, "%s is %s, not UTF-8; convert it: iconv -f %s -t utf-8", name,
                         wide[4] == '3' ? "UTF-32" : "UTF-16", wide);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (begins(head, size, known[i].magic, known[i].size))
            return error_set(err, n, "%s is %s, not text; %s", name, known[i].what,
                             known[i].remedy);
    return true;
}

/* ---- the libraries' interfaces --------------------------------------------------------------- */

/* zlib's z_stream. */
typedef struct {
    const uint8_t *next_in;
    unsigned int avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned int avail_out;
    unsigned long total_out;
    const char *message;
    void *state, *allocate, *release, *opaque;
    int data_type;
    unsigned long adler, reserved;
} ZlibStream;

enum { ZLIB_OK = 0, ZLIB_STREAM_END = 1, ZLIB_BUF_ERROR = -5, ZLIB_GZIP_ONLY = 15 + 16 };

/* libzstd's ZSTD_inBuffer and ZSTD_outBuffer. */
typedef struct {
    const void *bytes;
    size_t size, at;
} ZstdInput;
typedef struct {
    void *bytes;
    size_t size, at;
} ZstdOutput;

static const struct {
    const char *what, *tool;
    UnpackLibrary library;
} kinds[] = {
    [PACKED_GZIP] = {"gzip", "gunzip", {"libz.so.1", "zlib1g"}},
    [PACKED_ZSTD] = {"zstd", "unzstd", {"libzstd.so.1", "libzstd1"}},
};

UnpackLibrary unpack_library(Packed kind)
{
    return kinds[kind].library;
}

struct Unpacker {
    Packed kind;
    char *name; /* the file's name, for messages */
    void *library;
    bool complete;
    /* gzip */
    bool padding; /* zeros follow the last member */
    ZlibStream zlib;
    int (*inflate)(ZlibStream *, int);
    int (*inflate_reset)(ZlibStream *);
    int (*inflate_end)(ZlibStream *);
    /* zstd */
    void *zstd;
    size_t (*decompress)(void *, ZstdOutput *, ZstdInput *);
    unsigned int (*is_error)(size_t);
    const char *(*error_name)(size_t);
    size_t (*release)(void *);
};

/* Looks up a function. The caller chooses the pointer's type. */
#define FIND(u, pointer, name) (*(void **)&(u)->pointer = dlsym((u)->library, name)) != NULL

static bool start_gzip(Unpacker *u)
{
    int (*start)(ZlibStream *, int, const char *, int);
    const char *(*version)(void);
    *(void **)&start = dlsym(u->library, "inflateInit2_");
    *(void **)&version = dlsym(u->library, "zlibVersion");
    return FIND(u, inflate, "inflate") && FIND(u, inflate_reset, "inflateReset") &&
           FIND(u, inflate_end, "inflateEnd") && start != NULL && version != NULL &&
           start(&u->zlib, ZLIB_GZIP_ONLY, version(), (int)sizeof u->zlib) == ZLIB_OK;
}

static bool start_zstd(Unpacker *u)
{
    void *(*create)(void);
    *(void **)&create = dlsym(u->library, "ZSTD_createDStream");
    if (FIND(u, decompress, "ZSTD_decompressStream") && FIND(u, is_error, "ZSTD_isError") &&
        FIND(u, error_name, "ZSTD_getErrorName") && FIND(u, release, "ZSTD_freeDStream") &&
        create != NULL)
        u->zstd = create();
    return u->zstd != NULL;
}

Unpacker *unpacker_open(Packed kind, const char *name, const char *library, char *err, size_t n)
{
    if (library == NULL) library = kinds[kind].library.name;
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (opened == NULL) {
        error_set(err, n,
                  "%s is compressed with %s, and %s is not installed: apt-get install %s, or "
                  "unpack it first: %s",
                  name, kinds[kind].what, library, kinds[kind].library.package, kinds[kind].tool);
        return NULL;
    }
    Unpacker *u = must_calloc(1, sizeof *u);
    *u = (Unpacker){.kind = kind, .name = must_strdup(name), .library = opened};
    if (kind == PACKED_GZIP ? start_gzip(u) : start_zstd(u)) return u;
    error_set(err, n, "%s is compressed with %s, and %s does not work: unpack it first: %s", name,
              kinds[kind].what, library, kinds[kind].tool);
    u->inflate_end = NULL; /* inflate was not started, so unpacker_close must not end it */
    unpacker_close(u);
    return NULL;
}

void unpacker_close(Unpacker *u)
{
    if (u == NULL) return;
    if (u->inflate_end) u->inflate_end(&u->zlib);
    if (u->zstd) u->release(u->zstd);
    dlclose(u->library);
    free(u->name);
    free(u);
}

bool unpacker_complete(const Unpacker *u)
{
    return u->complete;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static bool refuse_damage(const Unpacker *u, const char *why, char *err, size_t n)
{
    return error_set(err, n, "%s: its %s data are damaged (%s)", u->name, kinds[u->kind].what,
                     why ? why : "no reason given");
}

/* Skips zeros after a complete member: tapes and some tools fill up files with them, and gunzip
 * ignores them. Returns false if something else follows the zeros. */
static bool skip_padding(Unpacker *u)
{
    ZlibStream *z = &u->zlib;
    if (u->complete && z->avail_in > 0 && *z->next_in == 0) u->padding = true;
    for (; u->padding && z->avail_in > 0 && *z->next_in == 0; z->avail_in--)
        z->next_in++;
    return !u->padding || z->avail_in == 0;
}

/* Returns the bytes written, or -1. A gzip file may consist of several members. */
static int64_t run_gzip(Unpacker *u, const uint8_t *in, int64_t size, int64_t *at, uint8_t *out,
                        int64_t room, char *err, size_t n)
{
    ZlibStream *z = &u->zlib;
    z->next_in = in + *at;
    z->avail_in = (unsigned int)(size - *at);
    z->next_out = out;
    z->avail_out = (unsigned int)room;
    int code = ZLIB_OK;
    while (z->avail_out > 0 && z->avail_in > 0 && code == ZLIB_OK) {
        if (!skip_padding(u)) {
            refuse_damage(u, "other bytes follow the zeros after its end", err, n);
            return -1;
        }
        if (z->avail_in == 0) break;
        code = u->inflate(z, 0);
        u->complete = code == ZLIB_STREAM_END;
        if (u->complete) code = u->inflate_reset(z);
    }
    /* Output that inflate still holds is returned without further input. */
    if (z->avail_in == 0 && z->avail_out > 0 && code == ZLIB_OK && !u->complete) {
        code = u->inflate(z, 0);
        u->complete = code == ZLIB_STREAM_END;
        if (u->complete) code = u->inflate_reset(z);
    }
    *at = size - z->avail_in;
    if (code == ZLIB_OK || code == ZLIB_BUF_ERROR) return room - z->avail_out;
    refuse_damage(u, z->message, err, n);
    return -1;
}

static int64_t run_zstd(Unpacker *u, const uint8_t *in, int64_t size, int64_t *at, uint8_t *out,
                        int64_t room, char *err, size_t n)
{
    ZstdInput input = {.bytes = in, .size = (size_t)size, .at = (size_t)*at};
    ZstdOutput output = {.bytes = out, .size = (size_t)room};
    /* After the end of a frame, call only with input, because a call begins the next frame. */
    bool more = *at < size || !u->complete;
    while (more) {
        size_t before = output.at, code = u->decompress(u->zstd, &output, &input);
        if (u->is_error(code)) {
            refuse_damage(u, u->error_name(code), err, n);
            return -1;
        }
        u->complete = code == 0;
        more =
            output.at < output.size && (input.at < input.size || (code != 0 && output.at > before));
    }
    *at = (int64_t)input.at;
    return (int64_t)output.at;
}

int64_t unpacker_run(Unpacker *u, const uint8_t *in, int64_t size, int64_t *at, uint8_t *out,
                     int64_t room, char *err, size_t n)
{
    CHECK(size <= INT_MAX && room <= INT_MAX, "%lld, %lld", (long long)size, (long long)room);
    return u->kind == PACKED_GZIP ? run_gzip(u, in, size, at, out, room, err, n)
                                  : run_zstd(u, in, size, at, out, room, err, n);
}
