/* prepare.h -- turns text into a folder of token shards and the tokenizer that made them, once per
 * text.
 *
 * The folder is CACHE/NAME-HASH. HASH covers the text and every setting that determines the tokens.
 * The folder contains train_000000.bin, val_000000.bin, ..., tokenizer.json and meta.json. It is
 * built under a temporary name and then renamed, so it exists either completely or not at all, and
 * several processes may prepare the same text at the same time. */
#ifndef DATA_TEXT_PREPARE_H
#define DATA_TEXT_PREPARE_H

#include "data/text/text.h"
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The arguments of prepare_text. */
typedef struct {
    const FsOps *fs;       /* file system functions used to create the folder */
    const char *name;      /* first part of the folder's name */
    const char *cache;     /* folder of prepared corpora */
    const char *source;    /* the name of the text in error messages: its file or corpus */
    const Text *text;      /* may be empty if `val_only` and val_text is given */
    const Text *val_text;  /* NULL: use the last val_fraction of `text` */
    const char *val_key;   /* the config key of val_text; NULL: data.val_text */
    const char *tokenizer; /* path; NULL: train a BPE on the training part */
    int64_t vocab_size;    /* vocabulary size of that BPE */
    bool vocab_at_most;    /* vocab_size is only an upper limit (tokenizer_train_up_to) */
    double val_fraction;
    bool val_only;      /* only the validation text is wanted; `tokenizer` is given */
    int threads;        /* 0: one for each core that this process may use */
    Progress *progress; /* reports progress; may be NULL */
    int64_t min_tokens; /* a split with fewer tokens is an error: T + 1, which is one window */
} PrepareRequest;

/* The result: the tokens that were prepared or found in the cache. It owns the paths; free it with
 * preparation_free. */
typedef struct {
    char *folder, *tokenizer;         /* the folder, and tokenizer.json in it */
    bool cached;                      /* the folder existed already */
    int64_t train_bytes, val_bytes;   /* sizes of the text */
    int64_t train_tokens, val_tokens; /* including end-of-text tokens */
    /* Checksums over all shards of a split, as data_identity uses them; 0: meta.json has none. */
    uint64_t train_checksum, val_checksum;
    int64_t documents;
    int64_t vocab_size;
    uint64_t tokenizer_hash;
} Preparation;

/* Finds the folder of these tokens, or another folder in the cache with the same tokens, and checks
 * it; if there is none, creates it. With val_only, the folder need not have the training tokens. On
 * failure it returns false and sets `err` and *code, and *out is {0}. EXIT_MISSING: the given
 * tokenizer is missing. EXIT_DAMAGED: the tokenizer or the folder is damaged. EXIT_CONFIG: a split
 * has fewer than min_tokens, or the text is too short for the vocabulary. EXIT_CANNOT_CREATE,
 * EXIT_INPUT_OUTPUT: the folder cannot be created or written. EXIT_PERMISSION: the folder may not
 * be read. */
bool prepare_text(const PrepareRequest *request, Preparation *out, char *err, size_t n,
                  ExitCode *code);
void preparation_free(Preparation *p);

#endif
