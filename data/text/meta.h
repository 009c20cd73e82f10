/* meta.h -- reads and writes meta.json, the file in a folder of prepared tokens that records what
 * they were made from, their sizes and their checksums. Token shards from other sources have no
 * such file. */
#ifndef DATA_TEXT_META_H
#define DATA_TEXT_META_H

#include "data/tokens/split.h"
#include "model/core/fs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of a prepared folder. It must be raised when the files, or the way text becomes
 * tokens, change. It is part of the hash in the folder's name, so text is then prepared again. */
enum { META_FORMAT = 1 };

/* The size of one split, in text and in tokens. */
typedef struct {
    int64_t bytes, tokens, shards; /* `bytes` is the size of the text */
} SplitSize;

typedef struct {
    uint64_t key; /* hash of everything that determines the tokens */
    uint64_t tokenizer_hash;
    int64_t vocab_size, documents;
    SplitSize split[SPLITS];
    /* (shards) running checksums: checksum[k][i] is token_file_hash over shards 0 ... i, starting
     * from TOKEN_FILE_HASH_START, so the last one covers the whole split. NULL: the split has no
     * shards, or meta.json was written before checksums were introduced. */
    uint64_t *checksum[SPLITS];
    /* Hash of the text of each split; 0: meta.json was written before these hashes were
     * introduced. */
    uint64_t text[SPLITS];
    bool at_most; /* the tokenizer was trained on the text, with vocab_size as an upper limit */
} Meta;

/* Reads the shards in `folder` and fills in their checksums. Returns false and sets `err` if a
 * shard cannot be read. */
bool meta_checksum(Meta *m, const char *folder, char *err, size_t n);
/* Writes the file at `path`. Returns false and sets `err` if it cannot be written. */
bool meta_write(const Meta *m, const FsOps *fs, const char *path, char *err, size_t n);
/* Reads the file at `path`. Returns false and sets `err` if it cannot be read, has another version,
 * or does not have the contents that meta_write produces. */
bool meta_read(Meta *m, const char *path, char *err, size_t n);
/* Does the same as meta_read with text in memory, without an error message. */
bool meta_parse(Meta *m, const char *text, size_t size);
void meta_free(Meta *m);

/* Returns whether the shard at `path` has the checksum that is stored for it in the meta.json next
 * to it. If not, sets `err`. *known is set to whether meta.json has a checksum for the shard. */
bool meta_verify(const char *path, bool *known, char *err, size_t n);

#endif
