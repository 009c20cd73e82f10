/* choice_support.h -- makes multiple-choice files in llm.c's evaluation format. */
#ifndef TESTS_SUPPORT_FILES_CHOICE_SUPPORT_H
#define TESTS_SUPPORT_FILES_CHOICE_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

/* Returns the bytes of a file with these words after a header that promises `examples` examples,
 * the longest of `longest` bytes. The caller frees them. */
uint8_t *choice_bytes(const uint16_t *word, int64_t words, int32_t examples, int32_t longest,
                      size_t *size);
/* Returns the bytes of a file of random examples with 2 to 5 completions, tokens below `vocab`, and
 * sequences of at most `most` tokens. The caller frees them. */
uint8_t *choice_drawn(int32_t examples, int64_t vocab, int most, size_t *size);

#endif
