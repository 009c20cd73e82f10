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
#include "model/core/pool.h"

/* A part of a text that a split is made from: bytes [from, to). */
typedef struct {
    const Text *text;
    int64_t from, to;
} TextRange;

/* How text is encoded. {0} is the default. */
typedef struct {
    /* The names of special tokens in the text become those tokens. By default text never produces
     * special tokens: only the end of a document does. */
    bool special_tokens;
    int threads;        /* 0: one for each core that this process may use */
    Progress *progress; /* may be NULL */
} ShardOptions;

/* Encodes range[SPLIT_TRAIN] and range[SPLIT_VAL] and writes all files of the folder, which exists
 * and is empty. An end-of-text token follows each document that ends within its range. The caller
 * fills in `key` and `documents` of `meta`; this function fills in the rest, and the caller calls
 * meta_free in any case. The files do not depend on the number of threads. */
bool shards_write(const Tokenizer *t, const TextRange range[SPLITS], const FsOps *fs,
                  const char *folder, Meta *meta, const ShardOptions *options, char *err, size_t n);

/* Returns a pool for work on `size` bytes of text; NULL if one thread is to do it. `threads` as in
 * ShardOptions. */
Pool *text_pool(int threads, int64_t size);

#endif
