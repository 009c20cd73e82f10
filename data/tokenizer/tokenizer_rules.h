/* tokenizer_rules.h -- reads and writes the parts of a tokenizer.json that define how text becomes
 * symbols: normalizer, pre_tokenizer and flags of the model. */
#ifndef DATA_TOKENIZER_TOKENIZER_RULES_H
#define DATA_TOKENIZER_TOKENIZER_RULES_H

#include "data/tokenizer/vocabulary.h"

#include <cJSON.h>
#include <stdio.h>

/* Returns the value of a key; NULL if it is missing or null, which have the same meaning in these
 * files. */
const cJSON *rules_key(const cJSON *object, const char *name);
bool rules_true(const cJSON *object, const char *name, bool when_absent);

/* Reads the rules of the file `name`. Returns false, with an error message that names the key, if
 * the file asks for anything that this program would do differently. */
bool rules_read(const char *name, const cJSON *root, TokenizerRules *rules, char *err, size_t n);

/* Prints normalizer and pre_tokenizer, each followed by a comma. */
void rules_print(const TokenizerRules *rules, FILE *to);
/* Prints the decoder, followed by a comma. */
void rules_print_decoder(const TokenizerRules *rules, FILE *to);

#endif
