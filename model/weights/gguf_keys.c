/* gguf_keys.c -- writes the metadata of a GGUF file: the model's properties and its tokenizer. See
 * gguf.h. */
#include "model/core/check.h"
#include "model/weights/gguf_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

static void append(GgufBytes *b, const void *data, size_t n)
{
    if (b->count + n > b->capacity) {
        b->capacity = 2 * (b->count + n);
        b->data = must_realloc(b->data, b->capacity);
    }
    memcpy(b->data + b->count, data, n);
    b->count += n;
}

void gguf_put(GgufBytes *b, uint64_t value, size_t size)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    append(b, bytes, size);
}

void gguf_put_string(GgufBytes *b, const char *text)
{
    size_t n = strlen(text);
    gguf_put(b, n, 8);
    append(b, text, n);
}

static void put_key(GgufBytes *b, const char *key, GgufType type)
{
    gguf_put_string(b, key);
    gguf_put(b, type, 4);
    b->keys++;
}

void gguf_key_u32(GgufBytes *b, const char *key, int64_t value)
{
    CHECK(value >= 0 && value <= UINT32_MAX, "%s: %lld", key, (long long)value);
    put_key(b, key, GGUF_U32);
    gguf_put(b, (uint64_t)value, 4);
}

void gguf_key_f32(GgufBytes *b, const char *key, double value)
{
    put_key(b, key, GGUF_F32);
    gguf_put(b, f32_bits((float)value), 4);
}

void gguf_key_bool(GgufBytes *b, const char *key, bool value)
{
    put_key(b, key, GGUF_BOOL);
    gguf_put(b, value, 1);
}

void gguf_key_string(GgufBytes *b, const char *key, const char *value)
{
    put_key(b, key, GGUF_STRING);
    gguf_put_string(b, value);
}

void gguf_key_array(GgufBytes *b, const char *key, GgufType type, int64_t count)
{
    put_key(b, key, GGUF_ARRAY);
    gguf_put(b, type, 4);
    gguf_put(b, (uint64_t)count, 8);
}

void gguf_bytes_free(GgufBytes *b)
{
    free(b->data);
    *b = (GgufBytes){0};
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Returns llama.cpp's number for a file whose matrices have this type (general.file_type). */
static int64_t file_type(DType dtype)
{
    return dtype == F32 ? 0 : dtype == F16 ? 1 : 32;
}

/* Appends a key that begins with the name of the architecture. */
static void arch_u32(GgufBytes *b, const Architecture *m, const char *key, int64_t value)
{
    char *full = text_format("%s.%s", architecture_name(m->kind), key);
    gguf_key_u32(b, full, value);
    free(full);
}

static void arch_f32(GgufBytes *b, const Architecture *m, const char *key, double value)
{
    char *full = text_format("%s.%s", architecture_name(m->kind), key);
    gguf_key_f32(b, full, value);
    free(full);
}

/* ---- the tokenizer --------------------------------------------------------------------------- */

/* The kinds of tokens, with their numbers in the file. */
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

static int number_of(TokenKind kind)
{
    switch (kind) {
    case TOKEN_UNUSED: return UNUSED;
    case TOKEN_TEXT: return NORMAL;
    case TOKEN_BYTE: return BYTE;
    case TOKEN_ADDED: return USER_DEFINED;
    case TOKEN_SPECIAL: return CONTROL;
    }
    return UNUSED;
}

static TokenKind kind_of(const Tokenizer *t, int64_t id)
{
    return id < tokenizer_vocab_size(t) ? tokenizer_kind(t, (int32_t)id) : TOKEN_UNUSED;
}

/* Appends the name and the kind of each id. An id without a token needs a unique name, too, such as
 * "[PAD259]". */
static void put_tokens(GgufBytes *b, const Tokenizer *t, int64_t vocab)
{
    gguf_key_array(b, "tokenizer.ggml.tokens", GGUF_STRING, vocab);
    for (int64_t id = 0; id < vocab; id++) {
        char *text = kind_of(t, id) == TOKEN_UNUSED ? text_format("[PAD%lld]", (long long)id)
                                                    : tokenizer_spelling(t, (int32_t)id);
        gguf_put_string(b, text);
        free(text);
    }
    gguf_key_array(b, "tokenizer.ggml.token_type", GGUF_I32, vocab);
    for (int64_t id = 0; id < vocab; id++)
        gguf_put(b, (uint64_t)number_of(kind_of(t, id)), 4);
}

static void put_merges(GgufBytes *b, const Tokenizer *t)
{
    int64_t count = tokenizer_merge_count(t);
    gguf_key_array(b, "tokenizer.ggml.merges", GGUF_STRING, count);
    for (int64_t k = 0; k < count; k++) {
        Merge merge = tokenizer_merge(t, k);
        char *left = tokenizer_spelling(t, merge.left), *right = tokenizer_spelling(t, merge.right);
        char *both = text_format("%s %s", left, right);
        gguf_put_string(b, both);
        free(left);
        free(right);
        free(both);
    }
}

/* Appends the scores of all ids, which replace the list of merges if merges join characters.
 * Programs that read the file choose the next pair by the score of the token that it makes, the
 * highest score first. So a token's score is -(k + 1), where k is the number of the first merge
 * that makes it. */
static void put_scores(GgufBytes *b, const Tokenizer *t, int64_t vocab)
{
    int64_t merges = tokenizer_merge_count(t);
    float *score = must_calloc((size_t)vocab, sizeof *score);
    for (int64_t k = merges; k-- > 0;)
        score[tokenizer_merged(t, k)] = (float)-(k + 1);
    gguf_key_array(b, "tokenizer.ggml.scores", GGUF_F32, vocab);
    for (int64_t id = 0; id < vocab; id++)
        gguf_put(b, f32_bits(score[id]), 4);
    free(score);
}

static void tokenizer_keys(GgufBytes *b, const GgufModel *model)
{
    const Tokenizer *t = model->tokenizer;
    bool space;
    if (t == NULL) {
        gguf_key_string(b, "tokenizer.ggml.model", "none");
        return;
    }
    /* "gpt2" means byte-level BPE of every kind, "llama" that merges join characters.
     * tokenizer.ggml.pre names the pattern that splits text into words. */
    bool characters = tokenizer_joins_characters(t, &space);
    gguf_key_string(b, "tokenizer.ggml.model", characters ? "llama" : "gpt2");
    gguf_key_string(b, "tokenizer.ggml.pre", characters ? "default" : tokenizer_pattern_name(t));
    put_tokens(b, t, model->model->vocab);
    if (characters) {
        put_scores(b, t, model->model->vocab);
        gguf_key_bool(b, "tokenizer.ggml.add_space_prefix", space);
    } else {
        put_merges(b, t);
    }
    if (model->bos >= 0) gguf_key_u32(b, "tokenizer.ggml.bos_token_id", model->bos);
    if (model->eos >= 0) gguf_key_u32(b, "tokenizer.ggml.eos_token_id", model->eos);
    /* Training and `generate` put a token before a text if the tokenizer asks for it, and none
     * after a prompt. Without these keys, llama.cpp would decide by the name of the pattern. */
    gguf_key_bool(b, "tokenizer.ggml.add_bos_token", tokenizer_begin_of_text(t) >= 0);
    gguf_key_bool(b, "tokenizer.ggml.add_eos_token", false);
}

/* ---- all ------------------------------------------------------------------------------------- */

void gguf_keys(GgufBytes *b, const GgufModel *model)
{
    const Architecture *m = model->model;
    gguf_key_string(b, "general.architecture", architecture_name(m->kind));
    gguf_key_string(b, "general.name", model->name);
    gguf_key_u32(b, "general.file_type", file_type(model->dtype));
    gguf_key_u32(b, "general.quantization_version", 2);
    arch_u32(b, m, "vocab_size", m->vocab);
    arch_u32(b, m, "context_length", m->positions);
    arch_u32(b, m, "embedding_length", m->hidden);
    arch_u32(b, m, "block_count", m->layers);
    arch_u32(b, m, "feed_forward_length", m->mlp);
    arch_u32(b, m, "attention.head_count", m->heads);
    if (m->kind == ARCHITECTURE_GPT2) {
        arch_f32(b, m, "attention.layer_norm_epsilon", m->norm_epsilon);
    } else {
        arch_u32(b, m, "attention.head_count_kv", m->kv_heads);
        arch_u32(b, m, "attention.key_length", m->head_dim);
        arch_u32(b, m, "attention.value_length", m->head_dim);
        arch_f32(b, m, "attention.layer_norm_rms_epsilon", m->norm_epsilon);
        arch_u32(b, m, "rope.dimension_count", m->head_dim);
        arch_f32(b, m, "rope.freq_base", m->rope_theta);
    }
    tokenizer_keys(b, model);
}
