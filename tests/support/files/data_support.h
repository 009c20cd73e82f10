/* data_support.h -- what the tests of data/ share: a temporary folder, files in it, mutated inputs.
 */
#ifndef TESTS_SUPPORT_FILES_DATA_SUPPORT_H
#define TESTS_SUPPORT_FILES_DATA_SUPPORT_H

#include "configs/config.h"

#include <stddef.h>
#include <stdint.h>

/* A new empty folder; folder_drop removes it with all that is in it. */
char *folder_new(void);
void folder_drop(char *folder);
/* Writes FOLDER/NAME and returns its path; the caller frees. */
char *file_new(const char *folder, const char *name, const void *bytes, size_t size);
char *text_file_new(const char *folder, const char *name, const char *text);

/* Flips the lowest bit of the byte at `at`. */
void flip_bit(const char *path, long at);

/* A shard whose token i is (first + i) % modulo, in the width that `vocab` asks for. */
char *shard_new(const char *folder, const char *name, int64_t vocab, int64_t n_tokens,
                int64_t first, int64_t modulo);

/* Number `i` of a fixed stream of random numbers. */
uint64_t drawn(uint64_t stream, uint64_t i);
/* Random prose: words of a small vocabulary, lines, some punctuation; zero-terminated, the caller
 * frees. */
char *drawn_text(uint64_t stream, int64_t words);

/* A fuzz target, as libFuzzer calls it. */
typedef int FuzzTarget(const uint8_t *data, size_t size);
/* Calls the target with `rounds` mutations of a valid input (tests/support/files/mutate.h). */
void fuzz_replay(FuzzTarget *target, const void *valid, size_t size, uint64_t stream, int rounds);

int fuzz_tokens(const uint8_t *data, size_t size);
int fuzz_tokenizer(const uint8_t *data, size_t size);
int fuzz_meta(const uint8_t *data, size_t size);
int fuzz_text(const uint8_t *data, size_t size);

#endif
