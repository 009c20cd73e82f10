/* hash.h -- a 64-bit hash for hash tables and for detecting changed contents; not secure against an
 * adversary. */
#ifndef MODEL_CORE_HASH_H
#define MODEL_CORE_HASH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Mixes one word into the hash. For a fixed word, each step is a bijection of the state, and for a
 * fixed state a bijection of the word. */
static inline uint64_t hash_mix(uint64_t h, uint64_t word)
{
    /* An odd factor, so a bijection; low bits affect all higher bits. */
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29); /* high bits affect low bits */
}

/* Hashes `size` bytes, continuing from `h` (start with any constant). To hash in pieces, pass all
 * pieces but the last to hash_words, and the last to hash_tail with the total size. */
static inline uint64_t hash_words(uint64_t h, const void *bytes, int64_t size)
{
    const uint8_t *p = bytes;
    for (int64_t left = size; left >= 8; left -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = hash_mix(h, word);
    }
    return h;
}

static inline uint64_t hash_tail(uint64_t h, const void *bytes, int64_t size, int64_t all)
{
    uint64_t tail = 0;
    h = hash_words(h, bytes, size);
    if (size % 8 > 0) memcpy(&tail, (const uint8_t *)bytes + size - size % 8, (size_t)(size % 8));
    return hash_mix(hash_mix(h, tail), (uint64_t)all);
}

static inline uint64_t hash_bytes(uint64_t h, const void *bytes, int64_t size)
{
    return hash_tail(h, bytes, size, size);
}

/* Parses a hash, checksum or id as printed by "%016llx": exactly `digits` (at most 16) lower-case
 * hexadecimal digits. Returns false for anything else. */
static inline bool hash_parse(const char *text, size_t digits, uint64_t *out)
{
    if (strlen(text) != digits || strspn(text, "0123456789abcdef") != digits) return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

#endif
