/* safetensors.c -- implements safetensors.h: writes and parses headers of safetensors files. */
#include "model/weights/safetensors.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/fs.h"
#include "model/core/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_METADATA 256 /* key-value pairs in one header */

bool safetensors_name_valid(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n > 0 && n <= SAFETENSORS_MAX_NAME && strspn(name, allowed) == n;
}

bool safetensors_size(DType dtype, int ndim, const int64_t *dim, int64_t *bytes)
{
    int64_t size = (int64_t)dtype_size(dtype);
    for (int i = 0; i < ndim; i++)
        if (dim[i] < 0 || __builtin_mul_overflow(size, dim[i], &size)) return false;
    *bytes = size;
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Sorts the entries by the size of their type, larger ones first, and sets their offsets without
 * gaps. So each tensor begins at a multiple of its element size. */
static void lay_out(SafetensorsEntry *entry, int n)
{
    SafetensorsEntry *sorted = must_calloc((size_t)n + 1, sizeof *sorted);
    int64_t at = 0;
    int placed = 0;
    for (size_t size = 8; size > 0; size /= 2)
        for (int i = 0; i < n; i++) {
            if (dtype_size(entry[i].dtype) != size) continue;
            sorted[placed] = entry[i];
            sorted[placed].offset = at;
            at += entry[i].bytes;
            placed++;
        }
    CHECK(placed == n, "%d of %d tensors have a size of 8, 4, 2 or 1 bytes", placed, n);
    memcpy(entry, sorted, (size_t)n * sizeof *sorted);
    free(sorted);
}

void safetensors_print_shape(FILE *to, int ndim, const int64_t *dim, const char *comma)
{
    fputc('[', to);
    for (int d = 0; d < ndim; d++)
        fprintf(to, "%s%lld", d ? comma : "", (long long)dim[d]);
    fputc(']', to);
}

static void print_entry(FILE *to, const SafetensorsEntry *e)
{
    json_print_string(to, e->name);
    fprintf(to, ":{\"dtype\":\"%s\",\"shape\":", dtype_info[e->dtype].safetensors);
    safetensors_print_shape(to, e->ndim, e->dim, ",");
    fprintf(to, ",\"data_offsets\":[%lld,%lld]}", (long long)e->offset,
            (long long)(e->offset + e->bytes));
}

char *safetensors_header(SafetensorsEntry *entry, int n, const char *const *metadata,
                         int n_metadata, size_t *bytes)
{
    lay_out(entry, n);
    char *text;
    FILE *to = text_stream(&text, bytes);
    fputs("01234567{\"__metadata__\":{", to); /* 8 bytes to be replaced by the header's length */
    for (int i = 0; i < n_metadata; i++) {
        if (i) fputc(',', to);
        json_print_string(to, metadata[2 * i]);
        fputc(':', to);
        json_print_string(to, metadata[2 * i + 1]);
    }
    fputc('}', to);
    for (int i = 0; i < n; i++) {
        fputc(',', to);
        print_entry(to, &entry[i]);
    }
    fputc('}', to);
    /* Pad with spaces to a multiple of 8, so that the data after the header is aligned. */
    while (ftello(to) % 8 != 0)
        fputc(' ', to);
    CHECK(fclose(to) == 0, "no memory for the header of %d tensors", n);
    /* Write byte by byte: the format is little-endian on every machine. */
    for (size_t i = 0, length = *bytes - 8; i < 8; i++, length >>= 8)
        text[i] = (char)(length & 0xff);
    return text;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool parse_dtype(JsonCursor *j, DType *out)
{
    char *name = json_take_string(j);
    if (name == NULL) return false;
    /* Old files have causal masks of type BOOL, whose elements have the size of a U8. The masks are
     * not weights and are left out later, so U8 will do. */
    bool mask = strcmp(name, "BOOL") == 0;
    if (mask) *out = U8;
    bool known = mask || dtype_from_safetensors(name, out) ||
                 json_error(j, "the type %.40s is not one that this program reads", name);
    free(name);
    return known;
}

bool safetensors_parse_shape(JsonCursor *j, int64_t least, SafetensorsEntry *e)
{
    if (!json_expect(j, '[')) return false;
    if (json_take(j, ']')) return true;
    do {
        if (e->ndim == 4) return json_error(j, "a tensor of more than four dimensions");
        if (!json_take_int(j, &e->dim[e->ndim])) return false;
        if (e->dim[e->ndim++] < least)
            return json_error(j, least > 0 ? "a dimension below one" : "a negative dimension");
    } while (json_take(j, ','));
    return json_expect(j, ']');
}

static bool parse_offsets(JsonCursor *j, SafetensorsEntry *e)
{
    int64_t begin, end;
    bool good = json_expect(j, '[') && json_take_int(j, &begin) && json_expect(j, ',') &&
                json_take_int(j, &end) && json_expect(j, ']');
    if (!good) return false;
    if (begin < 0 || end < begin) return json_error(j, "offsets that run backwards");
    e->offset = begin;
    e->bytes = end - begin;
    return true;
}

/* Parses {"dtype": ..., "shape": ..., "data_offsets": ...}; the keys may come in any order, each
 * exactly once. */
static bool parse_entry(JsonCursor *j, SafetensorsEntry *e)
{
    static const char *const keys[3] = {"dtype", "shape", "data_offsets"};
    int seen = 0;
    if (!safetensors_name_valid(e->name))
        return json_error(j, "a tensor's name is not made of letters, digits, '.', '_' and '-'");
    if (!json_expect(j, '{')) return false;
    do {
        char *key = json_take_string(j);
        if (key == NULL) return false;
        int k = 0;
        while (k < 3 && strcmp(keys[k], key) != 0)
            k++;
        free(key);
        /* Refuse repeated and unknown keys. Another reader might use the last of two equal keys or
         * know a key that this one does not, and so see different tensors. */
        if (k == 3 || (seen & 1 << k))
            return json_error(j, "%s: an unknown or repeated key", e->name);
        seen |= 1 << k;
        if (!json_expect(j, ':')) return false;
        bool good = k == 0   ? parse_dtype(j, &e->dtype)
                    : k == 1 ? safetensors_parse_shape(j, 0, e)
                             : parse_offsets(j, e);
        if (!good) return false;
    } while (json_take(j, ','));
    if (seen != 7) return json_error(j, "%s: dtype, shape or data_offsets is missing", e->name);
    int64_t bytes;
    if (!safetensors_size(e->dtype, e->ndim, e->dim, &bytes))
        return json_error(j, "%s: its size overflows", e->name);
    /* Shape and offsets both give the size, and a reader may use either, so they must agree. */
    if (bytes != e->bytes)
        return json_error(j, "%s: its shape takes %lld bytes, its offsets leave %lld", e->name,
                          (long long)bytes, (long long)e->bytes);
    return json_expect(j, '}');
}

/* Appends a text with its NUL byte. */
static void add_metadata(Safetensors *s, const char *text)
{
    size_t n = strlen(text) + 1;
    s->metadata = must_realloc(s->metadata, s->metadata_bytes + n);
    memcpy(s->metadata + s->metadata_bytes, text, n);
    s->metadata_bytes += n;
}

/* Parses {"key": "value", ...}. Keys must differ. The number of keys is limited, because each is
 * compared with all keys before it. */
static bool parse_metadata(JsonCursor *j, Safetensors *s)
{
    if (s->metadata != NULL) return json_error(j, "__metadata__ is there twice");
    s->metadata = must_strdup(""); /* not NULL, so that a second "__metadata__" is refused */
    if (!json_expect(j, '{')) return false;
    if (json_take(j, '}')) return true;
    int pairs = 0;
    do {
        char *key = json_take_string(j);
        char *value = key && json_expect(j, ':') ? json_take_string(j) : NULL;
        bool good = value != NULL;
        if (good && (++pairs > MAX_METADATA || safetensors_metadata(s, key) != NULL))
            good = json_error(j, "metadata with a repeated key, or too much of it");
        if (good) {
            add_metadata(s, key);
            add_metadata(s, value);
        }
        free(key);
        free(value);
        if (!good) return false;
    } while (json_take(j, ','));
    return json_expect(j, '}');
}

static bool parse_all(JsonCursor *j, Safetensors *s)
{
    int capacity = 0;
    if (!json_expect(j, '{')) return false;
    if (json_take(j, '}')) return json_expect_end(j);
    do {
        char *name = json_take_string(j);
        if (name == NULL) return false;
        if (strcmp(name, "__metadata__") == 0) {
            free(name);
            if (!json_expect(j, ':') || !parse_metadata(j, s)) return false;
            continue;
        }
        /* Double the capacity, because a header of 64 MiB may have a million tensors. */
        if (s->n == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            s->entry = must_realloc(s->entry, (size_t)capacity * sizeof *s->entry);
        }
        SafetensorsEntry *e = &s->entry[s->n++];
        *e = (SafetensorsEntry){.name = name};
        if (!json_expect(j, ':') || !parse_entry(j, e)) return false;
    } while (json_take(j, ','));
    return json_expect(j, '}') && json_expect_end(j);
}

static int by_place(const void *a, const void *b)
{
    const SafetensorsEntry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    const SafetensorsEntry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sorts the entries by their position in the data and checks that each begins where the one before
 * it ends, so that they cover all the data without overlaps or hidden bytes. Then compares the
 * names in sorted order, because there may be a million. */
static bool check_cover(Safetensors *s, char *err, size_t err_n)
{
    if (s->n > 0) qsort(s->entry, (size_t)s->n, sizeof *s->entry, by_place);
    int64_t at = 0;
    for (int i = 0; i < s->n; at += s->entry[i++].bytes)
        if (s->entry[i].offset != at)
            return error_set(
                err, err_n, "%s starts at byte %lld of the data, the tensor before it ends at %lld",
                s->entry[i].name, (long long)s->entry[i].offset, (long long)at);
    if (at != s->data_bytes)
        return error_set(err, err_n, "the tensors take %lld bytes, the file holds %lld",
                         (long long)at, (long long)s->data_bytes);
    const SafetensorsEntry **named = must_calloc((size_t)s->n + 1, sizeof *named);
    for (int i = 0; i < s->n; i++)
        named[i] = &s->entry[i];
    qsort(named, (size_t)s->n, sizeof *named, by_name);
    bool good = true;
    for (int i = 1; good && i < s->n; i++)
        if (strcmp(named[i - 1]->name, named[i]->name) == 0)
            good = error_set(err, err_n, "%s is there twice", named[i]->name);
    free(named);
    return good;
}

static int64_t little_endian(const void *bytes)
{
    const unsigned char *p = bytes;
    uint64_t value = 0;
    for (int i = 8; i-- > 0;)
        value = value << 8 | p[i];
    return value > INT64_MAX ? -1 : (int64_t)value;
}

/* Returns the length of the JSON text, read from the first 8 bytes. Returns -1 and sets err if it
 * is invalid. */
static int64_t json_length(const void *first8, int64_t file_bytes, char *err, size_t err_n)
{
    int64_t n = little_endian(first8);
    if (n >= 2 && n <= SAFETENSORS_MAX_HEADER && n <= file_bytes - 8) return n;
    error_set(err, err_n, "its header claims %lld bytes of a file of %lld (at most %lld are read)",
              (long long)n, (long long)file_bytes, (long long)SAFETENSORS_MAX_HEADER);
    return -1;
}

bool safetensors_parse(Safetensors *out, const void *header, size_t n, int64_t file_bytes,
                       char *err, size_t err_n)
{
    *out = (Safetensors){0};
    if (n < 8) return error_set(err, err_n, "%zu bytes are too few for a safetensors file", n);
    int64_t length = json_length(header, file_bytes, err, err_n);
    if (length < 0) return false;
    if ((size_t)length > n - 8) return error_set(err, err_n, "the header is cut off");
    const char *text = (const char *)header + 8;
    if (text[0] != '{') return error_set(err, err_n, "the header does not begin with {");
    JsonCursor j = {.start = text, .at = text, .end = text + length, .err = err, .n = err_n};
    out->data_at = 8 + length;
    out->data_bytes = file_bytes - out->data_at;
    if (parse_all(&j, out) && check_cover(out, err, err_n)) return true;
    safetensors_free(out);
    return false;
}

bool safetensors_read(Safetensors *out, int fd, int64_t file_bytes, const char *path,
                      uint32_t *header_crc, char *err, size_t n)
{
    char first8[8], why[512];
    int64_t length = -1;
    if (file_bytes < 8)
        return error_set(err, n, "%s is damaged: %lld bytes are too few for a safetensors file",
                         path, (long long)file_bytes);
    if (!fs_read_at(fd, first8, sizeof first8, 0, path, err, n)) return false;
    length = json_length(first8, file_bytes, why, sizeof why);
    if (length < 0) return error_set(err, n, "%s is damaged: %s", path, why);
    size_t bytes = 8 + (size_t)length;
    char *header = must_alloc(bytes);
    bool good = fs_read_at(fd, header, bytes, 0, path, err, n);
    if (good) {
        *header_crc = crc32c(0, header, bytes);
        good = safetensors_parse(out, header, bytes, file_bytes, why, sizeof why) ||
               error_set(err, n, "%s: its header is damaged: %s", path, why);
    }
    free(header);
    return good;
}

void safetensors_free(Safetensors *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->entry[i].name);
    free(s->entry);
    free(s->metadata);
    *s = (Safetensors){0};
}

const char *safetensors_metadata(const Safetensors *s, const char *key)
{
    const char *at = s->metadata, *end = s->metadata + s->metadata_bytes;
    while (at != end) {
        const char *value = at + strlen(at) + 1;
        if (strcmp(at, key) == 0) return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}
