/* token_writer.h -- writing a token shard, in the format of token_file.h. */
#ifndef DATA_TOKENS_TOKEN_WRITER_H
#define DATA_TOKENS_TOKEN_WRITER_H

#include "model/core/fs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TokenWriter TokenWriter;

/* Writes a shard under a temporary name; commit fsyncs it and renames it to `path`. 16-bit tokens
 * where the vocabulary allows, else 32-bit. After a false, and instead of a commit, call abort: it
 * removes what was written. */
bool token_writer_open(TokenWriter **w, const FsOps *fs, const char *path, int64_t vocab_size,
                       char *err, size_t n);
bool token_writer_add(TokenWriter *w, const int32_t *ids, int64_t count, char *err, size_t n);
bool token_writer_commit(TokenWriter *w, char *err, size_t n);
void token_writer_abort(TokenWriter *w);

#endif
