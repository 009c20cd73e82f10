/* words.h -- the GPT-2 split: text to the words inside which byte pairs may be merged. */
#ifndef DATA_TOKENIZER_WORDS_H
#define DATA_TOKENIZER_WORDS_H

#include <stdint.h>

/* Bytes of the first word of s[0..n), n >= 1. The text must go on to its real end: white space
 * before other text and at the end splits differently. Bytes that are not UTF-8 count as symbols,
 * one each. */
int64_t word_length(const uint8_t *s, int64_t n);

#endif
