/* identity.h -- identifies a run's data by one line of text. Checkpoints store it, and a resumed
 * run compares its data with it. */
#ifndef DATA_IDENTITY_H
#define DATA_IDENTITY_H

#include "data/dataset.h"

/* Returns "tokenizer HASH; train N tokens HASH; val N tokens HASH". A hash of contents has 16
 * hexadecimal digits; a missing part is "none". Names and folders of files do not matter. For
 * tokens prepared from text, the hash covers all tokens: it is stored in meta.json, and the files
 * are read only if an old meta.json lacks it (`data inspect --verify` always reads them). Token
 * shards given by the user may be large, so only their size and their first and last 64 KiB are
 * hashed. The caller frees the result. Returns NULL and sets `err` if a shard cannot be read. */
char *data_identity(const DataSet *data, char *err, size_t n);

/* Returns the identity of the validation sets (data->sets): "NAME N tokens HASH; ...". The hashes,
 * the result and failures are as in data_identity, but tokens prepared from text are hashed like
 * token shards if their meta.json lacks the hash. */
char *data_identity_sets(const DataSet *data, char *err, size_t n);

/* Returns the parts in which two identities differ, as "train 9 tokens ... -> train 10 tokens ...";
 * NULL if they are equal. Both may be any text. The caller frees the result. */
char *data_identity_difference(const char *was, const char *is);
/* Returns whether both identities name the same validation data. */
bool data_identity_same_val(const char *was, const char *is);
/* Returns whether both identities name a tokenizer, but different ones. */
bool data_identity_other_tokenizer(const char *was, const char *is);

#endif
