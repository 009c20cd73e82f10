/* hash.h -- one 64-bit hash for tables and for telling contents apart; not against an adversary. */
#ifndef DATA_HASH_H
#define DATA_HASH_H

#include <stdint.h>
#include <string.h>

/* Each step is a bijection of the state for a given word and of the word for a given state. */
static inline uint64_t hash_mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

/* Hash of `size` bytes, continued from `h` (start from any constant). */
static inline uint64_t hash_bytes(uint64_t h, const void *bytes, int64_t size)
{
    const uint8_t *p = bytes;
    int64_t left = size;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = hash_mix(h, word);
    }
    uint64_t tail = 0;
    if (left > 0) memcpy(&tail, p, (size_t)left);
    h = hash_mix(h, tail);
    return hash_mix(h, (uint64_t)size);
}

#endif
