/* hf_write.h -- writes a model as a folder of Hugging Face's libraries: safetensors and
 * config.json. */
#ifndef MODEL_WEIGHTS_HF_WRITE_H
#define MODEL_WEIGHTS_HF_WRITE_H

#include "model/weights/architecture.h"
#include "model/weights/source.h"

#define HF_SHARD_BYTES ((int64_t)5000000000) /* the size at which transformers divides models */

typedef struct {
    Architecture architecture;
    DType dtype;         /* dtype of the written weights */
    int64_t shard_bytes; /* the most bytes of weights in a file, unless it has a single tensor */
    int32_t bos, eos;    /* ids of the tokens that begin and end a text; -1: none */
} HfModel;

typedef struct {
    int files;
    int64_t bytes;     /* total size of the files with weights */
    int64_t overflows; /* finite weights that became infinite */
} HfWritten;

/* Returns the number of bytes of the weights when written. Returns -1 and sets err if the source
 * has a tensor that has no name in files of this architecture. */
int64_t hf_write_bytes(const HfModel *model, const WeightSource *source, char *err, size_t n);
/* Writes model.safetensors, or several files and their index, config.json and
 * generation_config.json into `folder`, which must exist. One tensor at a time is in memory. The
 * source must have exactly the tensors of the model. `progress` is called after each tensor with
 * the number of written tensors and of all; it may be NULL. Returns false and sets err on failure;
 * files that were already written then remain. */
bool hf_write(const char *folder, const HfModel *model, WeightSource *source,
              void (*progress)(void *context, int done, int all), void *context, HfWritten *written,
              char *err, size_t n);

#endif
