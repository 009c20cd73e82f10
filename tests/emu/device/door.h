/* door.h -- what the emulator offers to libraries outside the program, as the stand-in for NCCL is
 * one: the program exports these names (tests/emu/device/door.list) and no others of its own. */
#ifndef TESTS_EMU_DEVICE_DOOR_H
#define TESTS_EMU_DEVICE_DOOR_H

#include "tests/emu/include/cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Live device memory: where its allocation begins, how long it is, on which device. */
typedef struct {
    char *base;
    size_t bytes;
    int device;
} EmuRange;

/* Ends the program: "emu: " and the sentence, then kernel, block, thread and place where a kernel
 * runs. */
void emu_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* The device that the calling thread has made current. */
int emu_current_device(void);
/* The device of a stream; -1: it is none, or none any more. */
int emu_stream_device(cudaStream_t stream);
/* Puts a host function after all that the stream was asked for; it may wait for somebody,
 * and runs on a copy of the context in a thread that may be any: before the call returns where the
 * streams are strict. */
void emu_stream_do_host(cudaStream_t stream, void (*work)(void *context), const void *context,
                        size_t bytes);
/* Whether p is in live device memory. */
bool emu_memory_range(const void *p, EmuRange *range);
/* From pin to unpin, which nest, it is an error to free the allocation that p lies in: cudaFree
 * ends the program, naming `what`. */
void emu_memory_pin(const void *p, const char *what);
void emu_memory_unpin(const void *p);
/* Device memory answers the calling process only between these two, which nest. */
void emu_memory_open(void);
void emu_memory_close(void);

#ifdef __cplusplus
}
#endif

#endif
