/* model_fixture.h -- a fixture for tests: a whole small GPT with gradients and an optimizer,
 * without data or files. */
#ifndef TESTS_SUPPORT_MODEL_MODEL_FIXTURE_H
#define TESTS_SUPPORT_MODEL_MODEL_FIXTURE_H

#include "model/gpt.h"
#include "parallel/zero/zero.h"

typedef struct {
    Device dev;
    Grid grid;
    Region tp;
    ParamTable table;
    GptLayers layers;
    ZeroStore *store;
    size_t store_bytes; /* device memory held by the store */
    ParamStore *params;
    Gpt *gpt;
    StepStats stats; /* statistics of the last run */
    double scale;    /* the factor that multiplies the loss before backward */
    int64_t B, T, micros;
    int32_t *tokens, *targets, *positions; /* (micros, B*T), on the host */
    struct FixtureFar *far;                /* on the device: stats and scale during a run */
    GptBatch batch;                        /* on the device: one micro-batch */
    bool poison; /* fill activations and scratch with NaN before every micro-batch */
} Fixture;

/* Returns a tiny GPT-2-like shape in f64; tests change its fields. */
GptShape fixture_shape(void);
/* Returns a Llama-like shape of the same size: GQA, RMSNorm, RoPE, SwiGLU, QK-norm, no biases,
 * untied head. */
GptShape fixture_llama_shape(void);
/* Gives the shape one of four sets of biases: none, all, those of q, k and v alone, those of norms
 * and of the MLP. */
enum { FIXTURE_BIASES = 4 };
void fixture_set_biases(GptShape *shape, int set);
/* Returns a shape with one kv head, a head size that is not C / H, squared ReLU, and logits in
 * chunks of 5 rows. */
GptShape fixture_mqa_shape(void);
/* Returns the shape of GPT-2 with 124 million parameters in f32, for counting parameters, memory
 * and operations. */
GptShape fixture_gpt2_shape(void);
/* Returns the i-th of FIXTURE_VARIANTS variants of the tiny shape: all combinations of a set of
 * biases (some with all kv heads, some with shared ones), tied head, QK-norm, kind of norm, kind of
 * positions, and GELU or SwiGLU. */
enum { FIXTURE_VARIANTS = FIXTURE_BIASES * 32 };
GptShape fixture_variant(int i);
/* Returns the shape with another dtype, gradients in its compute dtype, and smaller weights. */
GptShape fixture_with_dtype(GptShape shape, DType dtype);
/* Opens a device with `threads` threads and a model on it. The device is the one named in the
 * environment variable TEST_DEVICE ("cpu", "cuda"); if that is not set, and for f64, it is the CPU
 * (level CPU_LEVEL_AUTO: the best one). Weights are random, without special values (norm weights
 * near 1, biases near 0); tokens and targets are random. scale is 1 / (micros B T). */
void fixture_open(Fixture *f, const GptShape *shape, int64_t B, int64_t T, int64_t micros,
                  int threads, CpuLevel level);
/* Like fixture_open, but on the given backend; "hopper" is CUDA with the attention kernels for
 * Hopper. */
void fixture_open_on(Fixture *f, const char *backend, const GptShape *shape, int64_t B, int64_t T,
                     int64_t micros, int threads, CpuLevel level);
/* Opens one rank of a grid of data- and tensor-parallel ranks, on fixture_open's device with one
 * CPU thread, with a store of these options. All ranks of the world must call it. `shape` is the
 * whole model's, with its vocabulary padded for the ranks; zero->sequence_parallel splits the rows
 * of the residual stream. Data-parallel rank r of n gets the micro-batches r, r + n, ... of those
 * that a single rank with n x micros would have, and the same scale, so that gradients are summed
 * over all. */
void fixture_open_place(Fixture *f, Comm *world, GridPlace size, const ZeroOptions *zero,
                        const GptShape *shape, int64_t B, int64_t T, int64_t micros);
void fixture_close(Fixture *f);

/* Return the logical rows of parameter `param` in the store's memory: the weight, or the gradient
 * of the last fixture_backward. */
Tensor fixture_weight(Fixture *f, int param);
Tensor fixture_grad(Fixture *f, int param);
/* fixture_fetch returns a dense copy in host memory, whose data the caller frees; fixture_store
 * copies it back. */
Tensor fixture_fetch(Fixture *f, Tensor t);
void fixture_store(Fixture *f, Tensor t, Tensor host);

/* Returns the summed loss of all micro-batches times scale; forward only. */
double fixture_loss(Fixture *f);
/* Returns the same loss and computes gradients: one step without the update. */
double fixture_backward(Fixture *f);
/* Returns a copy of all gradients of the last fixture_backward, one shard after the other; the
 * caller frees. */
unsigned char *fixture_gradients(Fixture *f, size_t *bytes);
/* Writes the logits (B*T, Vp) of micro-batch `micro` to `logits` in host memory. */
void fixture_logits(Fixture *f, int64_t micro, Tensor logits);

#endif
