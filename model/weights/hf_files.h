/* hf_files.h -- opens the files of a folder in Hugging Face's layout, and no others. */
#ifndef MODEL_WEIGHTS_HF_FILES_H
#define MODEL_WEIGHTS_HF_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether FOLDER/NAME exists, if only as a symbolic link that leads nowhere. */
bool hf_file_exists(const char *folder, const char *name);
/* Opens the regular file FOLDER/NAME for reading and sets *bytes to its size. A symbolic link is
 * followed if it leads to a file in the folder, or, in a snapshot of Hugging Face's cache, to one
 * of the cache's blobs. Returns -1 and sets err on failure. */
int hf_file_open(const char *folder, const char *name, int64_t *bytes, char *err, size_t n);
/* Reads such a file whole, if it has at most `most` bytes; the caller frees *text, which ends with
 * a zero byte. Returns false and sets err on failure. */
bool hf_file_read(const char *folder, const char *name, int64_t most, char **text, size_t *bytes,
                  char *err, size_t n);
/* Returns whether the tokenizer's files in the folder, which tokenizer_load (data/tokenizer) opens
 * by their paths, are such files of at most HF_TOKENIZER_BYTES: tokenizer.json, or else those of
 * GPT-2. Files that do not exist are no error. Returns false and sets err if one is not. */
bool hf_tokenizer_check(const char *folder, char *err, size_t n);
#define HF_TOKENIZER_BYTES ((int64_t)256 << 20)
/* Returns whether FOLDER/NAME is a file whose name is that of a licence, which must stay with the
 * weights. At most HF_LICENCE_BYTES of one are read. */
bool hf_file_is_licence(const char *folder, const char *name);
#define HF_LICENCE_BYTES ((int64_t)1 << 20)
/* Names of the files, beside the tokenizer, that say how a model is used: how a conversation
 * becomes a text, which tokens end one, how tokens are drawn. An import keeps them as they are, and
 * an export takes them along. The list ends with NULL; at most HF_COMPANION_BYTES of one are read.
 */
extern const char *const hf_companions[];
bool hf_file_is_companion(const char *name);
#define HF_COMPANION_BYTES ((int64_t)16 << 20)
/* Sets err to why there are no weights that could be read in the folder: it names files that may
 * run code when they are read, and files of other formats. */
void hf_explain_no_weights(const char *folder, char *err, size_t n);

#endif
