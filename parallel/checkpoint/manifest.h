/* manifest.h -- manifest.json of a checkpoint: what the folder holds, to the bit. Others see it
 * through checkpoint_manifest.
 *
 * Plain JSON, one tensor a line. Its last line is the CRC32C of all lines before, so that no
 * flipped byte goes unseen; integers are exact, doubles are C's hexadecimal floats, because decimal
 * digits and a reader's rounding would have to be trusted to give the same bits.
 *
 * A tensor's data has a checksum per chunk: the fewest whole rows that have MANIFEST_CHUNK_BYTES
 * bytes together, the last chunk being what is left. Whole rows, so that a reader who wants some
 * rows of a tensor can check just the chunks that these lie in. */
#ifndef PARALLEL_CHECKPOINT_MANIFEST_H
#define PARALLEL_CHECKPOINT_MANIFEST_H

#include "model/kernels/step.h"
#include "model/weights/safetensors.h"

#define MANIFEST_VERSION     1
#define MANIFEST_MAX_BYTES   ((int64_t)64 << 20)
#define MANIFEST_CHUNK_BYTES ((int64_t)16 << 20)
#define SAVE_ID_DIGITS       16

/* The files with tensors, in the order in which they are written. */
typedef enum { CHECKPOINT_WEIGHTS, CHECKPOINT_SLOTS, CHECKPOINT_FILES } CheckpointFile;
/* "model.safetensors", "optimizer.safetensors" */
extern const char *const checkpoint_file_name[CHECKPOINT_FILES];

typedef struct {
    CheckpointFile file;
    SafetensorsEntry entry;
    int n_chunks;
    uint32_t *chunk; /* CRC32C of each */
} ManifestTensor;

typedef struct {
    int64_t bytes;        /* of the whole file */
    int64_t header_bytes; /* of what precedes the data */
    uint32_t header_crc;  /* CRC32C of those */
} ManifestFile;

typedef struct {
    char save_id[SAVE_ID_DIGITS + 1]; /* stands in both files' metadata, too */
    StepState state;
    char *config;  /* as JSON, resolved */
    char *machine; /* CPU level, BLAS, threads */
    char *code;    /* version of the program */
    char *data;    /* which tokens the run has seen: data/identity.h */
    ManifestFile file[CHECKPOINT_FILES];
    ManifestTensor *tensor; /* first the weights, then the slots, each in the order of its file */
    int n_tensors;
} Manifest;

/* Whether `text` is the id of a save: SAVE_ID_DIGITS hexadecimal digits, nothing else. */
bool manifest_save_id_valid(const char *text);
/* Bytes of a full chunk of this tensor, and how many chunks it has. */
int64_t manifest_chunk_bytes(const SafetensorsEntry *entry);
int manifest_chunk_count(const SafetensorsEntry *entry);

/* The text of manifest.json; the caller frees. */
char *manifest_print(const Manifest *m, size_t *bytes);
/* Reads such a text. Keys must come in the order in which they are written, so that what is
 * accepted is what this program writes and nothing else. False with a sentence; then nothing is
 * held. Otherwise manifest_free is due. */
bool manifest_parse(Manifest *out, const char *text, size_t bytes, char *err, size_t n);
void manifest_free(Manifest *m);

#endif
