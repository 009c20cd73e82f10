/* data_support.c -- makes temporary files, shards and texts for the tests of data/. */
#include "tests/support/files/data_support.h"

#include "data/tokens/token_writer.h"
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/rng.h"
#include "tests/support/files/mutate.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *folder_new(void)
{
    const char *base = getenv("TMPDIR");
    char *folder = text_format("%s/test-data-XXXXXX", base ? base : "/tmp");
    CHECK(mkdtemp(folder) != NULL, "no folder %s", folder);
    return folder;
}

void folder_drop(char *folder)
{
    char err[256];
    CHECK(fs_remove_tree(&fs_system, AT_FDCWD, folder, err, sizeof err), "%s", err);
    free(folder);
}

char *file_new(const char *folder, const char *name, const void *bytes, size_t size)
{
    char *path = text_format("%s/%s", folder, name);
    FILE *to = fopen(path, "wb");
    CHECK(to != NULL && fwrite(bytes, 1, size, to) == size && fclose(to) == 0, "cannot write %s",
          path);
    return path;
}

char *text_file_new(const char *folder, const char *name, const char *text)
{
    return file_new(folder, name, text, strlen(text));
}

void flip_bit(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0, "%s", path);
    int was = fgetc(f);
    bool good = fseek(f, at, SEEK_SET) == 0 && fputc(was ^ 1, f) != EOF;
    CHECK(fclose(f) == 0 && good, "%s", path);
}

char *shard_new(const char *folder, const char *name, int64_t vocab, int64_t n_tokens,
                int64_t first, int64_t modulo)
{
    char err[256], *path = text_format("%s/%s", folder, name);
    TokenWriter *w;
    int32_t *ids = must_alloc((size_t)n_tokens * sizeof *ids + 1);
    for (int64_t i = 0; i < n_tokens; i++)
        ids[i] = (int32_t)((first + i) % modulo);
    CHECK(token_writer_open(&w, &fs_system, path, vocab, err, sizeof err), "%s", err);
    CHECK(token_writer_add(w, ids, n_tokens, err, sizeof err), "%s", err);
    CHECK(token_writer_commit(w, err, sizeof err), "%s", err);
    free(ids);
    return path;
}

uint64_t drawn(uint64_t stream, uint64_t i)
{
    return rng_bits(2026, stream, i);
}

char *drawn_text(uint64_t stream, int64_t words)
{
    static const char *const word[] = {
        "the",   "and",     "of",    "beginning", "heaven",  "earth",
        "light", "day",     "night", "God",       "created", "said",
        "unto",  "people",  "it's",  "1234",      "lord",    "\303\251t\303\251",
        "begin", "created", "there", "then",      "than",    "waters"};
    char *text = must_alloc((size_t)words * 16 + 1), *to = text;
    size_t n = sizeof word / sizeof *word;
    for (int64_t i = 0; i < words; i++) {
        uint64_t r = drawn(stream, (uint64_t)i);
        const char *ending = r >> 32 & 15 ? " " : r >> 36 & 3 ? ", " : ".\n";
        to += sprintf(to, "%s%s", word[(r % n) * (r >> 8 & 1) + (r >> 40) % n * (1 - (r >> 8 & 1))],
                      ending);
    }
    *to = 0;
    return text;
}

void fuzz_replay(FuzzTarget *target, const void *valid, size_t size, uint64_t stream, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        size_t n;
        uint8_t *mutant = mutate(valid, size, stream, (uint64_t)round, &n);
        uint8_t *exact =
            must_alloc(n ? n : 1); /* exact size, so a sanitizer reports reads past the end */
        memcpy(exact, mutant, n);
        target(exact, n);
        free(exact);
        free(mutant);
    }
}
