/* nfc.h -- Unicode's canonical composition (NFC), which the tokenizers of Qwen and of Pythia apply
 * to text before they split it into words. */
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

/* Makes the tables; they do not change afterwards. */
Nfc *nfc_create(void);
void nfc_free(Nfc *nfc);
/* Returns the offset of the first character that composition may change or move, or with which it
 * may change the one before; n if there is none, so that s[0..n) is composed already. */
int64_t nfc_first_change(const Nfc *nfc, const uint8_t *s, int64_t n);
/* Appends the composed text. Bytes that are not valid UTF-8 stay as they are. */
void nfc_compose(const Nfc *nfc, const uint8_t *s, int64_t n, ByteBuffer *out);

#endif
