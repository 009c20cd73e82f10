/* hf_index.h -- reads model.safetensors.index.json, in which Hugging Face's libraries store which
 * of several files has each tensor. */
#ifndef MODEL_WEIGHTS_HF_INDEX_H
#define MODEL_WEIGHTS_HF_INDEX_H

#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HF_INDEX_MAX_BYTES ((int64_t)64 << 20)

typedef struct {
    char *tensor; /* matches [A-Za-z0-9._-]+ */
    int file;     /* index into HfIndex.files */
} HfIndexEntry;

typedef struct {
    HfIndexEntry *entry; /* sorted by tensor, each once */
    int n;
    StringList files; /* names of files in the index's folder, in the order of their first use */
} HfIndex;

/* Parses the text. It is refused if a file name has a slash, which might lead out of the folder, or
 * if a tensor is listed twice. Returns false and sets err on failure; nothing needs to be freed
 * then. Otherwise the caller must call hf_index_free. */
bool hf_index_parse(HfIndex *out, const char *text, size_t bytes, char *err, size_t n);
void hf_index_free(HfIndex *index);

#endif
