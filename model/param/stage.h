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
    ACT_EXCHANGE /* not in use yet: one stage */
} ActionKind;

/* One tensor that goes from a stage to its neighbour in an exchange. Read by nobody yet. */
typedef struct {
    int peer;   /* the other stage */
    bool send;  /* or receive */
    int buffer; /* which of the pipeline's buffers */
    int tag;    /* asserted on arrival; messages match in their order */
} Transfer;

/* One entry of a schedule. */
typedef struct {
    ActionKind kind;
    int64_t micro; /* micro-batch of the step, or of the evaluation */
    /* Read by nobody yet, and 0: there is one stage, which has one run of layers and one slot. */
    int chunk;                 /* which run of layers of this rank */
    int slot;                  /* which set of saved activations it uses */
    int transfer, n_transfers; /* ACT_EXCHANGE: which transfers between stages, as a part of the
                                  schedule's list of them */
} Action;

/* A part of the model, and what can be done with a micro-batch there. in: what the layers before it
 * have made; out: = what the layers behind it read; dout: the gradient of out; din: = the gradient
 * of in. Each is (N, C) in the storage type, and absent where the model begins or ends. */
typedef struct {
    void (*forward)(void *self, const Action *action, Tensor in, Tensor out);
    void (*backward)(void *self, const Action *action, Tensor dout, Tensor din);
    void (*evaluate)(void *self, const Action *action, Tensor in, Tensor out);
    void *self;
} Stage;

#endif
