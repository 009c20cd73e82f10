/* identity.h -- which data a run has seen, as one line of text that its checkpoints keep: a run
 * that goes on from one compares it with the data that it has now. */
#ifndef DATA_IDENTITY_H
#define DATA_IDENTITY_H

#include "data/dataset.h"

/* "tokenizer HASH; train N tokens HASH; val N tokens HASH": hashes of contents in 16 hexadecimal
 * digits, "none" for what is not there. Names and places of files do not count. Tokens prepared
 * from text are hashed whole; their hash is in meta.json since they were written, and they are
 * read only where an old meta.json has none (`data inspect --verify` reads them always). Of shards
 * that were given as such, which may be large, only the size and the first and last 64 KiB are
 * hashed. The caller frees; NULL with a sentence if a shard cannot be read. */
char *data_identity(const DataSet *data, char *err, size_t n);

/* How two of them differ, "train 9 tokens ... -> train 10 tokens ...", part by part; NULL if they
 * do not. Any text is allowed. The caller frees. */
char *data_identity_difference(const char *was, const char *is);
/* Whether both name a tokenizer and not the same one. */
bool data_identity_other_tokenizer(const char *was, const char *is);

#endif
