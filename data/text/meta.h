/* meta.h -- meta.json of a folder of prepared tokens: what it was made from, what it holds, and
 * checksums of its shards. */
#ifndef DATA_TEXT_META_H
#define DATA_TEXT_META_H

#include "data/tokens/split.h"
#include "model/core/fs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the folder. Whoever changes it, or how text becomes tokens, raises this number: it is part of
 * the key, so that text is prepared anew. */
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
    /* What token_file_hash makes of the shards up to and with this one, beginning from
     * TOKEN_FILE_HASH_START: the last is the whole split's. NULL: written before there were any, or
     * no shards. */
    uint64_t *checksum[SPLITS];
} Meta;

/* Reads the shards of `folder` and fills in their checksums. */
bool meta_checksum(Meta *m, const char *folder, char *err, size_t n);
/* Reading and writing the file at `path`. False with a sentence: it cannot be written; there is
 * none that can be read, or it is another format. */
bool meta_write(const Meta *m, const FsOps *fs, const char *path, char *err, size_t n);
bool meta_read(Meta *m, const char *path, char *err, size_t n);
/* The same from memory, without a sentence. */
bool meta_parse(Meta *m, const char *text, size_t size);
void meta_free(Meta *m);

/* Whether the shard at `path` holds the bytes that meta.json beside it says. False with a sentence,
 * and *known tells whether meta.json says anything about it. */
bool meta_verify(const char *path, bool *known, char *err, size_t n);

#endif
