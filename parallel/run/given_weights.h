/* given_weights.h -- finds and opens the weights at a path, which is a checkpoint, a run folder or
 * a Hugging Face folder, and reads what is known about them. */
#ifndef PARALLEL_RUN_GIVEN_WEIGHTS_H
#define PARALLEL_RUN_GIVEN_WEIGHTS_H

#include "data/tokenizer/tokenizer.h"
#include "model/weights/source.h"
#include "parallel/run/run.h"

/* Finds out what the path `named` is, and sets all of *from except same_ids. In a run folder it
 * chooses the best checkpoint, or else the newest that opens. Returns false and sets err and *code
 * if there are no weights. */
bool given_weights_find(RunInit *from, const char *named, char *err, size_t n, ExitCode *code);

/* Opened weights. Their headers have been read, but not their data. */
typedef struct {
    Checkpoint *checkpoint; /* NULL: a Hugging Face folder */
    WeightSource *source;
    char *config; /* the config of the model that they were trained in, as JSON */
} GivenWeights;

/* Opens what given_weights_find has found, for a run of `config`. If the model of the weights has a
 * sliding window, the run's sequences must not be longer than the window. Not collective. Returns
 * false and sets err and *code on failure; otherwise the caller calls given_weights_close. */
bool given_weights_open(GivenWeights *out, const RunInit *from, const Config *config, char *err,
                        size_t n, ExitCode *code);
void given_weights_close(GivenWeights *w);

/* Whether the weights were trained with the tokenizer of the run's data. */
typedef enum { TOKENIZERS_UNKNOWN, TOKENIZERS_EQUAL, TOKENIZERS_DIFFER } Tokenizers;
/* Compares the tokenizers. Sets *path to the file or folder of the weights' tokenizer, for a
 * message, or to NULL; the caller frees it. If the result is TOKENIZERS_UNKNOWN, sets err to the
 * reason. */
Tokenizers given_weights_tokenizer(const GivenWeights *w, const RunInit *from, const DataSet *data,
                                   char **path, char *err, size_t n);

#endif
