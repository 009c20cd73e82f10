/* token_set.h -- several token shards that are read as one sequence of tokens; every id that is
 * read is checked against the vocabulary. */
#ifndef DATA_TOKENS_TOKEN_SET_H
#define DATA_TOKENS_TOKEN_SET_H

#include "data/tokens/token_file.h"
#include "model/core/string_list.h"

/* Shards that are read as one sequence of tokens, in the given order. */
typedef struct {
    TokenFile *file;
    int n_files;
    int64_t *first; /* (n_files + 1) index of each file's first token; first[n_files] = n_tokens */
    int64_t n_tokens;
} TokenSet;

/* Opens every shard; there must be at least one. A set that is {0} can also be closed. */
bool token_set_open(TokenSet *s, const StringList *paths, char *err, size_t n);
void token_set_close(TokenSet *s);
/* Copies tokens [first, first + count) to `out`, across files. Returns false if an id is >=
 * vocab_size (the error message names the file and the byte offset), or if a file has changed since
 * it was opened. */
bool token_set_read(const TokenSet *s, int64_t first, int64_t count, int64_t vocab_size,
                    int32_t *out, char *err, size_t n);

#endif
