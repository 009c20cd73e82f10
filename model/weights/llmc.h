/* llmc.h -- reads llm.c's model files ("gpt2_124M.bin") as a WeightSource, and writes them.
 *
 * A file is a header of 256 little-endian int32 and the weights of a GPT-2, all in one type: f32
 * (version 3) or bf16 (version 5). The header has the magic number 20240326, the version, the
 * context length, the vocabulary size, the numbers of layers, heads and channels, and the padded
 * vocabulary size; the rest is zero. The weights follow, grouped by kind of tensor: each kind is
 * stored for all layers before the next kind. */
#ifndef MODEL_WEIGHTS_LLMC_H
#define MODEL_WEIGHTS_LLMC_H

#include "model/core/fs.h"
#include "model/core/progress.h"
#include "model/weights/architecture.h"
#include "model/weights/source.h"

enum { LLMC_HEADER_BYTES = 1024, LLMC_VOCAB_MULTIPLE = 128 };
typedef struct {
    DType dtype; /* F32 or BF16 */
    int64_t context, vocab, layers, heads, channels, padded_vocab;
} LlmcHeader;

/* Parses the first n bytes of a file of file_bytes bytes. The size must be exactly that of the
 * weights that the header describes. Returns false and sets `err`, without the file's name, if it
 * is not a model of llm.c, or is damaged, or has an unsupported version. */
bool llmc_parse(LlmcHeader *out, const void *bytes, size_t n, int64_t file_bytes, char *err,
                size_t err_n);
/* Writes the header's bytes to `out`. */
void llmc_header_bytes(const LlmcHeader *header, unsigned char out[LLMC_HEADER_BYTES]);
/* Returns the size of the whole file, or -1 if it overflows. */
int64_t llmc_file_bytes(const LlmcHeader *header);

/* Where one of our tensors is stored in the file. llm.c stores q, k and v as one matrix, one below
 * the other; here each of them is a tensor of its own. */
typedef struct {
    SourceTensor tensor;
    int64_t offset; /* its first element, counted from the first weight */
    int64_t gap;    /* elements of padding after it: rows that pad the vocabulary */
} LlmcPlace;
/* Lists where all tensors are stored, in the order of the file; apart from padding they follow each
 * other without gaps. Sets *count to their number. The caller frees the array. */
LlmcPlace *llmc_places(const LlmcHeader *header, int *count);

/* Opens the file `path` as a source, and sets *header. Padding rows of the vocabulary are left out.
 * If `path` is a folder of an llm.c run, opens the newest model in it that is complete, as a file
 * DONE_%08d shows. *opened is the path of the file; the caller frees it. Returns false and sets
 * `err` and *missing (whether there is no such file) on failure. */
bool llmc_source_open(const char *path, LlmcHeader *header, WeightSource **out, char **opened,
                      bool *missing, char *err, size_t n);

/* Sets *out to the model that the header describes: a GPT-2. */
void llmc_architecture(const LlmcHeader *header, Architecture *out);
/* Sets *out to the header of a file with this model in `dtype`. If llm.c does not support the model
 * or the dtype, returns false and sets `err` to a message that names the keys that do not fit. */
bool llmc_header_of(const Architecture *model, DType dtype, LlmcHeader *out, char *err, size_t n);
/* Writes the source's weights to the file `path`, atomically, converted to header->dtype; the rows
 * that pad the vocabulary are zero. *overflows is set to the number of finite weights that became
 * infinite. `progress` may be NULL. Returns false and sets `err` on failure. */
bool llmc_write(const FsOps *fs, const char *path, const LlmcHeader *header, WeightSource *source,
                Progress *progress, int64_t *overflows, char *err, size_t n);

#endif
