/* turns.h -- a kernel that records in which order the work of several streams is done, and
 * helpers. */
#ifndef TESTS_EMU_DEVICE_TURNS_H
#define TESTS_EMU_DEVICE_TURNS_H

#include "model/kernels/cuda/kernel.cuh"

#include <stdio.h>
#include <stdlib.h>

/* Sets the seed of random streams. */
static void set_seed(int seed)
{
    char word[16];
    snprintf(word, sizeof word, "%d", seed);
    setenv("EMU_SEED", word, 1);
}

/* Creates a stream that the default stream does not wait for. */
static cudaStream_t stream_create(void)
{
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Stores the next number in *turn. */
static __global__ void __launch_bounds__(32) turn_kernel(int *next, int *turn)
{
    *turn = (*next)++;
}

#endif
