/* nfc.h -- Unicode's canonical composition (NFC). The tokenizers of Qwen and of Pythia normalize
 * text to NFC before they split it into words. */
#ifndef DATA_TOKENIZER_NFC_H
#define DATA_TOKENIZER_NFC_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that grow as needed. Initialise it with {0} and free `byte`. */
typedef struct {
    uint8_t *byte;
    int64_t size, capacity;
} ByteBuffer;

void byte_buffer_add(ByteBuffer *b, const void *bytes, int64_t size);

typedef struct Nfc Nfc;

/* Creates the tables, which do not change afterwards. */
Nfc *nfc_create(void);
void nfc_free(Nfc *nfc);
/* Returns the offset of the first character that composition may change, move or combine with the
 * one before it; n if there is none. Up to there, s is already composed. */
int64_t nfc_first_change(const Nfc *nfc, const uint8_t *s, int64_t n);
/* Appends the composed text. Bytes that are not valid UTF-8 stay as they are. */
void nfc_compose(const Nfc *nfc, const uint8_t *s, int64_t n, ByteBuffer *out);

#endif
