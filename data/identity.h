/* identity.h -- which data a run has seen, as one line of text for its checkpoints: whoever goes on
 * from one can tell whether the tokens are still the same. */
#ifndef DATA_IDENTITY_H
#define DATA_IDENTITY_H

#include "data/dataset.h"

/* "tokenizer HASH; train N tokens HASH; val N tokens HASH", hashes of contents in 16 hexadecimal
 * digits, "none" for what is not there. Names and places of files do not count. Tokens that were
 * prepared from text are hashed whole: meta.json has what was hashed when they were written, and
 * they are read only if it is from before that (`data inspect --verify` reads them always). Of a
 * shard given as such, which may be large, the size and the first and last 64 KiB are. The caller
 * frees; NULL with a sentence if a shard cannot be read. */
char *data_identity(const DataSet *data, char *err, size_t n);

/* How two of them differ, "train 9 tokens ... -> train 10 tokens ...", part by part; NULL if they
 * do not. Any text is allowed. The caller frees. */
char *data_identity_difference(const char *was, const char *is);
/* Whether both name a tokenizer and not the same one. */
bool data_identity_other_tokenizer(const char *was, const char *is);

#endif
