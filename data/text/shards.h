/* shards.h -- writes a folder of prepared tokens: tokenizer.json, the shards of both splits, and
 * meta.json.
 *
 * This is in data/text because it encodes text; data/tokens does not depend on text or
 * tokenizers. */
#ifndef DATA_TEXT_SHARDS_H
#define DATA_TEXT_SHARDS_H

#include "data/text/meta.h"
#include "data/text/text.h"
#include "data/tokenizer/tokenizer.h"
#include "model/core/fs.h"
#include "model/core/pool.h"

/* The part of a text that becomes a split: bytes [from, to). */
typedef struct {
    const Text *text;
    int64_t from, to;
} TextRange;

/* How text is encoded. {0} is the default. */
typedef struct {
    /* Names of special tokens in the text become these tokens. By default they are ordinary text,
     * and only the end of a document becomes a special token. */
    bool special_tokens;
    int threads;        /* 0: one for each core that this process may use */
    Progress *progress; /* may be NULL */
} ShardOptions;

/* Encodes range[SPLIT_TRAIN] and range[SPLIT_VAL] and writes all files into the folder, which must
 * exist and be empty. An end-of-text token follows each document that ends within its range. The
 * caller fills in `key` and `documents` of `meta`; this function fills in the rest, and the caller
 * must always call meta_free. The files do not depend on the number of threads. */
bool shards_write(const Tokenizer *t, const TextRange range[SPLITS], const FsOps *fs,
                  const char *folder, Meta *meta, const ShardOptions *options, char *err, size_t n);

/* Returns a thread pool for work on `size` bytes of text; NULL if one thread is enough. `threads`
 * as in ShardOptions. */
Pool *text_pool(int threads, int64_t size);

#endif
