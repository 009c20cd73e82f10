/* meta.h -- meta.json of a folder of prepared tokens: what it was made from, what it holds, and
 * checksums of its shards. Part of preparing text: shards that others made have no such file. */
#ifndef DATA_TEXT_META_H
#define DATA_TEXT_META_H

#include "data/tokens/split.h"
#include "model/core/fs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of such a folder. A change of its files, or of how text becomes tokens, raises it: it
 * is part of the key, so text is then prepared anew. */
enum { META_FORMAT = 1 };

/* What one split holds. */
typedef struct {
    int64_t bytes, tokens, shards; /* bytes of text */
} SplitSize;

typedef struct {
    uint64_t key; /* hash of all that decides the tokens */
    uint64_t tokenizer_hash;
    int64_t vocab_size, documents;
    SplitSize split[SPLITS];
    /* (shards) running checksums: checksum[k][i] is token_file_hash over shards 0 ... i, beginning
     * from TOKEN_FILE_HASH_START, so the last is that of the whole split. NULL: the split has no
     * shards, or meta.json is from before there were checksums. */
    uint64_t *checksum[SPLITS];
} Meta;

/* Reads the shards of `folder` and fills in their checksums. */
bool meta_checksum(Meta *m, const char *folder, char *err, size_t n);
/* Writes and reads the file at `path`. False with a sentence: it cannot be written; it cannot be
 * read, or has another version or other contents than meta_write gives it. */
bool meta_write(const Meta *m, const FsOps *fs, const char *path, char *err, size_t n);
bool meta_read(Meta *m, const char *path, char *err, size_t n);
/* The same from memory, without a sentence. */
bool meta_parse(Meta *m, const char *text, size_t size);
void meta_free(Meta *m);

/* Whether the shard at `path` has the checksum that meta.json beside it has for it. False with a
 * sentence; *known is whether meta.json has one at all. */
bool meta_verify(const char *path, bool *known, char *err, size_t n);

#endif
