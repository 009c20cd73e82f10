/* tokenizer_json.h -- reads a parsed tokenizer.json; private to data/tokenizer. */
#ifndef DATA_TOKENIZER_TOKENIZER_JSON_H
#define DATA_TOKENIZER_TOKENIZER_JSON_H

#include "data/tokenizer/tokenizer.h"

#include <cJSON.h>

/* Makes the tokenizer of the file `name`. Returns false and sets `err` if the file is damaged or
 * asks for anything that this program would do differently. */
bool json_tokenizer(const char *name, const cJSON *root, Tokenizer **out, char *err, size_t n);

#endif
