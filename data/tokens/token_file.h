/* token_file.h -- token shards: 256 int32 of header, then tokens; 64-bit offsets throughout.
 *
 * Two versions are read and written, those of llm.c: {20240520, 1, count} with 16-bit and
 * {20240801, 7, count} with 32-bit tokens. The size of the file must be what the header says,
 * checked once at opening. Tokens are read, not mapped: of a shard that is cut while it is in use a
 * read can say so, where a mapping would end the process by SIGBUS. Token ids are checked against
 * the vocabulary whenever they are read, so a bad id is reported by the batch that meets it. */
#ifndef DATA_TOKENS_TOKEN_FILE_H
#define DATA_TOKENS_TOKEN_FILE_H

#include "configs/config.h"

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

/* Shards that are read as one run of tokens, in the order given. */
typedef struct {
    TokenFile *file;
    int n_files;
    int64_t *first; /* (n_files + 1) index of each file's first token; first[n_files] = n_tokens */
    int64_t n_tokens;
} TokenSet;

typedef struct TokenWriter TokenWriter;

/* Checks the first bytes of a file of `file_size` bytes; `header` has min(file_size, 1024) of them.
 */
bool token_header_parse(const char *name, const void *header, int64_t file_size,
                        TokenFileHeader *out, char *err, size_t n);
/* Offset in bytes of token `index` in a shard. */
int64_t token_offset(int width, int64_t index);

bool token_file_open(TokenFile *f, const char *path, char *err, size_t n);
/* Closing a file of {0} does nothing. */
void token_file_close(TokenFile *f);
/* Continues *hash by every byte of the file; or by the first and last 64 KiB and the size, if that
 * is less. False if it cannot be read. */
bool token_file_hash(const TokenFile *f, uint64_t *hash, char *err, size_t n);
bool token_file_hash_ends(const TokenFile *f, uint64_t *hash, char *err, size_t n);

/* Opens every shard; at least one is needed. A set of {0} may be closed. */
bool token_set_open(TokenSet *s, const StringList *paths, char *err, size_t n);
void token_set_close(TokenSet *s);
/* Copies tokens [first, first + count) to `out`, across files. False if one is >= vocab_size or if
 * a file is not what it was when it was opened: the sentence names the file and the offset in
 * bytes.
 */
bool token_set_read(const TokenSet *s, int64_t first, int64_t count, int64_t vocab_size,
                    int32_t *out, char *err, size_t n);
/* Reads every token of every file once. */
bool token_set_check(const TokenSet *s, int64_t vocab_size, char *err, size_t n);

/* Writes a shard under a temporary name; commit fsyncs it and renames it to `path`. 16-bit tokens
 * where the vocabulary allows, else 32-bit. After a false, and instead of a commit, call abort: it
 * removes what was written. */
bool token_writer_open(TokenWriter **w, const char *path, int64_t vocab_size, char *err, size_t n);
bool token_writer_add(TokenWriter *w, const int32_t *ids, int64_t count, char *err, size_t n);
bool token_writer_commit(TokenWriter *w, char *err, size_t n);
void token_writer_abort(TokenWriter *w);

#endif
