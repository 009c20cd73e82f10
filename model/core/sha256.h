/* sha256.h -- SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), with which ranks on several machines
 * prove to each other that they know a secret. Written for short messages, not for speed. */
#ifndef MODEL_CORE_SHA256_H
#define MODEL_CORE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };

/* Writes the hash of data[0..bytes) to digest. */
void sha256(const void *data, size_t bytes, unsigned char digest[SHA256_BYTES]);

/* Hashes data that comes in pieces: call sha256_begin, sha256_add for each piece, then
 * sha256_end. */
typedef struct {
    uint32_t state[8];
    uint64_t bytes; /* number of bytes added so far */
    unsigned char block[SHA256_BLOCK_BYTES];
} Sha256;
void sha256_begin(Sha256 *s);
void sha256_add(Sha256 *s, const void *data, size_t bytes);
void sha256_end(Sha256 *s, unsigned char digest[SHA256_BYTES]);

/* Writes the authentication code of data[0..bytes) under the key to mac. A key of any length is
 * allowed; a key longer than a block is replaced by its hash. */
void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 unsigned char mac[SHA256_BYTES]);

/* Returns whether a[0..n) and b[0..n) are equal. The time does not depend on where they differ, so
 * that nobody can find out a code byte by byte from timing. */
bool same_bytes(const void *a, const void *b, size_t n);

#endif
