/* stage.h -- Stage, the third contract of the model: a step is a list of actions, and each is run
 * on a stage, which is a part of the model. The lists are made by parallel/pipeline/schedule.c and
 * carried out by pipeline.c, which know no more of a model than this. */
#ifndef MODEL_PARAM_STAGE_H
#define MODEL_PARAM_STAGE_H

#include "model/core/tensor.h"

typedef enum { ACT_FORWARD, ACT_BACKWARD, ACT_EVALUATE, ACT_EXCHANGE } ActionKind;

/* One entry of a schedule. */
typedef struct {
    ActionKind kind;
    int chunk;                 /* which run of layers of this rank */
    int64_t micro;             /* micro-batch of the step, or of the evaluation */
    int slot;                  /* activation slot, assigned by the generator */
    int transfer, n_transfers; /* exchange: a group out of the pool of transfers */
} Action;

/* in: the output of the layers before; out: what the layers after read; dout and din: the gradients
 * of those. Absent on the side where the model ends. */
typedef struct {
    void (*forward)(void *self, const Action *action, Tensor in, Tensor out);
    void (*backward)(void *self, const Action *action, Tensor dout, Tensor din);
    void (*evaluate)(void *self, const Action *action, Tensor in, Tensor out);
    void *self;
} Stage;

#endif
