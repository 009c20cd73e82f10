/* split.h -- the training and validation splits of a run's data, and the names of their shard
 * files. */
#ifndef DATA_TOKENS_SPLIT_H
#define DATA_TOKENS_SPLIT_H

#include <stdint.h>

typedef enum { SPLIT_TRAIN, SPLIT_VAL, SPLITS } Split;

/* "train" and "val"; file names of shards begin with them. */
extern const char *const split_name[SPLITS];

/* Returns the path of a shard: FOLDER/train_000012.bin for shard 12 of the training split. The
 * caller frees it. */
char *split_shard_path(const char *folder, Split split, int64_t shard);

#endif
