/* shards.h -- text to token shards under the names that the rest of the program looks for. */
#ifndef DATA_TEXT_SHARDS_H
#define DATA_TEXT_SHARDS_H

#include "data/text/text.h"
#include "data/tokenizer/tokenizer.h"

/* What was written of one split. */
typedef struct {
    int64_t bytes, tokens, shards;
} ShardsSize;

/* FOLDER/NAME_000012.bin for shard 12 of a split; the caller frees. */
char *shard_path(const char *folder, const char *name, int64_t shard);
/* Encodes bytes [from, to) of a text, with end-of-text after each document that ends in them, into
 * FOLDER/NAME_000000.bin and so on; `name` is "train" or "val". `progress` (may be NULL) is told
 * how far it is. */
bool shards_write(const Tokenizer *t, const Text *text, int64_t from, int64_t to,
                  const char *folder, const char *name, ShardsSize *size, Progress *progress,
                  char *err, size_t n);

#endif
