/* manifest_parse.c -- parses manifest.json and accepts only what manifest_print writes. See
 * manifest.h. */
#include "parallel/checkpoint/manifest_fields.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Skips the key `key` and the colon after it; any other key is an error. */
static bool expect_key(JsonCursor *j, const char *key)
{
    char *found = json_take_string(j);
    bool good = found != NULL &&
                (strcmp(found, key) == 0 || json_error(j, "the key \"%s\" is needed here", key));
    free(found);
    return good && json_expect(j, ':');
}

/* Parses "key": "text" and the comma after it. */
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

/* Parses a string of exactly eight hexadecimal digits. */
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

/* Parses a hexadecimal float and accepts only the spelling that printf's %a gives it. Printing the
 * parsed value therefore gives the same text again. */
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

/* The largest count that is accepted, far above that of any real run. A resumed run adds to these
 * counts, and the sums must not overflow. */
#define MOST_COUNTED (INT64_C(1) << 53)

/* Returns whether a run could have saved this state. The manifest's checksum detects flipped bits;
 * this check detects impossible values that somebody wrote with a matching checksum. */
static bool state_possible(const StepState *s)
{
    const int64_t counts[] = {s->samples,     s->tokens,       s->steps,         s->updates,
                              s->skipped,     s->skips_in_row, s->hysteresis,    s->scale_steps,
                              s->stop,        s->spikes,       s->spikes_in_row, s->skipped_tokens,
                              s->data_offset, s->rollbacks,    s->n_losses};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] < 0 || counts[i] > MOST_COUNTED) return false;
    return s->last_overflow >= -1 && s->last_overflow <= MOST_COUNTED && isfinite(s->loss_scale) &&
           s->loss_scale > 0;
}

/* Parses a struct in the form in which print_fields writes it. */
static bool parse_fields(JsonCursor *j, const char *key, void *values, const ManifestField *field,
                         int count)
{
    if (!expect_key(j, key) || !json_expect(j, '{')) return false;
    for (int i = 0; i < count; i++) {
        /* The fields must be in this order, and none may be missing. If missing fields were set to
         * 0, a run could resume at step 0 with the weights of a later step. */
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

/* Parses n_losses losses. */
static bool parse_losses(JsonCursor *j, StepState *s)
{
    if (!expect_key(j, "losses") || !json_expect(j, '[')) return false;
    for (int64_t i = 0; i < s->n_losses && i < LOSS_WINDOW; i++) {
        if (i && !json_expect(j, ',')) return false;
        if (!parse_double(j, &s->losses[i])) return false;
        if (!isfinite(s->losses[i])) return json_error(j, "a loss that is not finite");
    }
    return json_expect(j, ']') && json_expect(j, ',');
}

static bool parse_state(JsonCursor *j, int version, StepState *state)
{
    int fields = version < 3 ? MANIFEST_STATE_FIELDS_2 : MANIFEST_STATE_FIELDS;
    return parse_fields(j, "state", state, manifest_state_field, fields) &&
           (state_possible(state) || json_error(j, "a state that no run reaches")) &&
           (version < 3 || parse_losses(j, state));
}

/* Returns whether the sizes of the grid are possible and consistent. */
static bool world_possible(const ManifestWorld *w)
{
    const int64_t sizes[] = {w->pp, w->dp, w->cp, w->tp}, most = 1 << 24;
    int64_t ranks = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        /* Checked before each multiplication, so it cannot overflow. */
        if (sizes[i] < 1 || sizes[i] > most || ranks > most) return false;
        ranks *= sizes[i];
    }
    return ranks == w->ranks && w->zero_stage >= 0 && w->zero_stage <= 3 && w->writers >= 1 &&
           w->writers <= w->ranks;
}

static bool parse_world(JsonCursor *j, Manifest *m)
{
    /* A manifest of version 1 has no section `world`: the program then trained with a single rank.
     */
    m->world = (ManifestWorld){
        .ranks = 1, .pp = 1, .dp = 1, .cp = 1, .tp = 1, .zero_stage = 0, .writers = 1};
    if (m->version == 1) return true;
    return parse_fields(j, "world", &m->world, manifest_world_field, MANIFEST_WORLD_FIELDS) &&
           (world_possible(&m->world) || json_error(j, "a world that cannot be"));
}

/* Returns the number of files of the part whose first file is called `name`; 0 if no first file has
 * this name. File names are generated here and compared, never used as they are in the text, so no
 * file outside the folder is ever opened. */
static int files_of_part(CheckpointPart part, const char *name, int most)
{
    /* Tries every name that this program can generate, because a number parsed from the text could
     * not be trusted. */
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
    /* The shortest header has eight bytes of length and "{}". */
    if (file->header_bytes < 10 || file->bytes < file->header_bytes)
        return json_error(j, "sizes of %s that cannot be", file->name);
    return true;
}

/* Parses the files of one part. The name of the first file determines how many there are, and so
 * all other names. */
static bool parse_part(JsonCursor *j, Manifest *m, CheckpointPart part)
{
    int files = 1;
    for (int f = 0; f < files; f++) {
        ManifestFile *file = &m->file[m->n_files];
        if (m->n_files > 0 && !json_expect(j, ',')) return false;
        char *name = json_take_string(j);
        if (name == NULL) return false;
        if (f == 0) files = files_of_part(part, name, m->version == 1 ? 1 : CHECKPOINT_MAX_WRITERS);
        /* If the first name is not a valid one, `files` is 0 and the error message below asks for
         * the name of a single file. */
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

/* Parses a tensor's file and dtype. Tensors are listed file by file, so the tensor is in the same
 * file as the previous one or in a later one. */
static bool parse_file_and_type(JsonCursor *j, const Manifest *m, ManifestTensor *t)
{
    char *file = NULL, *type = NULL;
    bool good = parse_text(j, "file", &file) && parse_text(j, "dtype", &type);
    /* n_tensors already includes this tensor, so the previous one is at n_tensors - 2. */
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

/* Parses one checksum for each chunk that the shape implies. A checksum takes at least ten
 * characters ("01234567" with its quotes). If the rest of the text is too short for them, the shape
 * must be wrong, and no memory is allocated for it. */
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
    /* Names are printed in messages, headers and indexes, so quotes, slashes and control characters
     * are refused. */
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
        /* n_tensors is incremented before parsing, so manifest_free also frees a tensor that is
         * only partly parsed. */
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
    /* The version is checked before everything else. A later version may have changed any of it,
     * and an "unknown key" error would wrongly suggest damage. */
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
    /* check_crc has compared the checksum already; here only its position and form are checked. */
    uint32_t crc;
    return good && parse_world(j, m) && parse_state(j, m->version, &m->state) &&
           parse_text(j, "code", &m->code) && parse_text(j, "machine", &m->machine) &&
           parse_text(j, "data", &m->data) && parse_text(j, "config", &m->config) &&
           parse_files(j, m) && parse_tensors(j, m) && expect_key(j, "manifest_crc32c") &&
           parse_crc(j, &crc) && json_expect(j, '}') && json_expect_end(j);
}

/* Checks that the last line is byte for byte what manifest_print would write after these contents.
 * This comes before any parsing, so a file with a flipped byte is always reported as damaged. */
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
