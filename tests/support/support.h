/* support.h -- helpers for all tests: random numbers, buffers with guard bands, skipping of tests,
 * and a comparison that names the first wrong element of a tensor. */
#ifndef TESTS_SUPPORT_SUPPORT_H
#define TESTS_SUPPORT_SUPPORT_H

#include "model/core/device.h"

/* Return random number i of a stream, drawn with the program's generator: uniform in [0, 1), or
 * normally distributed. */
double drawn_uniform(uint64_t stream, int64_t i);
double drawn_normal(uint64_t stream, int64_t i);

/* A tensor in the middle of a larger block. All bytes outside its elements, including the gaps
 * between rows, hold a pattern that shows writes out of bounds. */
typedef struct {
    Tensor tensor;
    unsigned char *block, *image; /* image: copy of the block, made by guarded_arm */
    size_t bytes;
    unsigned char *on_device; /* copy of the block on the device, made by guarded_upload */
} Guarded;

/* Creates a tensor with all elements zero and `gap` elements between its rows. With a gap, the data
 * start at an odd element. Free it with guarded_free. */
Guarded guarded_create(DType dtype, int ndim, const int64_t *dim, int64_t gap);
void guarded_free(Guarded *g);
/* Sets element i, counted in row-major order without the gaps. */
void guarded_set(Guarded *g, int64_t i, double x);
/* Saves a copy of the whole block; guarded_restore restores it. */
void guarded_arm(Guarded *g);
void guarded_restore(Guarded *g);
/* Copy the whole block with its guard bands to the device and back. The first upload allocates the
 * device memory; guarded_release frees it. guarded_twin returns the tensor on the device. */
void guarded_upload(Guarded *g, Device *dev);
void guarded_download(Guarded *g, Device *dev);
Tensor guarded_twin(const Guarded *g);
void guarded_release(Guarded *g, Device *dev);
/* Return true if the block still equals the saved copy: outside the elements, or everywhere. */
bool guarded_bands_intact(const Guarded *g);
bool guarded_intact(const Guarded *g);

/* Ends the running test as skipped and prints the reason. scripts/run_tests.sh shows the reason,
 * and fails a test program that skips without one. */
void skip_because(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Skips the test with the reason if no CUDA device (or emulated one) can be opened. */
void cuda_needed(void);
/* Returns the number of CUDA devices (or emulated ones) that the process can open. */
int cuda_devices(void);
/* Skips the test if there are fewer than `least` CUDA devices. */
void cuda_devices_needed(int least);

/* Returns the root mean square of x[0..n). */
double rms_of(const double *x, int64_t n);

/* Returns true if each element i of t differs from exact[i] by at most tolerance * max(|exact[i]|,
 * rms of exact, magnitude). Otherwise writes the first element that does not (or is NaN) to err,
 * with its index, both numbers and the bound, and returns false. */
bool tensor_close(Tensor t, const double *exact, double tolerance, double magnitude, char *err,
                  size_t n);

#endif
