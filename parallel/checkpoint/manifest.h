/* manifest.h -- manifest.json of a checkpoint: what the folder holds, to the bit.
 *
 * Plain JSON, one tensor a line. Its last line is the CRC32C of all lines before, so that no
 * flipped byte goes unseen; integers are exact, doubles are C's hexadecimal floats. */
#ifndef PARALLEL_CHECKPOINT_MANIFEST_H
#define PARALLEL_CHECKPOINT_MANIFEST_H

#include "model/kernels/step.h"
#include "model/weights/safetensors.h"

#define MANIFEST_VERSION   1
#define MANIFEST_MAX_BYTES ((int64_t)64 << 20)
#define MANIFEST_CHUNK_BYTES                                                                       \
    ((int64_t)16 << 20) /* a chunk: the fewest whole rows that reach this; the last is smaller */
#define SAVE_ID_DIGITS 16

/* The files with tensors, in the order in which they are written. */
typedef enum { CHECKPOINT_WEIGHTS, CHECKPOINT_SLOTS, CHECKPOINT_FILES } CheckpointFile;
extern const char *const
    checkpoint_file_name[CHECKPOINT_FILES]; /* "model.safetensors", "optimizer.safetensors" */

typedef struct {
    CheckpointFile file;
    SafetensorsEntry entry;
    int n_chunks;
    uint32_t *chunk; /* CRC32C of each */
} ManifestTensor;

typedef struct {
    int64_t bytes, header_bytes; /* of the whole file; of what precedes its data */
    uint32_t header_crc;
} ManifestFile;

typedef struct {
    char save_id[SAVE_ID_DIGITS +
                 1]; /* the same in both files' metadata: files of two saves do not mix */
    StepState state;
    char *config, *machine,
        *code;  /* config as JSON; CPU level, BLAS, threads; version of the program */
    char *data; /* which tokens it has seen: data/identity.h */
    ManifestFile file[CHECKPOINT_FILES];
    ManifestTensor *tensor; /* first the weights, then the slots, each in the order of its file */
    int n_tensors;
} Manifest;

/* Whether `text` is a save's id: SAVE_ID_DIGITS hexadecimal digits, nothing else. */
bool manifest_save_id_valid(const char *text);
/* Bytes of a full chunk of this tensor, and how many chunks it has. */
int64_t manifest_chunk_bytes(const SafetensorsEntry *entry);
int manifest_chunk_count(const SafetensorsEntry *entry);

/* The text of manifest.json; the caller frees. */
char *manifest_print(const Manifest *m, size_t *bytes);
/* Reads it, strictly; false with a sentence, and then nothing is held. Otherwise manifest_free is
 * due. */
bool manifest_parse(Manifest *out, const char *text, size_t bytes, char *err, size_t n);
void manifest_free(Manifest *m);

#endif
