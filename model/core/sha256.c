/* sha256.c -- SHA-256 as defined in section 6.2 of FIPS 180-4, and HMAC as defined in RFC 2104. */
#include "model/core/sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void add_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4],
                    f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[t - 7] +
               (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    for (int t = 0; t < 64; t++) {
        uint32_t first =
            h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
        uint32_t second =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + second;
    }
    const uint32_t sum[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += sum[i];
}

void sha256_begin(Sha256 *s)
{
    /* The first 32 bits of the fractional parts of the square roots of the first 8 primes. */
    *s = (Sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(Sha256 *s, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    while (bytes > 0) {
        size_t used = (size_t)(s->bytes % SHA256_BLOCK_BYTES), part = SHA256_BLOCK_BYTES - used;
        if (part > bytes) part = bytes;
        memcpy(s->block + used, from, part);
        s->bytes += part;
        from += part;
        bytes -= part;
        if (s->bytes % SHA256_BLOCK_BYTES == 0) add_block(s->state, s->block);
    }
}

void sha256_end(Sha256 *s, unsigned char digest[SHA256_BYTES])
{
    /* The padding is a one bit, zeros up to 8 bytes before the end of a block, and the length of
     * the data in bits. */
    static const unsigned char padding[SHA256_BLOCK_BYTES] = {0x80};
    unsigned char length[8];
    uint64_t bits = 8 * s->bytes;
    size_t used = (size_t)(s->bytes % SHA256_BLOCK_BYTES);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(s, padding, used < 56 ? 56 - used : 120 - used);
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < SHA256_BYTES; i++)
        digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256(const void *data, size_t bytes, unsigned char digest[SHA256_BYTES])
{
    Sha256 s;
    sha256_begin(&s);
    sha256_add(&s, data, bytes);
    sha256_end(&s, digest);
}

/* Writes the hash of (key ^ pad in each byte) followed by the data. */
static void keyed(const unsigned char key[SHA256_BLOCK_BYTES], unsigned char pad, const void *data,
                  size_t bytes, unsigned char digest[SHA256_BYTES])
{
    Sha256 s;
    unsigned char block[SHA256_BLOCK_BYTES];
    for (int i = 0; i < SHA256_BLOCK_BYTES; i++)
        block[i] = key[i] ^ pad;
    sha256_begin(&s);
    sha256_add(&s, block, sizeof block);
    sha256_add(&s, data, bytes);
    sha256_end(&s, digest);
}

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 unsigned char mac[SHA256_BYTES])
{
    unsigned char block[SHA256_BLOCK_BYTES] = {0}, inner[SHA256_BYTES];
    if (key_bytes > sizeof block)
        sha256(key, key_bytes, block);
    else if (key_bytes > 0)
        memcpy(block, key, key_bytes);
    keyed(block, 0x36, data, bytes, inner);
    keyed(block, 0x5c, inner, sizeof inner, mac);
}

bool same_bytes(const void *a, const void *b, size_t n)
{
    const volatile unsigned char *x = a, *y = b;
    unsigned char differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= x[i] ^ y[i];
    return differ == 0;
}
