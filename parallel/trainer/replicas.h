/* replicas.h -- compares the weights and optimizer states that several ranks hold in common. */
#ifndef PARALLEL_TRAINER_REPLICAS_H
#define PARALLEL_TRAINER_REPLICAS_H

#include "parallel/trainer/trainer.h"

/* Compares, unit by unit and bit by bit, the data that ranks hold in common and compute or copy
 * with the same bits: weights, and optimizer states that more than one rank updates. README.md says
 * which data these are on which grid. Each rank sends only hashes. Returns true if all are equal.
 * If not, returns false on all ranks and sets err[0..n), the same text on all: which unit differs
 * between which ranks, and whose bits differ from the majority's. All ranks call it together,
 * between two steps; it changes nothing. Waits for the device. */
bool trainer_replicas_equal(Trainer *trainer, char *err, size_t n);

#endif
