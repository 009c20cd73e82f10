/* stage.h -- Stage, the interface between the model and pipeline parallelism. A training step is a
 * list of actions, and each action runs on a stage, which is a part of the model.
 * parallel/pipeline/schedule.c makes the lists and pipeline.c executes them; both use the model
 * only through this interface. */
#ifndef MODEL_PARAM_STAGE_H
#define MODEL_PARAM_STAGE_H

#include "model/core/tensor.h"

typedef enum {
    ACT_FORWARD,
    ACT_BACKWARD,
    ACT_EVALUATE,
    ACT_EXCHANGE /* sends tensors to and receives them from other stages */
} ActionKind;

/* One tensor that is sent or received in an exchange. */
typedef struct {
    int peer;   /* the other stage */
    bool send;  /* true: send; false: receive */
    int buffer; /* index of the buffer among the pipeline's buffers */
    /* Identifies the tensor, with the same value on both sides. Messages between two stages
     * match by their order; tests and the check of a schedule compare the tags. */
    int tag;
} Transfer;

/* One entry of a schedule. */
typedef struct {
    ActionKind kind;
    int chunk;     /* index of this stage's chunk of adjacent layers */
    int64_t micro; /* micro-batch of the step or of the evaluation */
    int slot;      /* which of the chunk's sets of saved activations */
    /* Which of the stage's token buffers; reserved from the first forward of a micro-batch on
     * this stage to its last action there. */
    int batch;
    /* Pipeline buffers for its input and output: activations, or for backward their gradients;
     * -1 where the model begins or ends. */
    int in, out;
    /* For ACT_EXCHANGE: the transfers that run together, as a range of the schedule's list of
     * transfers (the first one and their number). */
    int transfer, n_transfers;
} Action;

/* A part of the model, and the actions that it can run for a micro-batch. Tensors have the residual
 * stream's shape and the storage type: `in` is the output of the layers before this part; `out` is
 * written (=) and read by the layers after it; dout is the gradient of out; din is written (=) with
 * the gradient of in. A tensor is absent where the model begins or ends. After the call returns,
 * the caller may reuse the tensors (in compute stream order). */
typedef struct {
    void (*forward)(void *self, const Action *action, Tensor in, Tensor out);
    void (*backward)(void *self, const Action *action, Tensor dout, Tensor din);
    void (*evaluate)(void *self, const Action *action, Tensor in, Tensor out);
    void *self;
} Stage;

/* Hands the residual stream of a decoding pass from stage to stage. All stages take part in every
 * pass. Implemented by parallel/pipeline. A NULL pointer instead of a Relay means that there is
 * only one stage. */
typedef struct {
    /* receive sets x (n, C) to the residual stream from the layers before `chunk` of this stage;
     * send passes x on to the layers after it. */
    void (*receive)(void *self, int chunk, Tensor x);
    void (*send)(void *self, int chunk, Tensor x);
    /* Sets logits (1, Vp) on all stages to those of the last stage. */
    void (*share)(void *self, Tensor logits);
    void *self;
} Relay;

#endif
