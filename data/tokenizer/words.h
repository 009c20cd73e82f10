/* words.h -- splits text into words by GPT-2's pattern; byte pairs are merged only within a
 * word. */
#ifndef DATA_TOKENIZER_WORDS_H
#define DATA_TOKENIZER_WORDS_H

#include <stdint.h>

/* Returns the length in bytes of the first word of s[0..n), n >= 1. The text must extend to its
 * real end, because white space is split differently before other text than at the end. Each byte
 * that is not valid UTF-8 counts as a symbol. */
int64_t word_length(const uint8_t *s, int64_t n);

#endif
