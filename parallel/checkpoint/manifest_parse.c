/* manifest_parse.c -- reading manifest.json strictly. See manifest.h. */
#include "parallel/checkpoint/manifest_fields.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Goes past "key": and refuses any other key. */
static bool expect_key(JsonCursor *j, const char *key)
{
    char *found = json_take_string(j);
    bool good = found != NULL &&
                (strcmp(found, key) == 0 || json_error(j, "the key \"%s\" is needed here", key));
    free(found);
    return good && json_expect(j, ':');
}

/* "key": "text" and the comma after it. */
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

/* A struct as print_fields writes it. */
static bool parse_fields(JsonCursor *j, const char *key, void *values, const ManifestField *field,
                         int count)
{
    if (!expect_key(j, key) || !json_expect(j, '{')) return false;
    for (int i = 0; i < count; i++) {
        /* In this order and none missing: a reader that filled gaps with zeros would resume at step
         * 0 with the weights of a later one. */
        void *at = (char *)values + field[i].offset;
        int64_t n = 0;
        double d = 0;
        if (i && !json_expect(j, ',')) return false;
        if (!expect_key(j, field[i].name)) return false;
        if (!(field[i].is_double ? parse_double(j, &d) : json_take_int(j, &n))) return false;
        if (field[i].is_double)
            memcpy(at, &d, sizeof d);
        else
            memcpy(at, &n, sizeof n);
    }
    return json_expect(j, '}') && json_expect(j, ',');
}

static bool parse_state(JsonCursor *j, StepState *state)
{
    return parse_fields(j, "state", state, manifest_state_field, MANIFEST_STATE_FIELDS) &&
           (state_possible(state) || json_error(j, "a state that no run reaches"));
}

/* Whether there can be such a world. No number of ranks is used for anything but to be printed. */
static bool world_possible(const ManifestWorld *w)
{
    const int64_t sizes[] = {w->pp, w->dp, w->cp, w->tp}, most = 1 << 24;
    int64_t ranks = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        /* Before each product, so that none overflows. */
        if (sizes[i] < 1 || sizes[i] > most || ranks > most) return false;
        ranks *= sizes[i];
    }
    return ranks == w->ranks && w->zero_stage >= 0 && w->zero_stage <= 3 && w->writers >= 1 &&
           w->writers <= w->ranks;
}

static bool parse_world(JsonCursor *j, Manifest *m)
{
    /* Version 1 is of the time when a single rank trained. */
    m->world = (ManifestWorld){
        .ranks = 1, .pp = 1, .dp = 1, .cp = 1, .tp = 1, .zero_stage = 0, .writers = 1};
    if (m->version == 1) return true;
    return parse_fields(j, "world", &m->world, manifest_world_field, MANIFEST_WORLD_FIELDS) &&
           (world_possible(&m->world) || json_error(j, "a world that cannot be"));
}

/* How many files a part has whose first is called `name`: 0 if no first file is called so. Names
 * are made, never taken, so that nothing outside the folder is ever opened. */
static int files_of_part(CheckpointPart part, const char *name, int most)
{
    /* All names that this program can make are tried: a number that was parsed out of the text
     * would be trusted. */
    for (int files = 1; files <= most; files++) {
        char made[CHECKPOINT_FILE_NAME];
        checkpoint_file_name(made, part, 0, files);
        if (strcmp(made, name) == 0) return files;
    }
    return 0;
}

static bool parse_file(JsonCursor *j, ManifestFile *file)
{
    bool good = json_expect(j, ':') && json_expect(j, '{') && parse_int(j, "bytes", &file->bytes) &&
                json_expect(j, ',') && parse_int(j, "header_bytes", &file->header_bytes) &&
                json_expect(j, ',') && expect_key(j, "header_crc32c") &&
                parse_crc(j, &file->header_crc) && json_expect(j, '}');
    if (!good) return false;
    /* The shortest header is eight bytes of length and "{}". */
    if (file->header_bytes < 10 || file->bytes < file->header_bytes)
        return json_error(j, "sizes of %s that cannot be", file->name);
    return true;
}

/* The files of one part: their number follows from the first one's name, the other names from
 * that. */
static bool parse_part(JsonCursor *j, Manifest *m, CheckpointPart part)
{
    int files = 1;
    for (int f = 0; f < files; f++) {
        ManifestFile *file = &m->file[m->n_files];
        if (m->n_files > 0 && !json_expect(j, ',')) return false;
        char *name = json_take_string(j);
        if (name == NULL) return false;
        if (f == 0) files = files_of_part(part, name, m->version == 1 ? 1 : CHECKPOINT_MAX_WRITERS);
        /* Where the first name is unknown, `files` is 0: the sentence then asks for the name of an
         * only file. */
        file->part = part;
        checkpoint_file_name(file->name, part, f, files ? files : 1);
        bool named = files > 0 && strcmp(name, file->name) == 0;
        free(name);
        if (!named) return json_error(j, "the file \"%s\" is needed here", file->name);
        if (!parse_file(j, file)) return false;
        m->n_files++;
    }
    return true;
}

static bool parse_files(JsonCursor *j, Manifest *m)
{
    m->file = must_calloc(CHECKPOINT_PARTS * CHECKPOINT_MAX_WRITERS, sizeof *m->file);
    if (!expect_key(j, "files") || !json_expect(j, '{')) return false;
    for (int part = 0; part < CHECKPOINT_PARTS; part++)
        if (!parse_part(j, m, (CheckpointPart)part)) return false;
    return json_expect(j, '}') && json_expect(j, ',');
}

/* Tensors are listed file by file, so this one is in the file of the tensor before it or in a later
 * one. */
static bool parse_file_and_type(JsonCursor *j, const Manifest *m, ManifestTensor *t)
{
    char *file = NULL, *type = NULL;
    bool good = parse_text(j, "file", &file) && parse_text(j, "dtype", &type);
    /* This tensor is counted already: the one before it is at n_tensors - 2. */
    int f = m->n_tensors > 1 ? m->tensor[m->n_tensors - 2].file : 0;
    while (good && f < m->n_files && strcmp(file, m->file[f].name) != 0)
        f++;
    bool known = good && f < m->n_files && dtype_from_safetensors(type, &t->entry.dtype);
    free(file);
    free(type);
    t->file = f;
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

static bool parse_tensor(JsonCursor *j, const Manifest *m, ManifestTensor *t)
{
    SafetensorsEntry *e = &t->entry;
    if (!json_expect(j, '{') || !parse_text(j, "name", &e->name)) return false;
    /* Names go into sentences, headers and indexes: no quote, no slash, no control character. */
    if (!safetensors_name_valid(e->name))
        return json_error(j, "a tensor's name is not made of letters, digits, '.', '_' and '-'");
    if (!parse_file_and_type(j, m, t) || !parse_shape(j, e)) return false;
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
        /* Counted before it is parsed, so that manifest_free finds what a refused one holds. */
        m->tensor[m->n_tensors] = (ManifestTensor){0};
        m->n_tensors++;
        if (!parse_tensor(j, m, &m->tensor[m->n_tensors - 1])) return false;
    } while (json_take(j, ','));
    return json_expect(j, ']') && json_expect(j, ',');
}

static bool parse_all(JsonCursor *j, Manifest *m)
{
    char *format = NULL, *save_id = NULL;
    int64_t version = 0;
    bool good = json_expect(j, '{') && parse_text(j, "format", &format);
    if (good && strcmp(format, MANIFEST_FORMAT) != 0)
        good = json_error(j, "this is not a " MANIFEST_FORMAT);
    good = good && parse_int(j, "version", &version) && json_expect(j, ',');
    /* Before anything else is looked at: a later version may have changed all of it, and "unknown
     * key" would send the reader to look for damage. */
    if (good && (version < 1 || version > MANIFEST_VERSION))
        good = json_error(j, "a manifest of version %lld; this program reads versions 1 to %d",
                          (long long)version, MANIFEST_VERSION);
    if (good) m->version = (int)version;
    good = good && parse_text(j, "save_id", &save_id);
    if (good && !manifest_save_id_valid(save_id))
        good = json_error(j, "a save id has %d hexadecimal digits", SAVE_ID_DIGITS);
    if (good) snprintf(m->save_id, sizeof m->save_id, "%s", save_id);
    free(format);
    free(save_id);
    /* The checksum has been compared (check_crc); here only its place and form count. */
    uint32_t crc;
    return good && parse_world(j, m) && parse_state(j, &m->state) &&
           parse_text(j, "code", &m->code) && parse_text(j, "machine", &m->machine) &&
           parse_text(j, "data", &m->data) && parse_text(j, "config", &m->config) &&
           parse_files(j, m) && parse_tensors(j, m) && expect_key(j, "manifest_crc32c") &&
           parse_crc(j, &crc) && json_expect(j, '}') && json_expect_end(j);
}

/* The last line must be, to the byte, what the writer puts after these contents. This comes before
 * any parsing, so a file with a flipped byte is called damaged, whatever it would parse as. */
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
