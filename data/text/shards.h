/* shards.h -- writes a folder of prepared tokens: tokenizer.json, the shards of both splits, and
 * meta.json.
 *
 * It is in data/text because it encodes text; data/tokens knows nothing of text or tokenizers. */
#ifndef DATA_TEXT_SHARDS_H
#define DATA_TEXT_SHARDS_H

#include "data/text/meta.h"
#include "data/text/text.h"
#include "data/tokenizer/tokenizer.h"
#include "model/core/fs.h"

/* A part of a text that a split is made from: bytes [from, to). */
typedef struct {
    const Text *text;
    int64_t from, to;
} TextRange;

/* Encodes range[SPLIT_TRAIN] and range[SPLIT_VAL] and writes all files of the folder, which exists
 * and is empty. An end-of-text token follows each document that ends within its range. The caller
 * fills in `key` and `documents` of `meta`; this function fills in the rest, and the caller calls
 * meta_free in any case. `progress` may be NULL. */
bool shards_write(const Tokenizer *t, const TextRange range[SPLITS], const FsOps *fs,
                  const char *folder, Meta *meta, Progress *progress, char *err, size_t n);

#endif
