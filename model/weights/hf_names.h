/* hf_names.h -- the names of weights in Hugging Face's files, and this program's names for them. */
#ifndef MODEL_WEIGHTS_HF_NAMES_H
#define MODEL_WEIGHTS_HF_NAMES_H

#include "model/weights/architecture.h"
#include "model/weights/source.h"

enum { HF_NAME = 80, HF_MOST_PARTS = 3 };

/* The place of one of our tensors in Hugging Face's files. */
typedef struct {
    char name[HF_NAME]; /* "transformer.h.7.attn.c_attn.weight" */
    /* GPT-2 stores q, k and v as thirds of one tensor, side by side: the number of this tensor's
     * third; -1: the tensor is not divided. */
    int part;
    /* A matrix of GPT-2's blocks, which is stored as (in, out); ours is (out, in). */
    bool transposed;
} HfPlace;

/* Finds the place of our tensor `ours` in files of this architecture. Returns false if such models
 * have no tensor of this name. */
bool hf_name_of(ArchitectureKind kind, const char *ours, HfPlace *out);

/* One of our tensors that is stored in a tensor of Hugging Face's. */
typedef struct {
    char name[sizeof((SourceTensor *)0)->name];
    int part;
    bool transposed;
} HfPart;

/* Finds which of our tensors are stored in the tensor `theirs` of a file of this architecture; the
 * name may lack the prefix "transformer." or "model.". Writes them to `out` and returns their
 * number: 0 if such models have no tensor of this name, 3 for joint q, k and v. */
int hf_names_in(ArchitectureKind kind, const char *theirs, HfPart out[HF_MOST_PARTS]);

/* Returns whether a file's tensor is not a weight, but a causal mask or RoPE's frequencies, which
 * old versions of transformers saved. */
bool hf_name_is_buffer(ArchitectureKind kind, const char *theirs);

#endif
