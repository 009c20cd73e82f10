/* vocab_bpe.c -- reads GPT-2's own files: vocab.bpe, which fully defines the tokenizer, and
 * encoder.json, which is only compared with it. */
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_table.h"
#include "model/core/check.h"
#include "model/core/json_tree.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>

int64_t bytes_of_chars(char *text, int64_t size)
{
    uint8_t *s = (uint8_t *)text;
    int64_t n = 0;
    for (int64_t at = 0; at < size;) {
        uint32_t code;
        int length = utf8_decode(s + at, size - at, &code);
        if (length == 0 || code > 256 + 67) return -1;
        int byte = code < 256 ? (int)code : byte_of_order(188 + (int)code - 256);
        if (char_of_byte(byte) != code) return -1;
        s[n++] = (uint8_t)byte;
        at += length;
    }
    return n;
}

char *chars_of_token(const Tokenizer *t, int32_t id)
{
    char *text = must_alloc(3 * (size_t)t->length[id] + 1), *end = text;
    for (int32_t i = 0; i < t->length[id]; i++) {
        uint8_t byte = t->bytes[t->start[id] + i];
        if (!t->rules.characters)
            end += utf8_encode(char_of_byte(byte), end);
        else if (byte == ' ')
            end += utf8_encode(0x2581, end);
        else
            *end++ = (char)byte;
    }
    *end = 0;
    return text;
}

/* Returns the id of the token that the characters [from, to) spell, or -1 if there is none. */
static int32_t id_of_chars(const WordTable *tokens, const char *from, const char *to)
{
    char buffer[1024];
    int64_t size = to - from;
    if (size < 1 || size >= (int64_t)sizeof buffer) return -1;
    memcpy(buffer, from, (size_t)size);
    size = bytes_of_chars(buffer, size);
    return size < 0 ? -1 : (int32_t)word_table_find(tokens, (uint8_t *)buffer, size);
}

/* Reads one line "left right" as a merge and adds its token to `tokens`. Returns false if a part is
 * not a known token or if the merged token already exists. Each part has fewer than 1024 characters
 * (see id_of_chars), so both together fit into `joined`. */
static bool read_merge_line(WordTable *tokens, const char *line, const char *end, Merge *m)
{
    const char *space = memchr(line, ' ', (size_t)(end - line));
    if (space == NULL) return false;
    m->left = id_of_chars(tokens, line, space);
    m->right = id_of_chars(tokens, space + 1, end);
    if (m->left < 0 || m->right < 0) return false;
    Word l = tokens->word[m->left], r = tokens->word[m->right];
    uint8_t joined[2048];
    memcpy(joined, tokens->bytes + l.start, (size_t)l.size);
    memcpy(joined + l.size, tokens->bytes + r.start, (size_t)r.size);
    bool added;
    word_table_add(tokens, joined, l.size + r.size, &added);
    return added;
}

bool vocabulary_parse_merges(const char *name, const char *text, size_t length, Tokenizer **out,
                             char *err, size_t n)
{
    /* A token's number in the table is its id: first the bytes in GPT-2's order, then one token per
     * merge. So a line may only name tokens made by earlier lines. */
    WordTable tokens;
    word_table_init(&tokens);
    for (int k = 0; k < N_BYTES; k++)
        word_table_add(&tokens, &(uint8_t){(uint8_t)byte_of_order(k)}, 1, NULL);
    /* The shortest line, "a b", has 4 bytes including LF, which the last line may lack. */
    Merge *merge = must_alloc((length / 4 + 1) * sizeof *merge);
    int64_t count = 0, line_number = 0;
    bool good = true;
    for (const char *line = text, *stop = text + length; good && line < stop;) {
        const char *end = memchr(line, '\n', (size_t)(stop - line));
        if (end == NULL) end = stop;
        const char *last = end > line && end[-1] == '\r' ? end - 1 : end;
        line_number++;
        /* Only the first line can be a comment: "#" is also a token, and merges may begin with
         * it. */
        bool header = line_number == 1 && last - line >= 8 && memcmp(line, "#version", 8) == 0;
        if (!header && last > line) {
            good = read_merge_line(&tokens, line, last, &merge[count]);
            count += good;
        }
        line = end + 1;
    }
    word_table_free(&tokens);
    if (!good)
        error_set(err, n, "%s:%lld: not a merge of two known tokens into a new one", name,
                  (long long)line_number);
    else if (count == 0)
        good = error_set(err, n, "%s has no merges", name);
    else
        good = tokenizer_from_merges(merge, count, out, err, n);
    free(merge);
    return good;
}

bool tokenizer_check_vocab(const Tokenizer *t, const char *name, const char *text, size_t length,
                           char *err, size_t n)
{
    cJSON *json = json_tree_parse(text, length);
    if (!cJSON_IsObject(json)) {
        cJSON_Delete(json);
        return error_set(err, n, "%s is not a JSON object of tokens and ids", name);
    }
    /* Merges alone define the ids. A vocabulary with other numbers belongs to another tokenizer, so
     * the model's embedding rows would be those of other tokens. */
    bool good = true;
    int64_t count = 0;
    for (cJSON *entry = json->child; entry != NULL && good; entry = entry->next, count++) {
        /* Compare as a double, because 1.5 and 1e300 are numbers but not ids. */
        double id = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        bool inside = id >= 0 && id < t->vocab_size;
        int32_t i = inside ? (int32_t)id : -1;
        char *have = tokenizer_spelling(t, i);
        good = inside && i == id && strcmp(have, entry->string) == 0;
        if (!good)
            error_set(err, n, "%s gives %s the id %.0f, the merges give that id to \"%s\"", name,
                      entry->string, id, have);
        free(have);
    }
    cJSON_Delete(json);
    if (good && count != t->vocab_size)
        return error_set(err, n, "%s has %lld tokens, the merges make %d", name, (long long)count,
                         t->vocab_size);
    return good;
}
