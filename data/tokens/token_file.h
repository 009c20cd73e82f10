/* token_file.h -- reads token shards: files with a header of 256 int32 followed by token ids,
 * addressed with 64-bit offsets.
 *
 * Two versions are supported, both from llm.c: {20240520, 1, count} with 16-bit ids and {20240801,
 * 7, count} with 32-bit ids. The size of the file must match the header; this is checked once, on
 * opening. Tokens are read, not mapped: if the file is truncated while in use, a read reports an
 * error, but access to a mapping would end the process with SIGBUS. */
#ifndef DATA_TOKENS_TOKEN_FILE_H
#define DATA_TOKENS_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOKEN_FILE_HEADER = 1024, /* size of the header in bytes */
    TOKEN_FILE_MAGIC_16 = 20240520,
    TOKEN_FILE_MAGIC_32 = 20240801,
};

typedef struct {
    int width; /* bytes per token: 2 or 4 */
    int64_t n_tokens;
} TokenFileHeader;

typedef struct {
    char *path;
    int fd;
    int64_t size; /* size of the file in bytes when it was opened */
    int width;
    int64_t n_tokens;
} TokenFile;

/* Checks the header of a shard of `file_size` bytes; `header` points to the first min(file_size,
 * 1024) of them. Error messages begin with `name`. */
bool token_file_parse_header(const char *name, const void *header, int64_t file_size,
                             TokenFileHeader *out, char *err, size_t n);
/* Returns the byte offset of token `index` in a shard with `width` bytes per token. */
int64_t token_file_offset(int width, int64_t index);

/* Opens a shard and checks its header and size. On failure it returns false and *f is {0}, which
 * may be passed to token_file_close. */
bool token_file_open(TokenFile *f, const char *path, char *err, size_t n);
void token_file_close(TokenFile *f);
/* Copies tokens [first, first + count) to `out` without checking their ids. Returns false if the
 * file was truncated since it was opened, or cannot be read. */
bool token_file_read(const TokenFile *f, int64_t first, int64_t count, int32_t *out, char *err,
                     size_t n);

/* The initial value of a hash over one or more shards. */
enum { TOKEN_FILE_HASH_START = 1 };
/* Continues *hash over every byte of the file. Returns false if the file cannot be read. */
bool token_file_hash(const TokenFile *f, uint64_t *hash, char *err, size_t n);
/* For large files: continues *hash over the first and last 64 KiB and the file's size (over all
 * bytes if there are no more than 128 KiB). Returns false if the file cannot be read. */
bool token_file_hash_ends(const TokenFile *f, uint64_t *hash, char *err, size_t n);

#endif
