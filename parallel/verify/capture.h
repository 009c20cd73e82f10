/* capture.h -- what one training step made, as whole tensors by name, on any grid: so that a grid
 * can be compared with a single rank, and with its own replicas. */
#ifndef PARALLEL_VERIFY_CAPTURE_H
#define PARALLEL_VERIFY_CAPTURE_H

#include "parallel/trainer/trainer.h"

/* Elements of all parameters in table order, each as its whole logical tensor. */
typedef struct {
    int64_t step; /* from 1 */
    double loss, grad_norm, loss_scale;
    bool applied;
    int64_t n;
    double *gradient; /* of the loss, before clipping */
    double *weight;   /* after the update, as the models of the first data-parallel ranks read it */
} Capture;

/* Room for a model of this table. */
Capture capture_create(const ParamTable *table);
void capture_free(Capture *capture);
/* Captures the step that trainer_step has just made. All ranks of the trainer's world must call it
 * together, and the records of all earlier steps must have been read (trainer_read_all). Waits for
 * the device. */
void capture_step(Capture *out, Trainer *trainer);
/* The weights alone. */
void capture_weights(Capture *out, Trainer *trainer);
/* The name of the first parameter of which ranks that hold the same part read other bits, the same
 * on all ranks; NULL where there is none. Data-parallel ranks hold the same of all; tensor-parallel
 * ones what is not cut, and shared heads of keys and values; first and last stage a tied table. All
 * ranks call it together. */
const char *capture_drift(Trainer *trainer);

#endif
