/* split.h -- the two splits of a run's data, and the files in which this program puts one. */
#ifndef DATA_TOKENS_SPLIT_H
#define DATA_TOKENS_SPLIT_H

#include <stdint.h>

typedef enum { SPLIT_TRAIN, SPLIT_VAL, SPLITS } Split;

/* "train", "val": as the files' names begin. */
extern const char *const split_name[SPLITS];

/* FOLDER/train_000012.bin for shard 12 of the training split; the caller frees. */
char *split_shard_path(const char *folder, Split split, int64_t shard);

#endif
