/* gguf_reader.c -- reads GGUF files for tests. See gguf_reader.h. */
#include "tests/support/model/gguf_reader.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

enum { ALIGNMENT = 32, U32 = 4, INT32 = 5, FLOAT32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

/* A position in the file. */
typedef struct {
    const unsigned char *at, *end;
} Cursor;

static const unsigned char *take(Cursor *c, uint64_t n)
{
    if ((uint64_t)(c->end - c->at) < n) fail_msg("the file ends within its header");
    c->at += n;
    return c->at - n;
}

static uint64_t number(Cursor *c, int size)
{
    const unsigned char *p = take(c, (uint64_t)size);
    uint64_t value = 0;
    for (int i = size; i-- > 0;)
        value = value << 8 | p[i];
    return value;
}

/* Takes a string and stores it in out[0..n), which must have room. */
static void name_to(Cursor *c, char *out, size_t n)
{
    uint64_t length = number(c, 8);
    assert_in_range(length, 1, n - 1);
    memcpy(out, take(c, length), length);
    out[length] = '\0';
    assert_int_equal(strlen(out), length);
}

static void skip_value(Cursor *c, uint32_t type)
{
    if (type == STRING)
        take(c, number(c, 8));
    else if (type == BOOL)
        assert_in_range(*take(c, 1), 0, 1);
    else if (type == U32 || type == INT32 || type == FLOAT32)
        take(c, 4);
    else
        fail_msg("a value of type %u", type);
}

static void read_key(GgufFile *f, Cursor *c)
{
    GgufKey *k = &f->key[f->n_keys];
    name_to(c, k->name, sizeof k->name);
    if (gguf_has(f, k->name)) fail_msg("%s is there twice", k->name);
    k->type = k->of = (uint32_t)number(c, 4);
    k->count = 1;
    if (k->type == ARRAY) {
        k->of = (uint32_t)number(c, 4);
        k->count = number(c, 8);
    }
    k->value = c->at;
    for (uint64_t i = 0; i < k->count; i++)
        skip_value(c, k->of);
    f->n_keys++;
}

/* Reads the description of a tensor; returns the size of its data. *offset is set to their place.
 */
static uint64_t read_info(GgufFile *f, Cursor *c, uint64_t *offset)
{
    GgufInfo *t = &f->tensor[f->n_tensors];
    name_to(c, t->name, sizeof t->name);
    for (int i = 0; i < f->n_tensors; i++)
        assert_string_not_equal(f->tensor[i].name, t->name);
    t->ndim = (uint32_t)number(c, 4);
    assert_in_range(t->ndim, 1, 4);
    uint64_t bytes = 1;
    for (uint32_t d = 0; d < t->ndim; d++) {
        t->dim[d] = number(c, 8);
        assert_in_range(t->dim[d], 1, 1 << 20);
        bytes *= t->dim[d];
    }
    uint64_t type = number(c, 4);
    if (type != 0 && type != 1 && type != 30) fail_msg("%s has type %d", t->name, (int)type);
    t->dtype = type == 0 ? F32 : type == 1 ? F16 : BF16;
    *offset = number(c, 8);
    f->n_tensors++;
    return bytes * dtype_size(t->dtype);
}

/* Takes zeros up to the next multiple of the alignment. */
static void take_padding(const GgufFile *f, Cursor *c)
{
    while ((c->at - (const unsigned char *)f->bytes) % ALIGNMENT != 0)
        assert_int_equal(*take(c, 1), 0);
}

void gguf_read(GgufFile *f, const char *path)
{
    char err[512];
    uint64_t offset[GGUF_MOST_TENSORS], bytes[GGUF_MOST_TENSORS];
    *f = (GgufFile){0};
    if (!file_read(path, &f->bytes, &f->size, NULL, err, sizeof err)) fail_msg("%s", err);
    const unsigned char *start = (const unsigned char *)f->bytes;
    Cursor c = {start, start + f->size};
    assert_memory_equal(take(&c, 4), "GGUF", 4);
    assert_int_equal(number(&c, 4), 3);
    int n_tensors = (int)number(&c, 8), n_keys = (int)number(&c, 8);
    assert_in_range(n_tensors, 1, GGUF_MOST_TENSORS);
    assert_in_range(n_keys, 1, GGUF_MOST_KEYS);
    while (f->n_keys < n_keys)
        read_key(f, &c);
    for (int i = 0; i < n_tensors; i++)
        bytes[i] = read_info(f, &c, &offset[i]);
    take_padding(f, &c);
    const unsigned char *data = c.at;
    for (int i = 0; i < n_tensors; i++) {
        assert_int_equal(c.at - data, offset[i]);
        f->tensor[i].data = take(&c, bytes[i]);
        take_padding(f, &c);
    }
    assert_ptr_equal(c.at, c.end);
}

void gguf_close(GgufFile *f)
{
    free(f->bytes);
    *f = (GgufFile){0};
}

/* ---- values ---------------------------------------------------------------------------------- */

static const GgufKey *find(const GgufFile *f, const char *key)
{
    for (int i = 0; i < f->n_keys; i++)
        if (strcmp(f->key[i].name, key) == 0) return &f->key[i];
    return NULL;
}

/* Returns a cursor at element `i` of a key, which must have these types. */
static Cursor cursor_at(const GgufFile *f, const char *key, uint32_t type, uint32_t of, int64_t i)
{
    const GgufKey *k = find(f, key);
    if (k == NULL) fail_msg("there is no key %s", key);
    if (k->type != type || k->of != of) fail_msg("%s has type %u of %u", key, k->type, k->of);
    assert_in_range(i, 0, k->count - 1);
    Cursor c = {k->value, (const unsigned char *)f->bytes + f->size};
    for (int64_t skipped = 0; skipped < i; skipped++)
        skip_value(&c, of);
    return c;
}

static char *string_here(Cursor c)
{
    uint64_t n = number(&c, 8);
    return text_format("%.*s", (int)n, (const char *)take(&c, n));
}

bool gguf_has(const GgufFile *f, const char *key)
{
    return find(f, key) != NULL;
}

uint32_t gguf_u32(const GgufFile *f, const char *key)
{
    Cursor c = cursor_at(f, key, U32, U32, 0);
    return (uint32_t)number(&c, 4);
}

float gguf_f32(const GgufFile *f, const char *key)
{
    Cursor c = cursor_at(f, key, FLOAT32, FLOAT32, 0);
    return f32_from_bits((uint32_t)number(&c, 4));
}

bool gguf_bool(const GgufFile *f, const char *key)
{
    Cursor c = cursor_at(f, key, BOOL, BOOL, 0);
    return number(&c, 1) == 1;
}

char *gguf_string(const GgufFile *f, const char *key)
{
    return string_here(cursor_at(f, key, STRING, STRING, 0));
}

int64_t gguf_count(const GgufFile *f, const char *key)
{
    const GgufKey *k = find(f, key);
    if (k == NULL || k->type != ARRAY) fail_msg("there is no array %s", key);
    return (int64_t)k->count;
}

char *gguf_string_at(const GgufFile *f, const char *key, int64_t i)
{
    return string_here(cursor_at(f, key, ARRAY, STRING, i));
}

float gguf_f32_at(const GgufFile *f, const char *key, int64_t i)
{
    Cursor c = cursor_at(f, key, ARRAY, FLOAT32, i);
    return f32_from_bits((uint32_t)number(&c, 4));
}

int32_t gguf_i32_at(const GgufFile *f, const char *key, int64_t i)
{
    Cursor c = cursor_at(f, key, ARRAY, INT32, i);
    return (int32_t)number(&c, 4);
}

const GgufInfo *gguf_tensor(const GgufFile *f, const char *name)
{
    for (int i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensor[i].name, name) == 0) return &f->tensor[i];
    fail_msg("there is no tensor %s", name);
    return NULL;
}
