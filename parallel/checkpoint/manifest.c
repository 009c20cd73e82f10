/* manifest.c -- see manifest.h. */
#include "parallel/checkpoint/manifest.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/hash.h"
#include "model/core/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_NAME "train.c checkpoint"

const char *const checkpoint_file_name[CHECKPOINT_FILES] = {"model.safetensors",
                                                            "optimizer.safetensors"};

/* The fields of StepState in the order in which they are written. */
static const struct {
    const char *name;
    size_t offset;
    bool is_double;
} state_field[] = {
    {"samples", offsetof(StepState, samples), false},
    {"tokens", offsetof(StepState, tokens), false},
    {"steps", offsetof(StepState, steps), false},
    {"updates", offsetof(StepState, updates), false},
    {"skipped", offsetof(StepState, skipped), false},
    {"skips_in_row", offsetof(StepState, skips_in_row), false},
    {"loss_scale", offsetof(StepState, loss_scale), true},
    {"hysteresis", offsetof(StepState, hysteresis), false},
    {"last_overflow", offsetof(StepState, last_overflow), false},
    {"scale_steps", offsetof(StepState, scale_steps), false},
    {"loss_seed", offsetof(StepState, loss_seed), true},
    {"stop", offsetof(StepState, stop), false},
};
#define STATE_FIELDS (sizeof state_field / sizeof *state_field)
/* All are of 8 bytes, so a field that is added to StepState and forgotten here does not compile. */
_Static_assert(STATE_FIELDS * 8 == sizeof(StepState), "a field of StepState is not saved");

bool manifest_save_id_valid(const char *text)
{
    uint64_t id;
    return hash_parse(text, SAVE_ID_DIGITS, &id);
}

int64_t manifest_chunk_bytes(const SafetensorsEntry *e)
{
    /* A row is all that the first dimension counts; a scalar and an empty tensor are one chunk. */
    int64_t row = e->ndim > 0 && e->dim[0] > 0 ? e->bytes / e->dim[0] : e->bytes;
    if (row <= 0) return e->bytes;
    int64_t rows = (MANIFEST_CHUNK_BYTES - 1) / row + 1;
    return rows > e->bytes / row ? e->bytes : rows * row;
}

int manifest_chunk_count(const SafetensorsEntry *e)
{
    int64_t chunk = manifest_chunk_bytes(e);
    return chunk == 0 ? 0 : (int)((e->bytes - 1) / chunk + 1);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void print_text(FILE *to, const char *key, const char *value)
{
    fprintf(to, "\"%s\": ", key);
    json_print_string(to, value);
    fputs(",\n", to);
}

static void print_state(FILE *to, const StepState *state)
{
    fputs("\"state\": {", to);
    for (size_t i = 0; i < STATE_FIELDS; i++) {
        const char *field = (const char *)state + state_field[i].offset;
        fprintf(to, "%s\"%s\": ", i ? ", " : "", state_field[i].name);
        double d;
        int64_t n;
        memcpy(&d, field, sizeof d);
        memcpy(&n, field, sizeof n);
        if (state_field[i].is_double)
            fprintf(to, "\"%a\"", d);
        else
            fprintf(to, "%lld", (long long)n);
    }
    fputs("},\n", to);
}

static void print_files(FILE *to, const Manifest *m)
{
    fputs("\"files\": {\n", to);
    for (int f = 0; f < CHECKPOINT_FILES; f++)
        fprintf(
            to,
            "  \"%s\": {\"bytes\": %lld, \"header_bytes\": %lld, \"header_crc32c\": \"%08x\"}%s\n",
            checkpoint_file_name[f], (long long)m->file[f].bytes,
            (long long)m->file[f].header_bytes, m->file[f].header_crc,
            f + 1 < CHECKPOINT_FILES ? "," : "");
    fputs("},\n", to);
}

static void print_tensor(FILE *to, const ManifestTensor *t)
{
    const SafetensorsEntry *e = &t->entry;
    fprintf(to, "  {\"name\": \"%s\", \"file\": \"%s\", \"dtype\": \"%s\", \"shape\": ", e->name,
            checkpoint_file_name[t->file], dtype_info[e->dtype].safetensors);
    safetensors_print_shape(to, e, ", ");
    fprintf(to, ", \"offset\": %lld, \"chunks\": [", (long long)e->offset);
    for (int c = 0; c < t->n_chunks; c++)
        fprintf(to, "%s\"%08x\"", c ? ", " : "", t->chunk[c]);
    fputs("]}", to);
}

char *manifest_print(const Manifest *m, size_t *bytes)
{
    char *text;
    FILE *to = text_stream(&text, bytes);
    fputs("{\n", to);
    print_text(to, "format", FORMAT_NAME);
    fprintf(to, "\"version\": %d,\n", MANIFEST_VERSION);
    print_text(to, "save_id", m->save_id);
    print_state(to, &m->state);
    print_text(to, "code", m->code);
    print_text(to, "machine", m->machine);
    print_text(to, "data", m->data);
    print_text(to, "config", m->config);
    print_files(to, m);
    fputs("\"tensors\": [\n", to);
    for (int i = 0; i < m->n_tensors; i++) {
        if (i) fputs(",\n", to);
        print_tensor(to, &m->tensor[i]);
    }
    fputs("\n],\n", to);
    /* The checksum is of all that stands in front of its own line; flushing brings it to `text`. */
    CHECK(fflush(to) == 0, "no memory for the manifest of %d tensors", m->n_tensors);
    fprintf(to, "\"manifest_crc32c\": \"%08x\"\n}\n", crc32c(0, text, *bytes));
    CHECK(fclose(to) == 0, "no memory for the manifest of %d tensors", m->n_tensors);
    return text;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Goes past "key": and refuses any other key. */
static bool expect_key(JsonCursor *j, const char *key)
{
    char *found = json_take_string(j);
    bool good = found != NULL &&
                (strcmp(found, key) == 0 || json_error(j, "the key \"%s\" is needed here", key));
    free(found);
    return good && json_expect(j, ':');
}

/* "key": "text" and the comma behind it. */
static bool parse_text(JsonCursor *j, const char *key, char **out)
{
    if (!expect_key(j, key)) return false;
    *out = json_take_string(j);
    return *out != NULL && json_expect(j, ',');
}

static bool parse_int(JsonCursor *j, const char *key, int64_t *out)
{
    return expect_key(j, key) && json_take_int(j, out);
}

/* A string of exactly eight hexadecimal digits. */
static bool parse_crc(JsonCursor *j, uint32_t *out)
{
    char *text = json_take_string(j);
    if (text == NULL) return false;
    uint64_t crc = 0;
    bool good = hash_parse(text, 8, &crc);
    *out = (uint32_t)crc;
    free(text);
    return good || json_error(j, "a checksum has eight hexadecimal digits");
}

/* A hexadecimal float, and only in the spelling that printf gives it: what is written again from
 * this state is then the same text. */
static bool parse_double(JsonCursor *j, double *out)
{
    char *text = json_take_string(j), again[40];
    if (text == NULL) return false;
    *out = strtod(text, NULL);
    snprintf(again, sizeof again, "%a", *out);
    bool good = strcmp(text, again) == 0;
    free(text);
    return good || json_error(j, "a number is needed here, as printf's %%a writes it");
}

/* The largest count that is accepted, far beyond any run's: a run goes on by adding to these
 * numbers, which must not overflow. */
#define MOST_COUNTED (INT64_C(1) << 53)

/* Whether a run can have saved this state. The manifest's checksum finds flipped bits; this finds
 * what somebody wrote with a checksum that fits. */
static bool state_possible(const StepState *s)
{
    const int64_t counts[] = {s->samples,    s->tokens,      s->steps,
                              s->updates,    s->skipped,     s->skips_in_row,
                              s->hysteresis, s->scale_steps, s->stop};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] < 0 || counts[i] > MOST_COUNTED) return false;
    return s->last_overflow >= -1 && s->last_overflow <= MOST_COUNTED && isfinite(s->loss_scale) &&
           s->loss_scale > 0;
}

static bool parse_state(JsonCursor *j, StepState *state)
{
    if (!expect_key(j, "state") || !json_expect(j, '{')) return false;
    for (size_t i = 0; i < STATE_FIELDS; i++) {
        void *field = (char *)state + state_field[i].offset;
        int64_t n = 0;
        double d = 0;
        if (i && !json_expect(j, ',')) return false;
        if (!expect_key(j, state_field[i].name)) return false;
        if (!(state_field[i].is_double ? parse_double(j, &d) : json_take_int(j, &n))) return false;
        if (state_field[i].is_double)
            memcpy(field, &d, sizeof d);
        else
            memcpy(field, &n, sizeof n);
    }
    bool good = json_expect(j, '}') && json_expect(j, ',');
    return good && (state_possible(state) || json_error(j, "a state that no run reaches"));
}

static bool parse_files(JsonCursor *j, Manifest *m)
{
    if (!expect_key(j, "files") || !json_expect(j, '{')) return false;
    for (int f = 0; f < CHECKPOINT_FILES; f++) {
        ManifestFile *file = &m->file[f];
        bool good = (f == 0 || json_expect(j, ',')) && expect_key(j, checkpoint_file_name[f]) &&
                    json_expect(j, '{') && parse_int(j, "bytes", &file->bytes) &&
                    json_expect(j, ',') && parse_int(j, "header_bytes", &file->header_bytes) &&
                    json_expect(j, ',') && expect_key(j, "header_crc32c") &&
                    parse_crc(j, &file->header_crc) && json_expect(j, '}');
        if (!good) return false;
        if (file->header_bytes < 10 || file->bytes < file->header_bytes)
            return json_error(j, "sizes of %s that cannot be", checkpoint_file_name[f]);
    }
    return json_expect(j, '}') && json_expect(j, ',');
}

static bool parse_file_and_type(JsonCursor *j, ManifestTensor *t)
{
    char *file = NULL, *type = NULL;
    bool good = parse_text(j, "file", &file) && parse_text(j, "dtype", &type);
    int f = 0;
    while (good && f < CHECKPOINT_FILES && strcmp(file, checkpoint_file_name[f]) != 0)
        f++;
    bool known = good && f < CHECKPOINT_FILES && dtype_from_safetensors(type, &t->entry.dtype);
    free(file);
    free(type);
    t->file = (CheckpointFile)f;
    return known || (good && json_error(j, "an unknown file or type of a tensor"));
}

static bool parse_shape(JsonCursor *j, SafetensorsEntry *e)
{
    if (!expect_key(j, "shape") || !safetensors_parse_shape(j, 1, e)) return false;
    if (!safetensors_size(e->dtype, e->ndim, e->dim, &e->bytes))
        return json_error(j, "the size of a tensor overflows");
    return json_expect(j, ',');
}

/* As many checksums as the shape asks for. A checksum takes ten characters at least ("01234567" and
 * its quotes): where the rest of the text is too short for that many, the shape is a lie, and no
 * memory is allocated by it. */
static bool parse_chunks(JsonCursor *j, ManifestTensor *t)
{
    if (!expect_key(j, "chunks") || !json_expect(j, '[')) return false;
    int64_t chunk = manifest_chunk_bytes(&t->entry), needed = (t->entry.bytes - 1) / chunk + 1;
    if (needed > (j->end - j->at) / 10)
        return json_error(j, "%s: fewer checksums than chunks", t->entry.name);
    t->n_chunks = (int)needed;
    t->chunk = must_calloc((size_t)needed, sizeof *t->chunk);
    for (int i = 0; i < t->n_chunks; i++)
        if ((i && !json_expect(j, ',')) || !parse_crc(j, &t->chunk[i])) return false;
    return json_expect(j, ']');
}

static bool parse_tensor(JsonCursor *j, ManifestTensor *t)
{
    SafetensorsEntry *e = &t->entry;
    if (!json_expect(j, '{') || !parse_text(j, "name", &e->name)) return false;
    if (!safetensors_name_valid(e->name))
        return json_error(j, "a tensor's name is not made of letters, digits, '.', '_' and '-'");
    if (!parse_file_and_type(j, t) || !parse_shape(j, e)) return false;
    if (!parse_int(j, "offset", &e->offset) || !json_expect(j, ',')) return false;
    return parse_chunks(j, t) && json_expect(j, '}');
}

static bool parse_tensors(JsonCursor *j, Manifest *m)
{
    int capacity = 0;
    if (!expect_key(j, "tensors") || !json_expect(j, '[')) return false;
    if (json_take(j, ']')) return json_expect(j, ',');
    do {
        if (m->n_tensors == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            m->tensor = must_realloc(m->tensor, (size_t)capacity * sizeof *m->tensor);
        }
        m->tensor[m->n_tensors] = (ManifestTensor){0};
        if (!parse_tensor(j, &m->tensor[m->n_tensors++])) return false;
    } while (json_take(j, ','));
    return json_expect(j, ']') && json_expect(j, ',');
}

static bool parse_all(JsonCursor *j, Manifest *m)
{
    char *format = NULL, *save_id = NULL;
    int64_t version;
    bool good = json_expect(j, '{') && parse_text(j, "format", &format);
    if (good && strcmp(format, FORMAT_NAME) != 0)
        good = json_error(j, "this is not a " FORMAT_NAME);
    good = good && parse_int(j, "version", &version) && json_expect(j, ',');
    if (good && version != MANIFEST_VERSION)
        good = json_error(j, "a manifest of version %lld; this program reads version %d",
                          (long long)version, MANIFEST_VERSION);
    good = good && parse_text(j, "save_id", &save_id);
    if (good && !manifest_save_id_valid(save_id))
        good = json_error(j, "a save id has %d hexadecimal digits", SAVE_ID_DIGITS);
    if (good) snprintf(m->save_id, sizeof m->save_id, "%s", save_id);
    free(format);
    free(save_id);
    uint32_t crc;
    return good && parse_state(j, &m->state) && parse_text(j, "code", &m->code) &&
           parse_text(j, "machine", &m->machine) && parse_text(j, "data", &m->data) &&
           parse_text(j, "config", &m->config) && parse_files(j, m) && parse_tensors(j, m) &&
           expect_key(j, "manifest_crc32c") && parse_crc(j, &crc) && json_expect(j, '}') &&
           json_expect_end(j);
}

/* The last line must be, to the byte, what the writer puts after these contents. This comes before
 * any parsing, so an ordinary damaged file is said to be one, whatever it would parse as. */
static bool check_crc(const char *text, size_t bytes, char *err, size_t n)
{
    char tail[64];
    size_t tail_bytes =
        (size_t)snprintf(tail, sizeof tail, "\"manifest_crc32c\": \"%08x\"\n}\n", 0u);
    if (bytes < tail_bytes) return error_set(err, n, "%zu bytes are too few", bytes);
    snprintf(tail, sizeof tail, "\"manifest_crc32c\": \"%08x\"\n}\n",
             crc32c(0, text, bytes - tail_bytes));
    if (memcmp(text + bytes - tail_bytes, tail, tail_bytes) == 0) return true;
    return error_set(err, n, "its checksum does not fit its contents");
}

bool manifest_parse(Manifest *out, const char *text, size_t bytes, char *err, size_t n)
{
    *out = (Manifest){0};
    JsonCursor j = {.start = text, .at = text, .end = text + bytes, .err = err, .n = n};
    if (check_crc(text, bytes, err, n) && parse_all(&j, out)) return true;
    manifest_free(out);
    return false;
}

void manifest_free(Manifest *m)
{
    for (int i = 0; i < m->n_tensors; i++) {
        free(m->tensor[i].entry.name);
        free(m->tensor[i].chunk);
    }
    free(m->tensor);
    free(m->config);
    free(m->machine);
    free(m->code);
    free(m->data);
    *m = (Manifest){0};
}
