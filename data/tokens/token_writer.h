/* token_writer.h -- writes a token shard in the format of token_file.h. */
#ifndef DATA_TOKENS_TOKEN_WRITER_H
#define DATA_TOKENS_TOKEN_WRITER_H

#include "model/core/fs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TokenWriter TokenWriter;

/* Writes a shard under a temporary name; token_writer_commit calls fsync and renames it to `path`.
 * Ids are stored in 16 bits if the vocabulary allows, else in 32. token_writer_commit frees the
 * writer, even if it returns false. If token_writer_add returned false, or if the shard is not
 * wanted, call token_writer_abort instead, which removes the temporary file. */
bool token_writer_open(TokenWriter **w, const FsOps *fs, const char *path, int64_t vocab_size,
                       char *err, size_t n);
bool token_writer_add(TokenWriter *w, const int32_t *ids, int64_t count, char *err, size_t n);
bool token_writer_commit(TokenWriter *w, char *err, size_t n);
void token_writer_abort(TokenWriter *w);

#endif
