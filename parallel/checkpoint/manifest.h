/* manifest.h -- manifest.json of a checkpoint: what the folder holds, to the bit. Others see it
 * through checkpoint_manifest.
 *
 * Plain JSON, one tensor a line. Its last line is the CRC32C of all lines before, so that no
 * flipped byte goes unseen; integers are exact, doubles are C's hexadecimal floats, because decimal
 * digits and a reader's rounding would have to be trusted to give the same bits.
 *
 * Version 1 knew one rank and one file a part, and is still read; version 2 says which ranks wrote
 * it and lists its files.
 *
 * A tensor's data has a checksum per chunk: the fewest whole rows that have MANIFEST_CHUNK_BYTES
 * bytes together, the last chunk being what is left. Whole rows, so that a reader who wants some
 * rows of a tensor can check just the chunks that these lie in. */
#ifndef PARALLEL_CHECKPOINT_MANIFEST_H
#define PARALLEL_CHECKPOINT_MANIFEST_H

#include "model/kernels/step.h"
#include "model/weights/safetensors.h"

#define MANIFEST_VERSION     2
#define MANIFEST_MAX_BYTES   ((int64_t)64 << 20)
#define MANIFEST_CHUNK_BYTES ((int64_t)16 << 20)
#define SAVE_ID_DIGITS       16

/* The parts of a checkpoint, each in as many files as it has writers, in the order in which they
 * are written. */
typedef enum { CHECKPOINT_WEIGHTS, CHECKPOINT_SLOTS, CHECKPOINT_PARTS } CheckpointPart;
enum { CHECKPOINT_MAX_WRITERS = 64, CHECKPOINT_FILE_NAME = 48 };
/* Writes the name of file number `file` of a part's `files`: "model.safetensors" where it is the
 * only one, else "model-00001-of-00002.safetensors", as Hugging Face's loaders know it; likewise
 * "optimizer". */
void checkpoint_file_name(char out[CHECKPOINT_FILE_NAME], CheckpointPart part, int file, int files);
/* "model.safetensors.index.json": of a part in several files, which tensor lies in which. */
const char *checkpoint_index_name(CheckpointPart part);

typedef struct {
    int file; /* number in the manifest's list */
    SafetensorsEntry entry;
    int n_chunks;
    uint32_t *chunk; /* CRC32C of each */
} ManifestTensor;

typedef struct {
    char name[CHECKPOINT_FILE_NAME];
    CheckpointPart part;
    int64_t bytes;        /* of the whole file */
    int64_t header_bytes; /* of what precedes the data */
    uint32_t header_crc;  /* CRC32C of those */
} ManifestFile;

/* The ranks that saved it: for people. Nothing that is read depends on it. */
typedef struct {
    int64_t ranks, pp, dp, cp, tp; /* all, and on each axis */
    int64_t zero_stage, writers;
} ManifestWorld;

typedef struct {
    int version;
    char save_id[SAVE_ID_DIGITS + 1]; /* in all files' metadata, too */
    ManifestWorld world;              /* version 1: a single rank */
    StepState state;
    char *config;       /* as JSON, resolved */
    char *machine;      /* CPU level, BLAS, threads */
    char *code;         /* version of the program */
    char *data;         /* which tokens the run has seen: data/identity.h */
    ManifestFile *file; /* of the weights, then of the slots; one at least of each */
    int n_files;
    ManifestTensor *tensor; /* file by file, each in the order of its file */
    int n_tensors;
} Manifest;

/* Whether `text` is the id of a save: SAVE_ID_DIGITS hexadecimal digits, nothing else. */
bool manifest_save_id_valid(const char *text);
/* Bytes of a full chunk of this tensor, and how many chunks it has. */
int64_t manifest_chunk_bytes(const SafetensorsEntry *entry);
int manifest_chunk_count(const SafetensorsEntry *entry);

/* The text of manifest.json, of the present version; the caller frees. */
char *manifest_print(const Manifest *m, size_t *bytes);
/* The text of a part's index, as Hugging Face's loaders read it; the caller frees. NULL: the part
 * is one file, which has no index. */
char *manifest_print_index(const Manifest *m, CheckpointPart part, size_t *bytes);
/* Reads such a text, of version 1 or 2. Keys must come in the order in which they are written, so
 * that what is accepted is what this program writes and nothing else. False with a sentence; then
 * nothing is held. Otherwise manifest_free is due. */
bool manifest_parse(Manifest *out, const char *text, size_t bytes, char *err, size_t n);
void manifest_free(Manifest *m);

#endif
