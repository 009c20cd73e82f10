/* shards.h -- writing a folder of prepared tokens: tokenizer.json, the shards of both splits and
 * meta.json. It lies with the text because it encodes it; data/tokens knows neither text nor
 * tokenizers. */
#ifndef DATA_TEXT_SHARDS_H
#define DATA_TEXT_SHARDS_H

#include "data/text/meta.h"
#include "data/text/text.h"
#include "data/tokenizer/tokenizer.h"
#include "model/core/fs.h"

/* What a split is made of: bytes [from, to) of a text. */
typedef struct {
    const Text *text;
    int64_t from, to;
} TextRange;

/* Encodes range[SPLIT_TRAIN] and range[SPLIT_VAL], with end-of-text after each document that ends
 * in them, and writes all files of the folder, which exists and has none of them. What it writes to
 * meta.json is `meta`, where key and documents are given and the rest is filled in; meta_free is
 * due in any case. `progress` (may be NULL) shows how far it is. */
bool shards_write(const Tokenizer *t, const TextRange range[SPLITS], const FsOps *fs,
                  const char *folder, Meta *meta, Progress *progress, char *err, size_t n);

#endif
