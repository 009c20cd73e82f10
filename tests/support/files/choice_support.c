/* choice_support.c -- see choice_support.h. */
#include "tests/support/files/choice_support.h"

#include "data/tokens/choice_file.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <stdlib.h>
#include <string.h>

uint8_t *choice_bytes(const uint16_t *word, int64_t words, int32_t examples, int32_t longest,
                      size_t *size)
{
    int32_t header[CHOICE_FILE_HEADER / 4] = {CHOICE_FILE_MAGIC, 1, examples, longest};
    *size = CHOICE_FILE_HEADER + 2 * (size_t)words;
    uint8_t *bytes = must_alloc(*size);
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + CHOICE_FILE_HEADER, word, 2 * (size_t)words);
    return bytes;
}

uint8_t *choice_drawn(int32_t examples, int64_t vocab, int most, size_t *size)
{
    uint16_t *word = must_calloc((size_t)(examples * (6 + 6 * most)), sizeof *word);
    int64_t at = 0, longest = 0;
    for (uint64_t i = 0; i < (uint64_t)examples; i++) {
        uint16_t *example = word + at;
        uint16_t rows = (uint16_t)(2 + drawn(1, i) % 4);
        uint64_t half = (uint64_t)most / 2;
        memcpy(example, (uint16_t[]){65535, 0, (uint16_t)i, (uint16_t)(drawn(2, i) % rows), rows},
               5 * sizeof *example);
        at += 5;
        for (uint64_t part = 0; part <= rows; part++) {
            uint64_t n = 1 + drawn(3 + part, i) % half;
            word[at++] = (uint16_t)n;
            for (uint64_t k = 0; k < n; k++)
                word[at++] = (uint16_t)(drawn(100 + part, 1000 * i + k) % (uint64_t)vocab);
        }
        int64_t bytes = 2 * (word + at - example);
        example[1] = (uint16_t)bytes;
        if (bytes > longest) longest = bytes;
    }
    uint8_t *file = choice_bytes(word, at, examples, (int32_t)longest, size);
    free(word);
    return file;
}
