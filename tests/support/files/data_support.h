/* data_support.h -- helpers for the tests of data/: temporary folders and files, token shards,
 * random text, and replay of fuzz targets. */
#ifndef TESTS_SUPPORT_FILES_DATA_SUPPORT_H
#define TESTS_SUPPORT_FILES_DATA_SUPPORT_H

#include "configs/config.h"

#include <stddef.h>
#include <stdint.h>

/* Creates an empty temporary folder; folder_drop removes it with its content. */
char *folder_new(void);
void folder_drop(char *folder);
/* Write the file FOLDER/NAME and return its path, which the caller frees. */
char *file_new(const char *folder, const char *name, const void *bytes, size_t size);
char *text_file_new(const char *folder, const char *name, const char *text);

/* Flips the lowest bit of the byte at `at`. */
void flip_bit(const char *path, long at);

/* Writes a token shard whose token i is (first + i) % modulo, with the integer width that the
 * vocabulary size `vocab` needs. Returns its path, which the caller frees. */
char *shard_new(const char *folder, const char *name, int64_t vocab, int64_t n_tokens,
                int64_t first, int64_t modulo);

/* Returns number `i` of a fixed stream of random numbers. */
uint64_t drawn(uint64_t stream, uint64_t i);
/* Returns random text: words of a small vocabulary, in lines, with some punctuation. It is
 * zero-terminated; the caller frees it. */
char *drawn_text(uint64_t stream, int64_t words);

/* A fuzz target with the signature that libFuzzer expects. */
typedef int FuzzTarget(const uint8_t *data, size_t size);
/* Calls the target with `rounds` mutations of a valid input (tests/support/files/mutate.h). */
void fuzz_replay(FuzzTarget *target, const void *valid, size_t size, uint64_t stream, int rounds);

int fuzz_tokens(const uint8_t *data, size_t size);
int fuzz_choices(const uint8_t *data, size_t size);
int fuzz_tokenizer(const uint8_t *data, size_t size);
int fuzz_meta(const uint8_t *data, size_t size);
int fuzz_text(const uint8_t *data, size_t size);

#endif
