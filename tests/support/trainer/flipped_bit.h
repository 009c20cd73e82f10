/* flipped_bit.h -- flips a bit of what one rank holds, as failing memory would. */
#ifndef TESTS_SUPPORT_TRAINER_FLIPPED_BIT_H
#define TESTS_SUPPORT_TRAINER_FLIPPED_BIT_H

#include "parallel/trainer/trainer.h"

/* Flips a bit of an element of a parameter on this rank: of its weight as the next step will read
 * it (slot -1), or of the state in a slot of the optimizer (optimizer_rules.h). `element` counts
 * from the beginning of what this rank holds of the parameter. Waits for the device. Returns false
 * if this rank does not hold it. */
bool flip_held_bit(Trainer *trainer, const char *param, int slot, int64_t element, int bit);

#endif
