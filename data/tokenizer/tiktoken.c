/* tiktoken.c -- reads .tiktoken files; see tiktoken.h.
 *
 * tiktoken joins any two neighbours whose joined bytes are a token, the pair with the lowest rank
 * first. The last two parts that are joined into a given token are always the same: until then,
 * nothing has been joined across the token's ends, so its bytes were joined as if they stood alone.
 * So the file is converted to one merge per token, found by encoding the token's own bytes. A token
 * that cannot be reached in this way is still found if it is a whole word (ignore_merges). */
#include "data/tokenizer/tiktoken.h"

#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is known about a file that has `lines` lines, not counting empty ones. */
typedef struct {
    int64_t lines;
    TokenizerRules rules;
    const SpecialName *special;
    int n_specials;
} KnownFile;

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const SpecialName r50k_specials[] = {{END_OF_TEXT, 50256}};
static const SpecialName cl100k_specials[] = {{END_OF_TEXT, 100257},
                                              {"<|fim_prefix|>", 100258},
                                              {"<|fim_middle|>", 100259},
                                              {"<|fim_suffix|>", 100260},
                                              {"<|endofprompt|>", 100276}};
static const SpecialName llama3_specials[] = {{"<|begin_of_text|>", 128000},
                                              {"<|end_of_text|>", 128001},
                                              {"<|finetune_right_pad_id|>", 128004},
                                              {"<|start_header_id|>", 128006},
                                              {"<|end_header_id|>", 128007},
                                              {"<|eom_id|>", 128008},
                                              {"<|eot_id|>", 128009},
                                              {"<|python_tag|>", 128010}};
static const SpecialName qwen_specials[] = {
    {END_OF_TEXT, 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}};

static const KnownFile known_files[] = {
    {50256, {.split = SPLIT_GPT2}, r50k_specials, COUNT(r50k_specials)},
    {50280, {.split = SPLIT_GPT2}, r50k_specials, COUNT(r50k_specials)},
    {100256, {.split = SPLIT_LLAMA3}, cl100k_specials, COUNT(cl100k_specials)},
    {128000, {.split = SPLIT_LLAMA3}, llama3_specials, COUNT(llama3_specials)},
    {151643, {.split = SPLIT_QWEN2, .compose = true}, qwen_specials, COUNT(qwen_specials)},
};

/* Llama 3's ids from 128000 to 128255 are all special; those without a name of their own are
 * reserved. */
enum { LLAMA3_LINES = 128000, LLAMA3_RESERVED = 256 };

/* ---- lines ----------------------------------------------------------------------------------- */

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes the base64 text [from, to) to `out`. Returns the number of bytes; -1 if it is damaged. */
static int64_t base64_decode(const char *from, const char *to, uint8_t *out)
{
    int64_t size = 0;
    if ((to - from) % 4 != 0) return -1;
    for (const char *p = from; p < to; p += 4) {
        bool last = p + 4 == to;
        int padding = !last ? 0 : p[2] == '=' && p[3] == '=' ? 2 : p[3] == '=';
        uint32_t bits = 0;
        for (int i = 0; i < 4; i++) {
            int digit = i >= 4 - padding ? 0 : base64_digit(p[i]);
            if (digit < 0) return -1;
            bits = bits << 6 | (uint32_t)digit;
        }
        if ((padding == 1 && (bits & 0xFF)) || (padding == 2 && (bits & 0xFFFF))) return -1;
        for (int i = 0; i < 3 - padding; i++)
            out[size++] = (uint8_t)(bits >> (16 - 8 * i));
    }
    return size;
}

/* Reads a decimal number of at most 8 digits, up to `end`. Returns -1 if it is anything else. */
static int64_t read_rank(const char *from, const char *end)
{
    int64_t rank = 0;
    if (from == end || end - from > 8) return -1;
    for (const char *p = from; p < end; p++) {
        if (*p < '0' || *p > '9') return -1;
        rank = 10 * rank + (*p - '0');
    }
    return rank;
}

/* Sets *end to the end of the line at `from`, without CR, and returns the next line. */
static const char *line_end(const char *from, const char *stop, const char **end)
{
    const char *feed = memchr(from, '\n', (size_t)(stop - from));
    *end = feed ? feed : stop;
    const char *next = feed ? feed + 1 : stop;
    if (*end > from && (*end)[-1] == '\r') (*end)--;
    return next;
}

bool tiktoken_recognised(const char *text, size_t length)
{
    const char *end;
    if (length == 0) return false;
    line_end(text, text + length, &end);
    const char *space = memchr(text, ' ', (size_t)(end - text));
    if (space == NULL || space == text || (space - text) % 4 != 0) return false;
    for (const char *p = text; p < space; p++)
        if (base64_digit(*p) < 0 && *p != '=') return false;
    return read_rank(space + 1, end) >= 0;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* Reads all lines into the tokenizer. Ranks must be ascending. */
static bool read_lines(const char *name, const char *text, size_t length, Tokenizer *t, char *err,
                       size_t n)
{
    int64_t line_number = 0, last_rank = -1;
    for (const char *line = text, *stop = text + length, *next; line < stop; line = next) {
        const char *end, *space;
        next = line_end(line, stop, &end);
        line_number++;
        if (end == line) continue;
        space = memchr(line, ' ', (size_t)(end - line));
        int64_t rank = space ? read_rank(space + 1, end) : -1, size = -1;
        uint8_t *bytes = must_alloc((size_t)(end - line) + 1);
        if (rank > last_rank && rank < t->vocab_size && t->kind[rank] == TOKEN_UNUSED)
            size = base64_decode(line, space, bytes);
        bool added = false, good = size > 0 && size <= MAX_TOKEN_BYTES;
        if (good) {
            int64_t w = word_table_add(&t->texts, bytes, size, &added);
            if (added) t->text_id[w] = (int32_t)rank;
            if (added) vocabulary_set_token(t, (int32_t)rank, TOKEN_TEXT, bytes, size);
        }
        free(bytes);
        if (!added)
            return error_set(err, n, "%s:%lld: not a new token in base64 and its rank", name,
                             (long long)line_number);
        last_rank = rank;
    }
    for (int b = 0; b < N_BYTES; b++)
        if (t->byte_id[b] < 0)
            return error_set(err, n, "%s has no token for the byte 0x%02x", name, b);
    return true;
}

/* Returns the id of the token whose bytes are bytes [from, to) of token `id`; INT32_MAX if there is
 * none. */
static int32_t joined_id(const Tokenizer *t, int32_t id, int64_t from, int64_t to)
{
    int64_t w = word_table_find(&t->texts, t->bytes + t->start[id] + from, to - from);
    return w < 0 ? INT32_MAX : t->text_id[w];
}

/* Encodes a token's own bytes by ranks, except for the last merge, which would make the token
 * itself. Returns whether two parts remain, and sets their ids. A token has few bytes, so each step
 * compares all pairs. Tokens of thousands of bytes, which no real file has, are found only as whole
 * words. */
static bool last_merge(const Tokenizer *t, int32_t id, Merge *merge)
{
    enum { MOST = 512 };
    int64_t size = t->length[id], start[MOST + 1];
    int32_t pair[MOST]; /* the id that part i and the next one make */
    int64_t parts = size;
    if (size > MOST) return false;
    for (int64_t i = 0; i <= size; i++)
        start[i] = i;
    for (int64_t i = 0; i + 1 < parts; i++)
        pair[i] = joined_id(t, id, start[i], start[i + 2]);
    while (parts > 2) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < parts; i++)
            if (pair[i] < pair[best]) best = i;
        if (pair[best] == INT32_MAX) return false;
        memmove(start + best + 1, start + best + 2, (size_t)(parts - best - 1) * sizeof *start);
        memmove(pair + best, pair + best + 1, (size_t)(parts - best - 2) * sizeof *pair);
        parts--;
        if (best > 0) pair[best - 1] = joined_id(t, id, start[best - 1], start[best + 1]);
        if (best + 1 < parts) pair[best] = joined_id(t, id, start[best], start[best + 2]);
    }
    merge->left = joined_id(t, id, start[0], start[1]);
    merge->right = joined_id(t, id, start[1], start[2]);
    return parts == 2;
}

static int64_t count_lines(const char *text, size_t length)
{
    int64_t count = 0;
    for (const char *line = text, *stop = text + length, *end; line < stop;) {
        const char *next = line_end(line, stop, &end);
        count += end > line;
        line = next;
    }
    return count;
}

bool tiktoken_parse_as(const char *name, const char *text, size_t length, TokenizerRules rules,
                       const SpecialName *special, int n_specials, Tokenizer **out, char *err,
                       size_t n)
{
    int64_t lines = count_lines(text, length), n_ids = lines;
    *out = NULL;
    for (int i = 0; i < n_specials; i++)
        if (special[i].id >= n_ids) n_ids = (int64_t)special[i].id + 1;
    if (lines < N_BYTES || n_ids > MAX_VOCAB)
        return error_set(err, n, "%s has %lld tokens: a byte-level vocabulary has 256 to %d", name,
                         (long long)lines, (int)MAX_VOCAB);
    /* If no special id is above the ranks, one is between them (p50k_base). `lines` does not count
     * this gap, so there is one more id. */
    if (n_ids == lines && n_specials > 0) n_ids++;
    Tokenizer *t = vocabulary_create(n_ids, lines);
    t->rules = rules;
    t->rules.ignore_merges = true;
    word_table_init(&t->texts);
    t->text_id = must_alloc((size_t)n_ids * sizeof *t->text_id);
    for (int i = 0; i < n_specials; i++)
        vocabulary_add_special(t, special[i].id, special[i].name);
    bool good = read_lines(name, text, length, t, err, n);
    for (int32_t id = 0; good && id < t->vocab_size; id++) {
        Merge m;
        if (t->kind[id] == TOKEN_TEXT && t->length[id] > 1 && last_merge(t, id, &m))
            vocabulary_add_merge(t, m.left, m.right, id);
    }
    word_table_free(&t->texts); /* vocabulary_finish creates it again */
    free(t->text_id);
    t->text_id = NULL;
    if (good && t->n_merges == 0) good = error_set(err, n, "%s has no merges", name);
    if (good) {
        vocabulary_finish(t);
        *out = t;
    } else {
        tokenizer_free(t);
    }
    return good;
}

/* Makes Llama 3's tokenizer, whose reserved tokens have no entry in the table. */
static bool parse_llama3(const char *name, const char *text, size_t length, const KnownFile *f,
                         Tokenizer **out, char *err, size_t n)
{
    SpecialName all[LLAMA3_RESERVED];
    char names[LLAMA3_RESERVED][40];
    for (int i = 0, reserved = 0; i < LLAMA3_RESERVED; i++) {
        all[i].id = LLAMA3_LINES + i;
        all[i].name = NULL;
        for (int k = 0; k < f->n_specials; k++)
            if (f->special[k].id == all[i].id) all[i].name = f->special[k].name;
        if (all[i].name != NULL) continue;
        snprintf(names[i], sizeof names[i], "<|reserved_special_token_%d|>", reserved++);
        all[i].name = names[i];
    }
    return tiktoken_parse_as(name, text, length, f->rules, all, LLAMA3_RESERVED, out, err, n);
}

bool tiktoken_parse(const char *name, const char *text, size_t length, Tokenizer **out, char *err,
                    size_t n)
{
    int64_t lines = count_lines(text, length);
    *out = NULL;
    for (int i = 0; i < COUNT(known_files); i++) {
        const KnownFile *f = &known_files[i];
        if (f->lines != lines) continue;
        if (lines == LLAMA3_LINES) return parse_llama3(name, text, length, f, out, err, n);
        return tiktoken_parse_as(name, text, length, f->rules, f->special, f->n_specials, out, err,
                                 n);
    }
    return error_set(err, n,
                     "%s has %lld tokens, and does not say by which pattern it splits text; files "
                     "of 50256 (r50k_base), 50280 (p50k_base), 100256 (cl100k_base), 128000 "
                     "(Llama 3) and 151643 (Qwen) are known: give a tokenizer.json",
                     name, (long long)lines);
}
