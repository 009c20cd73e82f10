/* hash.h -- a 64-bit hash for hash tables and for detecting changed contents; not secure against an
 * adversary. */
#ifndef MODEL_CORE_HASH_H
#define MODEL_CORE_HASH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Mixes one word into the hash h. The result is a bijection of h if the word is fixed, and of the
 * word if h is fixed. */
static inline uint64_t hash_mix(uint64_t h, uint64_t word)
{
    /* The factor is odd, so this is a bijection; low bits affect all higher bits. */
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29); /* high bits affect low bits */
}

/* Hashes the whole 8-byte words of `bytes`, continuing from `h` (at the start, any constant). To
 * hash data in pieces, pass the last piece to hash_tail and all others, whose sizes must be
 * multiples of 8, to hash_words. */
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

/* Hashes the last piece of data that has `all` bytes in total, and returns the hash of the data. */
static inline uint64_t hash_tail(uint64_t h, const void *bytes, int64_t size, int64_t all)
{
    uint64_t tail = 0;
    h = hash_words(h, bytes, size);
    if (size % 8 > 0) memcpy(&tail, (const uint8_t *)bytes + size - size % 8, (size_t)(size % 8));
    return hash_mix(hash_mix(h, tail), (uint64_t)all);
}

/* Returns the hash of `size` bytes that are not in pieces, continuing from `h`. */
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
