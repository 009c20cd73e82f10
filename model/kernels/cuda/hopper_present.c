/* hopper_present.c -- linked if the program has the attention kernels for Hopper; otherwise the
 * Makefile links hopper_absent.c. */
#include "model/kernels/cuda/attention.h"

bool hopper_attention_built(void)
{
    return true;
}
