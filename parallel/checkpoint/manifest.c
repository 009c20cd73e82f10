/* manifest.c -- prints manifest.json and the indexes of a checkpoint, and defines its file names.
 * See manifest.h. */
#include "parallel/checkpoint/manifest_fields.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/hash.h"
#include "model/core/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const ManifestField manifest_state_field[] = {
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
    {"spikes", offsetof(StepState, spikes), false},
    {"spikes_in_row", offsetof(StepState, spikes_in_row), false},
    {"skipped_tokens", offsetof(StepState, skipped_tokens), false},
    {"data_offset", offsetof(StepState, data_offset), false},
    {"rollbacks", offsetof(StepState, rollbacks), false},
    {"n_losses", offsetof(StepState, n_losses), false},
};
/* Every field has 8 bytes, so this fails to compile if a field is added to StepState and not to the
 * list above. The list `losses` comes after these fields. */
_Static_assert((MANIFEST_STATE_FIELDS + LOSS_WINDOW) * 8 == sizeof(StepState),
               "a field of StepState is not saved");

const ManifestField manifest_world_field[] = {
    {"ranks", offsetof(ManifestWorld, ranks), false},
    {"pp", offsetof(ManifestWorld, pp), false},
    {"dp", offsetof(ManifestWorld, dp), false},
    {"cp", offsetof(ManifestWorld, cp), false},
    {"tp", offsetof(ManifestWorld, tp), false},
    {"zero_stage", offsetof(ManifestWorld, zero_stage), false},
    {"writers", offsetof(ManifestWorld, writers), false},
};
_Static_assert(MANIFEST_WORLD_FIELDS * 8 == sizeof(ManifestWorld), "a field is not saved");

/* ---- names ----------------------------------------------------------------------------------- */

static const char *const part_stem[CHECKPOINT_PARTS] = {"model", "optimizer"};

void checkpoint_file_name(char out[CHECKPOINT_FILE_NAME], CheckpointPart part, int file, int files)
{
    if (files == 1)
        snprintf(out, CHECKPOINT_FILE_NAME, "%s.safetensors", part_stem[part]);
    else
        snprintf(out, CHECKPOINT_FILE_NAME, "%s-%05d-of-%05d.safetensors", part_stem[part],
                 file + 1, files);
}

const char *checkpoint_index_name(CheckpointPart part)
{
    static const char *const name[CHECKPOINT_PARTS] = {"model.safetensors.index.json",
                                                       "optimizer.safetensors.index.json"};
    return name[part];
}

bool manifest_save_id_valid(const char *text)
{
    uint64_t id;
    return hash_parse(text, SAVE_ID_DIGITS, &id);
}

int64_t manifest_chunk_bytes(const SafetensorsEntry *e)
{
    /* A row is everything with the same index in the first dimension. A scalar or an empty tensor
     * is a single chunk. */
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

/* Prints a struct on one line; all its fields have 8 bytes. */
static void print_fields(FILE *to, const char *key, const void *values, const ManifestField *field,
                         int n)
{
    fprintf(to, "\"%s\": {", key);
    for (int i = 0; i < n; i++) {
        const char *at = (const char *)values + field[i].offset;
        fprintf(to, "%s\"%s\": ", i ? ", " : "", field[i].name);
        /* memcpy, because reading a double through an integer pointer would violate C's aliasing
         * rules. */
        double d;
        int64_t whole;
        memcpy(&d, at, sizeof d);
        memcpy(&whole, at, sizeof whole);
        if (field[i].is_double)
            fprintf(to, "\"%a\"", d);
        else
            fprintf(to, "%lld", (long long)whole);
    }
    fputs("},\n", to);
}

/* Prints the last losses (s->losses), with which the losses of later steps are compared, in the
 * order of the array. */
static void print_losses(FILE *to, const StepState *s)
{
    fputs("\"losses\": [", to);
    for (int64_t i = 0; i < s->n_losses && i < LOSS_WINDOW; i++)
        fprintf(to, "%s\"%a\"", i ? ", " : "", s->losses[i]);
    fputs("],\n", to);
}

static void print_files(FILE *to, const Manifest *m)
{
    fputs("\"files\": {\n", to);
    for (int f = 0; f < m->n_files; f++)
        fprintf(
            to,
            "  \"%s\": {\"bytes\": %lld, \"header_bytes\": %lld, \"header_crc32c\": \"%08x\"}%s\n",
            m->file[f].name, (long long)m->file[f].bytes, (long long)m->file[f].header_bytes,
            m->file[f].header_crc, f + 1 < m->n_files ? "," : "");
    fputs("},\n", to);
}

static void print_tensor(FILE *to, const Manifest *m, const ManifestTensor *t)
{
    const SafetensorsEntry *e = &t->entry;
    fprintf(to, "  {\"name\": \"%s\", \"file\": \"%s\", \"dtype\": \"%s\", \"shape\": ", e->name,
            m->file[t->file].name, dtype_info[e->dtype].safetensors);
    safetensors_print_shape(to, e->ndim, e->dim, ", ");
    fprintf(to, ", \"offset\": %lld, \"chunks\": [", (long long)e->offset);
    for (int c = 0; c < t->n_chunks; c++)
        fprintf(to, "%s\"%08x\"", c ? ", " : "", t->chunk[c]);
    fputs("]}", to);
}

char *manifest_print(const Manifest *m, size_t *bytes)
{
    char *text;
    FILE *to = text_stream(&text, bytes);
    /* The keys must be in the order that parse_all in manifest_parse.c requires. Format and version
     * come first, so a program that does not know the version can report it. */
    fputs("{\n", to);
    print_text(to, "format", MANIFEST_FORMAT);
    fprintf(to, "\"version\": %d,\n", MANIFEST_VERSION);
    print_text(to, "save_id", m->save_id);
    print_fields(to, "world", &m->world, manifest_world_field, MANIFEST_WORLD_FIELDS);
    print_fields(to, "state", &m->state, manifest_state_field, MANIFEST_STATE_FIELDS);
    print_losses(to, &m->state);
    print_text(to, "code", m->code);
    print_text(to, "machine", m->machine);
    print_text(to, "data", m->data);
    print_text(to, "config", m->config);
    print_files(to, m);
    fputs("\"tensors\": [\n", to);
    for (int i = 0; i < m->n_tensors; i++) {
        if (i) fputs(",\n", to);
        print_tensor(to, m, &m->tensor[i]);
    }
    fputs("\n],\n", to);
    /* The checksum covers everything before its own line; fflush makes that available in `text`. */
    CHECK(fflush(to) == 0, "no memory for the manifest of %d tensors", m->n_tensors);
    fprintf(to, "\"manifest_crc32c\": \"%08x\"\n}\n", crc32c(0, text, *bytes));
    CHECK(fclose(to) == 0, "no memory for the manifest of %d tensors", m->n_tensors);
    return text;
}

char *manifest_print_index(const Manifest *m, CheckpointPart part, size_t *bytes)
{
    int files = 0;
    for (int f = 0; f < m->n_files; f++)
        files += m->file[f].part == part;
    if (files == 1) return NULL;
    char *text;
    FILE *to = text_stream(&text, bytes);
    /* Hugging Face's total_size does not include headers. */
    int64_t total = 0;
    for (int i = 0; i < m->n_tensors; i++)
        if (m->file[m->tensor[i].file].part == part) total += m->tensor[i].entry.bytes;
    fprintf(to, "{\n\"metadata\": {\"total_size\": %lld},\n\"weight_map\": {", (long long)total);
    const char *comma = "";
    for (int i = 0; i < m->n_tensors; i++) {
        const ManifestFile *file = &m->file[m->tensor[i].file];
        if (file->part != part) continue;
        fprintf(to, "%s\n  \"%s\": \"%s\"", comma, m->tensor[i].entry.name, file->name);
        comma = ",";
    }
    fputs("\n}\n}\n", to);
    CHECK(fclose(to) == 0, "no memory for the index of %d tensors", m->n_tensors);
    return text;
}

void manifest_free(Manifest *m)
{
    for (int i = 0; i < m->n_tensors; i++) {
        free(m->tensor[i].entry.name);
        free(m->tensor[i].chunk);
    }
    free(m->tensor);
    free(m->file);
    free(m->config);
    free(m->machine);
    free(m->code);
    free(m->data);
    *m = (Manifest){0};
}
