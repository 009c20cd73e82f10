/* token_file.h -- token shards: 256 int32 of header, then tokens; 64-bit offsets throughout.
 *
 * Two versions are read and written, those of llm.c: {20240520, 1, count} with 16-bit and
 * {20240801, 7, count} with 32-bit tokens. The size of the file must be what the header says,
 * checked once at opening. Tokens are read, not mapped: of a shard that is cut while it is in use a
 * read can say so, where a mapping would end the process by SIGBUS. */
#ifndef DATA_TOKENS_TOKEN_FILE_H
#define DATA_TOKENS_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOKEN_FILE_HEADER = 1024, /* bytes */
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
    int64_t size; /* of the file, when it was opened */
    int width;
    int64_t n_tokens;
} TokenFile;

/* Checks the header of a shard of `file_size` bytes; `header` points to the first min(file_size,
 * 1024) of them. Error messages begin with `name`. */
bool token_file_parse_header(const char *name, const void *header, int64_t file_size,
                             TokenFileHeader *out, char *err, size_t n);
/* Where token `index` begins in a shard of `width` bytes a token, in bytes from its start. */
int64_t token_file_offset(int width, int64_t index);

/* Opens a shard and checks its header and size. Otherwise *f is {0}, which may be closed, too. */
bool token_file_open(TokenFile *f, const char *path, char *err, size_t n);
void token_file_close(TokenFile *f);
/* Copies tokens [first, first + count) to `out`; their ids are not checked. False if the file has
 * been cut since it was opened, or cannot be read. */
bool token_file_read(const TokenFile *f, int64_t first, int64_t count, int32_t *out, char *err,
                     size_t n);

/* What the hash of a run of shards begins with. */
enum { TOKEN_FILE_HASH_START = 1 };
/* Continues *hash by every byte of the file; or, where a file may be too large for that, by its
 * first and last 64 KiB and its size (by all of it when it has fewer than those). False if it
 * cannot be read. */
bool token_file_hash(const TokenFile *f, uint64_t *hash, char *err, size_t n);
bool token_file_hash_ends(const TokenFile *f, uint64_t *hash, char *err, size_t n);

#endif
