/* capture.h -- collects the results of one training step from all ranks of a grid, as whole tensors
 * by name, so they can be compared with those of a single rank. Also compares the ranks that hold
 * copies of the same weights with each other. */
#ifndef PARALLEL_VERIFY_CAPTURE_H
#define PARALLEL_VERIFY_CAPTURE_H

#include "parallel/trainer/trainer.h"

/* The results of a step. The arrays hold all parameters in the order of the parameter table, each
 * as its whole logical tensor. */
typedef struct {
    int64_t step; /* number of the step, from 1 */
    double loss, grad_norm, loss_scale;
    bool applied;
    int64_t n;
    double *gradient; /* gradient of the loss, before clipping */
    /* weights after the update, as the ranks with data-parallel index 0 have them */
    double *weight;
} Capture;

/* Allocates a capture for a model with this table. */
Capture capture_create(const ParamTable *table);
void capture_free(Capture *capture);
/* Captures the step that trainer_step has just made. All ranks of the trainer's world must call it
 * together, and the records of all earlier steps must have been read (trainer_read_all). Waits for
 * the device. */
void capture_step(Capture *out, Trainer *trainer);
/* Captures only the weights. */
void capture_weights(Capture *out, Trainer *trainer);
/* Compares replicas bit for bit: returns the name of the first parameter whose weights differ
 * between ranks that hold the same part of it, or NULL if there is none. All ranks get the same
 * result and must call it together. Data-parallel ranks hold the same part of every parameter.
 * Tensor-parallel ranks share parameters that are not split, and some share heads of keys and
 * values. The first and the last stage share a tied table. */
const char *capture_drift(Trainer *trainer);

#endif
