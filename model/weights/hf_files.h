/* hf_files.h -- opens the files of a folder in Hugging Face's layout, and no others. */
#ifndef MODEL_WEIGHTS_HF_FILES_H
#define MODEL_WEIGHTS_HF_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether FOLDER/NAME exists, even if it is only a symbolic link to nothing. */
bool hf_file_exists(const char *folder, const char *name);
/* Opens the regular file FOLDER/NAME for reading and sets *bytes to its size. A symbolic link is
 * followed only if it leads to a file in the folder, or, in a snapshot of Hugging Face's cache, to
 * one of the cache's blobs. Returns -1 and sets err on failure. */
int hf_file_open(const char *folder, const char *name, int64_t *bytes, char *err, size_t n);
/* Opens a file as hf_file_open does and reads all of it, if it has at most `most` bytes. The caller
 * frees *text, which ends with a zero byte. Returns false and sets err on failure. */
bool hf_file_read(const char *folder, const char *name, int64_t most, char **text, size_t *bytes,
                  char *err, size_t n);
/* Checks the tokenizer's files, tokenizer.json or else those of GPT-2, which tokenizer_load
 * (data/tokenizer) opens by their paths. Returns false and sets err if hf_file_open would not open
 * one of them, or if it has more than HF_TOKENIZER_BYTES. Missing files are no error. */
bool hf_tokenizer_check(const char *folder, char *err, size_t n);
#define HF_TOKENIZER_BYTES ((int64_t)256 << 20)
/* Returns whether FOLDER/NAME is a file with the name of a licence, which must stay with the
 * weights. At most HF_LICENCE_BYTES of it are read. */
bool hf_file_is_licence(const char *folder, const char *name);
#define HF_LICENCE_BYTES ((int64_t)1 << 20)
/* Names of further files that describe how a model is used: how a conversation becomes a text,
 * which tokens end it, how tokens are sampled. An import keeps them as they are, and an export
 * copies them. The list ends with NULL; at most HF_COMPANION_BYTES of a file are read. */
extern const char *const hf_companions[];
bool hf_file_is_companion(const char *name);
#define HF_COMPANION_BYTES ((int64_t)16 << 20)
/* Sets err to the reason why the folder has no weights that can be read: it names files that may
 * run code when they are read, and files of other formats. */
void hf_explain_no_weights(const char *folder, char *err, size_t n);

#endif
