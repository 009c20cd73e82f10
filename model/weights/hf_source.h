/* hf_source.h -- presents the weights in a folder of Hugging Face's libraries as a WeightSource:
 * under this program's names, in its layout. */
#ifndef MODEL_WEIGHTS_HF_SOURCE_H
#define MODEL_WEIGHTS_HF_SOURCE_H

#include "model/core/exit_codes.h"
#include "model/weights/architecture.h"
#include "model/weights/source.h"

/* Reads FOLDER/config.json. Returns false and sets err and *code on failure: EXIT_MISSING, or
 * EXIT_CONFIG for a model that this program would compute differently. */
bool hf_folder_config(const char *folder, Architecture *out, char *err, size_t n, ExitCode *code);

/* Opens FOLDER/model.safetensors, or the files that FOLDER/model.safetensors.index.json names, and
 * presents the weights of a model of `architecture`. Each file's header is read and checked; data
 * are read only by source->read, one file at a time.
 *
 * Tensors that are not weights (hf_name_is_buffer), and a head that is tied to the token table, are
 * left out. Any other tensor that such a model does not have is an error, and so is a tensor that
 * is not a matrix or vector of floating-point numbers. weights_misfits (fit.h) checks whether the
 * shapes are those of the model.
 *
 * Files are read only from this folder: a name with a slash is refused, and so is a symbolic link
 * that leads elsewhere. Links of Hugging Face's cache to FOLDER/../../blobs are allowed. Pickle
 * files are never read. Returns false and sets err and *code on failure: EXIT_MISSING if the folder
 * has no weights in a supported format, EXIT_DAMAGED for other errors. */
bool hf_source_open(const char *folder, const Architecture *architecture, WeightSource **out,
                    char *err, size_t n, ExitCode *code);

#endif
