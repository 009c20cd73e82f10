/* replicas.h -- compares the weights and optimizer states that several ranks hold. */
#ifndef PARALLEL_TRAINER_REPLICAS_H
#define PARALLEL_TRAINER_REPLICAS_H

#include "parallel/trainer/trainer.h"

/* Compares weights and optimizer states that several ranks hold and that must have the same bits on
 * all of them; README.md lists which these are on each kind of grid. The ranks send each other only
 * hashes. Returns true if all are equal. If not, returns false on all ranks, and the same text in
 * err[0..n): which unit differs on which ranks, and which of these ranks differ from the majority.
 * All ranks call it together, between two steps; it changes nothing. Waits for the device. */
bool trainer_replicas_equal(Trainer *trainer, char *err, size_t n);

#endif
