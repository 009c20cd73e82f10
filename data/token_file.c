/* token_file.c -- reading shards: strict about the header, exact about offsets; see token_file.h.
 */
#include "data/token_file.h"

#include "model/core/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t token_offset(int width, int64_t index)
{
    return TOKEN_FILE_HEADER + index * (int64_t)width;
}

bool token_header_parse(const char *name, const void *header, int64_t file_size,
                        TokenFileHeader *out, char *err, size_t n)
{
    int32_t word[3];
    if (file_size < TOKEN_FILE_HEADER)
        return error_set(err, n, "%s has %lld bytes, fewer than the %d of a token shard's header",
                         name, (long long)file_size, (int)TOKEN_FILE_HEADER);
    memcpy(word, header, sizeof word);
    if (word[0] != TOKEN_FILE_MAGIC_16 && word[0] != TOKEN_FILE_MAGIC_32)
        return error_set(err, n, "%s is not a token shard: it begins with %d, not %d or %d", name,
                         word[0], (int)TOKEN_FILE_MAGIC_16, (int)TOKEN_FILE_MAGIC_32);
    bool wide = word[0] == TOKEN_FILE_MAGIC_32;
    int32_t version = wide ? 7 : 1;
    if (word[1] != version)
        return error_set(err, n, "%s is a token shard of version %d; version %d is understood",
                         name, word[1], version);
    int width = wide ? 4 : 2;
    int64_t expected = token_offset(width, word[2]);
    if (word[2] < 0 || expected != file_size)
        return error_set(err, n,
                         "%s is damaged: its header promises %d tokens, that is %lld bytes, but it "
                         "has %lld",
                         name, word[2], (long long)expected, (long long)file_size);
    *out = (TokenFileHeader){.width = width, .n_tokens = word[2]};
    return true;
}

bool token_file_open(TokenFile *f, const char *path, char *err, size_t n)
{
    *f = (TokenFile){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set(err, n, "%s cannot be opened: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return error_set(err, n, "%s is not a regular file", path);
    }
    TokenFileHeader header;
    uint8_t bytes[TOKEN_FILE_HEADER] = {0};
    int64_t size = st.st_size;
    ssize_t got = pread(fd, bytes, sizeof bytes, 0);
    bool good = token_header_parse(path, bytes, got < 0 ? 0 : size, &header, err, n);
    void *map = MAP_FAILED;
    if (good) {
        map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            good = error_set(err, n, "%s cannot be mapped: %s", path, strerror(errno));
    }
    close(fd);
    if (!good) return false;
    *f = (TokenFile){.path = must_strdup(path),
                     .map = map,
                     .size = size,
                     .width = header.width,
                     .n_tokens = header.n_tokens};
    return true;
}

void token_file_close(TokenFile *f)
{
    if (f->map) munmap((void *)(uintptr_t)f->map, (size_t)f->size);
    free(f->path);
    *f = (TokenFile){0};
}

bool token_set_open(TokenSet *s, const StringList *paths, char *err, size_t n)
{
    *s = (TokenSet){0};
    if (paths->count < 1) return error_set(err, n, "no token shards are given");
    s->file = must_calloc((size_t)paths->count, sizeof *s->file);
    s->first = must_calloc((size_t)paths->count + 1, sizeof *s->first);
    for (int i = 0; i < paths->count; i++) {
        if (!token_file_open(&s->file[i], paths->item[i], err, n)) {
            token_set_close(s);
            return false;
        }
        s->n_files = i + 1;
        s->n_tokens +=
            s->file[i].n_tokens; /* each < 2^31, the number of files is an int: no overflow */
        s->first[i + 1] = s->n_tokens;
    }
    return true;
}

void token_set_close(TokenSet *s)
{
    for (int i = 0; i < s->n_files; i++)
        token_file_close(&s->file[i]);
    free(s->file);
    free(s->first);
    *s = (TokenSet){0};
}

/* Copies `count` tokens of one file; returns the first index whose id is too large, else -1. The
 * check is a maximum over the run, so that the loop stays free of branches; only a bad run is
 * searched. */
static int64_t copy_tokens(const TokenFile *f, int64_t first, int64_t count, int64_t vocab_size,
                           int32_t *out)
{
    const uint8_t *from = f->map + token_offset(f->width, first);
    uint32_t largest = 0;
    if (f->width == 2) {
        for (int64_t i = 0; i < count; i++) {
            uint16_t id;
            memcpy(&id, from + 2 * i, sizeof id);
            largest = id > largest ? id : largest;
            out[i] = id;
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            uint32_t id;
            memcpy(&id, from + 4 * i, sizeof id);
            largest = id > largest ? id : largest;
            out[i] = (int32_t)id;
        }
    }
    if (count == 0 || largest < vocab_size) return -1;
    for (int64_t i = 0; i < count; i++)
        if ((uint32_t)out[i] >= vocab_size) return i;
    return -1;
}

/* The last file that begins at or before token `index`. */
static int file_of(const TokenSet *s, int64_t index)
{
    int low = 0, high = s->n_files - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (s->first[middle] <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

bool token_set_read(const TokenSet *s, int64_t first, int64_t count, int64_t vocab_size,
                    int32_t *out, char *err, size_t n)
{
    CHECK(first >= 0 && count >= 0 && count <= s->n_tokens - first, "tokens %lld + %lld of %lld",
          (long long)first, (long long)count, (long long)s->n_tokens);
    for (int k = file_of(s, first); count > 0; k++) {
        const TokenFile *f = &s->file[k];
        int64_t from = first - s->first[k], some = f->n_tokens - from;
        if (some > count) some = count;
        int64_t bad = copy_tokens(f, from, some, vocab_size, out);
        if (bad >= 0)
            return error_set(err, n,
                             "%s: token id %u at byte %lld (token %lld) is not in a vocabulary of "
                             "%lld; was the file made by another tokenizer?",
                             f->path, (uint32_t)out[bad],
                             (long long)token_offset(f->width, from + bad), (long long)from + bad,
                             (long long)vocab_size);
        out += some;
        first += some;
        count -= some;
    }
    return true;
}

bool token_set_check(const TokenSet *s, int64_t vocab_size, char *err, size_t n)
{
    enum { CHUNK = 1 << 16 };
    int32_t *ids = must_alloc(CHUNK * sizeof *ids);
    bool good = true;
    for (int64_t at = 0; good && at < s->n_tokens; at += CHUNK) {
        int64_t count = s->n_tokens - at < CHUNK ? s->n_tokens - at : CHUNK;
        good = token_set_read(s, at, count, vocab_size, ids, err, n);
    }
    free(ids);
    return good;
}
