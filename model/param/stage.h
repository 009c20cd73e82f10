/* stage.h -- Stage, the third contract of the model: a step is a list of actions, and each is run
 * on a stage, which is a part of the model. The lists are made by parallel/pipeline/schedule.c and
 * carried out by pipeline.c, which know no more of a model than this. */
#ifndef MODEL_PARAM_STAGE_H
#define MODEL_PARAM_STAGE_H

#include "model/core/tensor.h"

typedef enum {
    ACT_FORWARD,
    ACT_BACKWARD,
    ACT_EVALUATE,
    ACT_EXCHANGE /* tensors come from and go to other stages */
} ActionKind;

/* One tensor that goes from a stage to another in an exchange. */
typedef struct {
    int peer;   /* the other stage */
    bool send;  /* or receive */
    int buffer; /* which of the pipeline's buffers */
    int tag;    /* what it is, alike on both sides: messages of a pair match in their order, and
                   tests and the check of a schedule hold the tags to that */
} Transfer;

/* One entry of a schedule. */
typedef struct {
    ActionKind kind;
    int chunk;     /* which of this stage's chunks of adjacent layers */
    int64_t micro; /* micro-batch of the step, or of the evaluation */
    int slot;      /* which of the chunk's sets of saved activations */
    int batch;   /* which of the stage's places for tokens, from the first forward of a micro-batch
                    on this stage to its last action there */
    int in, out; /* buffers of the pipeline with what it reads and makes: activations, or backward
                    their gradients; -1: the model begins or ends here */
    int transfer, n_transfers; /* ACT_EXCHANGE: a fused group, a part of the schedule's transfers */
} Action;

/* A part of the model, and what can be done with a micro-batch there. in: what the layers before it
 * have made; out: = what the layers after it read; dout: the gradient of out; din: = the gradient
 * of in. Each is of the residual stream's shape in the storage type, and absent where the model
 * begins or ends. They are the caller's again when the call returns (in the order of the compute
 * stream). */
typedef struct {
    void (*forward)(void *self, const Action *action, Tensor in, Tensor out);
    void (*backward)(void *self, const Action *action, Tensor dout, Tensor din);
    void (*evaluate)(void *self, const Action *action, Tensor in, Tensor out);
    void *self;
} Stage;

/* How a decoding pass goes through the stages, all of which run it together. Implemented by
 * parallel/pipeline; NULL: one stage. */
typedef struct {
    /* x = the stream (n, C) from the layers before `chunk` of this stage; and x sent to those
     * after it. */
    void (*receive)(void *self, int chunk, Tensor x);
    void (*send)(void *self, int chunk, Tensor x);
    /* logits (1, Vp) = those of the last stage, on all stages. */
    void (*share)(void *self, Tensor logits);
    void *self;
} Relay;

#endif
