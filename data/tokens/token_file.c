/* token_file.c -- reads token shards and checks their headers; see token_file.h. */
#include "data/tokens/token_file.h"

#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t token_file_offset(int width, int64_t index)
{
    return TOKEN_FILE_HEADER + index * (int64_t)width;
}

bool token_file_parse_header(const char *name, const void *header, int64_t file_size,
                             TokenFileHeader *out, char *err, size_t n)
{
    int32_t word[3];
    if (file_size < TOKEN_FILE_HEADER)
        return error_set(err, n, "%s has %lld bytes, fewer than the %d of a token shard's header",
                         name, (long long)file_size, (int)TOKEN_FILE_HEADER);
    memcpy(word, header, sizeof word);
    if (word[0] != TOKEN_FILE_MAGIC_16 && word[0] != TOKEN_FILE_MAGIC_32)
        return error_set(err, n, "%s is not a token shard: it begins with %d, not %d or %d", name,
                         word[0], (int)TOKEN_FILE_MAGIC_16, (int)TOKEN_FILE_MAGIC_32);
    bool wide = word[0] == TOKEN_FILE_MAGIC_32;
    int32_t version = wide ? 7 : 1;
    if (word[1] != version)
        return error_set(err, n, "%s is a token shard of version %d; version %d is understood",
                         name, word[1], version);
    int width = wide ? 4 : 2;
    int64_t expected = token_file_offset(width, word[2]);
    if (word[2] < 0 || expected != file_size)
        return error_set(err, n,
                         "%s is damaged: its header promises %d tokens, that is %lld bytes, but it "
                         "has %lld",
                         name, word[2], (long long)expected, (long long)file_size);
    *out = (TokenFileHeader){.width = width, .n_tokens = word[2]};
    return true;
}

/* Opens a shard for reading. All shards stay open, which may be more files than the soft limit
 * allows. In that case, raises the soft limit to the hard limit, which needs no privilege. */
static int open_shard(const char *path, int64_t *size, const char **why)
{
    struct rlimit limit;
    int fd = fs_open_input(path, false, size, why);
    if (fd >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return fs_open_input(path, false, size, why);
}

bool token_file_open(TokenFile *f, const char *path, char *err, size_t n)
{
    int64_t size;
    const char *why;
    TokenFileHeader header;
    uint8_t bytes[TOKEN_FILE_HEADER] = {0};
    *f = (TokenFile){0};
    int fd = open_shard(path, &size, &why);
    if (fd < 0) return error_set(err, n, "%s cannot be opened: %s", path, why);
    ssize_t got = pread(fd, bytes, sizeof bytes, 0);
    if (!token_file_parse_header(path, bytes, got < 0 ? 0 : size, &header, err, n)) {
        close(fd);
        return false;
    }
    *f = (TokenFile){.path = must_strdup(path),
                     .fd = fd,
                     .size = size,
                     .width = header.width,
                     .n_tokens = header.n_tokens};
    return true;
}

void token_file_close(TokenFile *f)
{
    if (f->path) close(f->fd);
    free(f->path);
    *f = (TokenFile){0};
}

/* Reads bytes of an open shard. The file's size matched its header when it was opened. So if bytes
 * are missing now, the file was truncated later, and the error message says this instead of "end of
 * file". */
static bool read_bytes(const TokenFile *f, void *out, int64_t bytes, int64_t offset, char *err,
                       size_t n)
{
    struct stat st;
    if (fs_read_at(f->fd, out, (size_t)bytes, offset, f->path, err, n)) return true;
    if (fstat(f->fd, &st) == 0 && st.st_size < f->size)
        error_set(
            err, n,
            "%s has been cut since it was opened: it had %lld bytes and has %lld; put it back "
            "as it was and start again",
            f->path, (long long)f->size, (long long)st.st_size);
    return false;
}

bool token_file_hash(const TokenFile *f, uint64_t *hash, char *err, size_t n)
{
    /* Bytes per read; a multiple of 8, because hash_words processes 8 bytes at a time. */
    enum { PIECE = 1 << 20 };
    uint8_t *piece = must_alloc(PIECE);
    int64_t at = 0;
    bool good = true;
    for (; good && f->size - at > PIECE; at += PIECE) {
        good = read_bytes(f, piece, PIECE, at, err, n);
        if (good) *hash = hash_words(*hash, piece, PIECE);
    }
    good = good && read_bytes(f, piece, f->size - at, at, err, n);
    if (good) *hash = hash_tail(*hash, piece, f->size - at, f->size);
    free(piece);
    return good;
}

bool token_file_hash_ends(const TokenFile *f, uint64_t *hash, char *err, size_t n)
{
    enum { END = 64 << 10 };
    uint8_t end[END];
    if (f->size <= 2 * END) return token_file_hash(f, hash, err, n);
    for (int last = 0; last < 2; last++) {
        if (!read_bytes(f, end, END, last ? f->size - END : 0, err, n)) return false;
        *hash = hash_bytes(*hash, end, END);
    }
    *hash = hash_mix(*hash, (uint64_t)f->size);
    return true;
}

/* Widens 16-bit ids to 32 bits in place: they are stored in the second half of `out`'s own bytes,
 * so no buffer is needed. Going forward, writing id i ends at byte 4 i + 4, and the next id to be
 * read begins at byte 2 count + 2 (i + 1), which is never lower. */
static void widen(int32_t *out, int64_t count)
{
    const uint8_t *from = (const uint8_t *)out + 2 * count;
    for (int64_t i = 0; i < count; i++) {
        uint16_t id;
        memcpy(&id, from + 2 * i, sizeof id);
        out[i] = id;
    }
}

bool token_file_read(const TokenFile *f, int64_t first, int64_t count, int32_t *out, char *err,
                     size_t n)
{
    uint8_t *to = (uint8_t *)out + (f->width == 2 ? 2 * count : 0);
    if (!read_bytes(f, to, count * f->width, token_file_offset(f->width, first), err, n))
        return false;
    if (f->width == 2) widen(out, count);
    return true;
}
