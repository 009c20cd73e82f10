/* hash.h -- one 64-bit hash for tables and for telling contents apart; not against an adversary. */
#ifndef MODEL_CORE_HASH_H
#define MODEL_CORE_HASH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Each step is a bijection of the state for a given word and of the word for a given state. */
static inline uint64_t hash_mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15u; /* odd: a bijection; low bits reach all above them */
    return h ^ (h >> 29);                 /* and high bits come back down */
}

/* Hash of `size` bytes, continued from `h` (start from any constant). Bytes that come in pieces:
 * all pieces but the last through hash_words, the last through hash_tail with the size of all. */
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

/* Reads a hash, a checksum or an id as "%016llx" prints it: exactly `digits` (16 at most)
 * lower-case hexadecimal digits. Anything else is false. */
static inline bool hash_parse(const char *text, size_t digits, uint64_t *out)
{
    if (strlen(text) != digits || strspn(text, "0123456789abcdef") != digits) return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

#endif
