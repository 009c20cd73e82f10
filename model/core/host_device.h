/* host_device.h -- marks the functions that are compiled for the CPU and for GPUs, so that both
 * give the same bits. */
#ifndef MODEL_CORE_HOST_DEVICE_H
#define MODEL_CORE_HOST_DEVICE_H

/* Written before `inline`. In C it is empty. A file for nvcc redefines it before it includes such
 * functions, as model/kernels/cuda/kernel.cuh does, so that they are compiled for the host and for
 * devices. */
#define HOST_DEVICE

#endif
