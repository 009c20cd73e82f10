/* prepare.h -- text to a folder of token shards with the tokenizer that made them, once.
 *
 * The folder is CACHE/NAME-HASH, HASH being that of the text itself and of every setting that
 * decides the tokens; it holds train_000000.bin, val_000000.bin, ..., tokenizer.json and meta.json.
 * It is built under a temporary name and renamed, so it is there completely or not at all, and
 * several processes may prepare the same text at once. */
#ifndef DATA_TEXT_PREPARE_H
#define DATA_TEXT_PREPARE_H

#include "data/text/text.h"
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What to prepare. */
typedef struct {
    const FsOps *fs;    /* through which the folder is made */
    const char *name;   /* first part of the folder's name */
    const char *cache;  /* folder of prepared corpora */
    const char *source; /* what sentences call the text: its file or corpus */
    const Text *text;
    const Text *val_text;  /* NULL: the last val_fraction of text */
    const char *tokenizer; /* path; NULL: train a BPE on the training part */
    int64_t vocab_size;    /* of that BPE */
    double val_fraction;
    Progress *progress; /* shows how far it is; NULL: nobody wants to know */
    int64_t min_tokens; /* a split shorter than this is refused: one window and its last target */
} PrepareRequest;

/* What was prepared, or found prepared. Paths are owned: free with preparation_free. */
typedef struct {
    char *folder, *tokenizer;         /* the folder; tokenizer.json in it */
    bool cached;                      /* nothing had to be done */
    int64_t train_bytes, val_bytes;   /* of text */
    int64_t train_tokens, val_tokens; /* end-of-text included */
    /* Of all shards of a split, as data_identity hashes them; 0: meta.json does not have it. */
    uint64_t train_checksum, val_checksum;
    int64_t documents;
    int64_t vocab_size;
    uint64_t tokenizer_hash;
} Preparation;

/* Finds the folder of these tokens and checks it, or makes it. False with a sentence and *code: the
 * given tokenizer is missing (EXIT_MISSING) or damaged, or the folder is (EXIT_DAMAGED); a split is
 * shorter than min_tokens, or the text too short for the vocabulary (EXIT_CONFIG); the folder
 * cannot be made (EXIT_CANNOT_CREATE) or written (EXIT_INPUT_OUTPUT), or must not be read
 * (EXIT_PERMISSION). Then *out is {0}. */
bool prepare_text(const PrepareRequest *request, Preparation *out, char *err, size_t n,
                  ExitCode *code);
void preparation_free(Preparation *p);

#endif
