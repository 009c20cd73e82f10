/* stop_text.h -- ends a generated text before the first stop text in it; a stop text may span
 * several tokens. */
#ifndef PARALLEL_COMMANDS_STOP_TEXT_H
#define PARALLEL_COMMANDS_STOP_TEXT_H

#include "model/core/args.h"

#include <stdint.h>

/* The bytes of a text that are not printed yet, because a stop text may begin with them. */
typedef struct {
    const ArgList *stops; /* borrowed; no stop text is empty */
    char *held;           /* owned */
    size_t count, capacity;
    bool found; /* a stop text is complete; no bytes may follow */
} StopText;

/* Appends `size` bytes of the text and returns how many bytes of `held` can be printed: those
 * before the first complete stop text, or, if there is none, those that cannot be the beginning of
 * a stop text. Bytes are examined one by one, and the text ends at the first complete stop text, so
 * the result does not depend on how the text is divided into tokens. If several stop texts end at
 * the same byte, the longest is used. After printing the bytes, call stop_text_drop. */
size_t stop_text_add(StopText *text, const uint8_t *bytes, int64_t size);
/* Removes the first `n` held bytes. */
void stop_text_drop(StopText *text, size_t n);
/* Forgets the text, for another one with the same stop texts. */
void stop_text_restart(StopText *text);
void stop_text_free(StopText *text);

#endif
