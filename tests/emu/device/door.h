/* door.h -- the functions that the emulated CUDA device exports to libraries outside the program,
 * such as the emulated NCCL. Apart from CUDA's own functions the program exports only the names in
 * tests/emu/device/door.list. */
#ifndef TESTS_EMU_DEVICE_DOOR_H
#define TESTS_EMU_DEVICE_DOOR_H

#include "tests/emu/include/cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An allocation of device memory: its start, its size and its device. */
typedef struct {
    char *base;
    size_t bytes;
    int device;
} EmuRange;

/* Ends the program. Prints "emu: " and the message and, inside a kernel, the kernel, block, thread
 * and source line. */
void emu_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Returns the calling thread's current device. */
int emu_current_device(void);
/* Returns the stream's device, or -1 if the stream does not exist (any more). */
int emu_stream_device(cudaStream_t stream);
/* Enqueues a host function on the stream. It may wait for other threads, gets a copy of the
 * context, and may run in any thread. With strict streams it runs before this call returns. */
void emu_stream_do_host(cudaStream_t stream, void (*work)(void *context), const void *context,
                        size_t bytes);
/* Returns whether p is in live device memory, and describes the allocation in *range. */
bool emu_memory_range(const void *p, EmuRange *range);
/* Marks the allocation that contains p as in use. Until the matching unpin (calls may nest),
 * cudaFree of it ends the program with a message that contains `what`. */
void emu_memory_pin(const void *p, const char *what);
void emu_memory_unpin(const void *p);
/* The calling process can access device memory only between these two calls, which may nest. */
void emu_memory_open(void);
void emu_memory_close(void);
/* Called when a device gets a communicator (more: 1) or loses one (-1). */
void emu_driver_connected(int device, int more);

#ifdef __cplusplus
}
#endif

#endif
