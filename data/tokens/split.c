/* split.c -- names of the two splits and of their shard files; see split.h. */
#include "data/tokens/split.h"

#include "model/core/check.h"

const char *const split_name[SPLITS] = {"train", "val"};

char *split_shard_path(const char *folder, Split split, int64_t shard)
{
    return text_format("%s/%s_%06lld.bin", folder, split_name[split], (long long)shard);
}
