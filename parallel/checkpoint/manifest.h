/* manifest.h -- writes and reads a checkpoint's manifest.json, which describes every file and
 * tensor of the folder and contains their checksums. Code outside this folder gets it from
 * checkpoint_manifest.
 *
 * It is plain JSON with one tensor per line. Its last line is the CRC32C of all lines before it, so
 * any flipped byte is detected. Integers are exact. Doubles are written as C's hexadecimal floats:
 * with decimal digits, the same bits would depend on how a reader rounds.
 *
 * Version 1 had a single rank and one file each for weights and slots. Version 2 adds the number of
 * ranks that wrote it and lists its files. Version 3 adds the data for the section `health`: the
 * last losses, and the counts of spikes, of skipped tokens and of rollbacks. All versions can be
 * read; fields that a version does not have become 0.
 *
 * A tensor's data has one checksum per chunk. A chunk is the fewest whole rows that have at least
 * MANIFEST_CHUNK_BYTES bytes; the last chunk is the rest. Because chunks are whole rows, a reader
 * that needs only some rows can check just the chunks that contain them. */
#ifndef PARALLEL_CHECKPOINT_MANIFEST_H
#define PARALLEL_CHECKPOINT_MANIFEST_H

#include "model/kernels/step.h"
#include "model/weights/safetensors.h"

#define MANIFEST_VERSION     3
#define MANIFEST_MAX_BYTES   ((int64_t)64 << 20)
#define MANIFEST_CHUNK_BYTES ((int64_t)16 << 20)
#define SAVE_ID_DIGITS       16

/* The two parts of a checkpoint: weights, and slots (optimizer states). Each has as many files as
 * it has writers. The files of the weights are written before those of the slots. */
typedef enum { CHECKPOINT_WEIGHTS, CHECKPOINT_SLOTS, CHECKPOINT_PARTS } CheckpointPart;
enum { CHECKPOINT_MAX_WRITERS = 64, CHECKPOINT_FILE_NAME = 48 };
/* Writes the name of file number `file` of a part that has `files` files, as Hugging Face's loaders
 * expect it: "model.safetensors" if it is the only one, otherwise
 * "model-00001-of-00002.safetensors". The slots' files begin with "optimizer". */
void checkpoint_file_name(char out[CHECKPOINT_FILE_NAME], CheckpointPart part, int file, int files);
/* Returns the name of a part's index, such as "model.safetensors.index.json". The index lists which
 * of the part's files contains which tensor. */
const char *checkpoint_index_name(CheckpointPart part);

typedef struct {
    int file; /* index into Manifest.file */
    SafetensorsEntry entry;
    int n_chunks;
    uint32_t *chunk; /* CRC32C of each chunk */
} ManifestTensor;

typedef struct {
    char name[CHECKPOINT_FILE_NAME];
    CheckpointPart part;
    int64_t bytes;        /* size of the whole file */
    int64_t header_bytes; /* bytes before the data */
    uint32_t header_crc;  /* CRC32C of the header */
} ManifestFile;

/* The grid of ranks that saved the checkpoint. It is only printed for users; reading does not
 * depend on it. */
typedef struct {
    int64_t ranks, pp, dp, cp, tp; /* number of ranks in all, and on each axis */
    int64_t zero_stage, writers;
} ManifestWorld;

typedef struct {
    int version;
    char save_id[SAVE_ID_DIGITS + 1]; /* random id of the save, also in every file's metadata */
    ManifestWorld world;              /* a single rank if the version is 1 */
    StepState state;
    char *config;       /* complete config as JSON, with all defaults */
    char *machine;      /* CPU level, BLAS, threads */
    char *code;         /* version of the program */
    char *data;         /* identity of the training data: data/identity.h */
    ManifestFile *file; /* files of the weights, then of the slots; at least one each */
    int n_files;
    ManifestTensor *tensor; /* sorted by file, and by position in the file */
    int n_tensors;
} Manifest;

/* Returns whether `text` is a valid save id: exactly SAVE_ID_DIGITS hexadecimal digits. */
bool manifest_save_id_valid(const char *text);
/* Returns the number of bytes of a full chunk of this tensor. */
int64_t manifest_chunk_bytes(const SafetensorsEntry *entry);
/* Returns the number of chunks of this tensor. */
int manifest_chunk_count(const SafetensorsEntry *entry);

/* Returns the text of manifest.json in the present version; the caller frees it. */
char *manifest_print(const Manifest *m, size_t *bytes);
/* Returns the text of a part's index in the format of Hugging Face's loaders; the caller frees it.
 * Returns NULL if the part is a single file, which needs no index. */
char *manifest_print_index(const Manifest *m, CheckpointPart part, size_t *bytes);
/* Parses the text of a manifest of version 1 to 3. Keys must be in the order in which
 * manifest_print writes them, so only what this program writes is accepted. On failure returns
 * false and sets `err`; *out is then empty. Otherwise the caller must call manifest_free. */
bool manifest_parse(Manifest *out, const char *text, size_t bytes, char *err, size_t n);
void manifest_free(Manifest *m);

#endif
