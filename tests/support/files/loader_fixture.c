/* loader_fixture.c -- writes shards of consecutive numbers and opens loaders over them. */
#include "tests/support/files/loader_fixture.h"

#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>

static void open_set(TokenSet *s, const char *folder, const char *name, const int64_t *tokens,
                     int n_files)
{
    char err[512];
    StringList list = {.count = n_files, .item = must_calloc((size_t)n_files, sizeof *list.item)};
    int64_t first = 0;
    for (int i = 0; i < n_files; i++) {
        char *file = text_format("%s_%d.bin", name, i);
        list.item[i] = shard_new(folder, file, 60000, tokens[i], first, 60000);
        first += tokens[i];
        free(file);
    }
    if (!token_set_open(s, &list, err, sizeof err)) fail_msg("%s", err);
    for (int i = 0; i < n_files; i++)
        free(list.item[i]);
    free(list.item);
}

CountingSet counting_open(int64_t train_tokens, int64_t val_tokens)
{
    CountingSet set = {.folder = folder_new()};
    int64_t part[3] = {train_tokens / 3, 1, train_tokens - train_tokens / 3 - 1};
    open_set(&set.data.train, set.folder, "train", part, 3);
    open_set(&set.data.val, set.folder, "val", &val_tokens, 1);
    return set;
}

void counting_close(CountingSet *set)
{
    data_close(&set->data);
    folder_drop(set->folder);
}

Loader *counting_loader(const CountingSet *set, LoaderOptions options)
{
    char err[512];
    Loader *l;
    if (options.vocab_size == 0) options.vocab_size = 60000;
    if (options.dp_size == 0) options.dp_size = 1;
    if (options.micros == 0) options.micros = 1;
    if (!loader_create(&l, &set->data, &options, err, sizeof err)) fail_msg("%s", err);
    return l;
}

Batch counting_next(Loader *loader, int64_t samples, int64_t micro)
{
    char err[512];
    Batch b;
    if (!loader_next(loader, samples, micro, &b, err, sizeof err)) fail_msg("%s", err);
    return b;
}
