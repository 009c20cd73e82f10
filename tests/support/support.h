/* support.h -- what test programs share: drawn numbers, buffers with guard bands, comparison that
 * names the first differing element. */
#ifndef TESTS_SUPPORT_SUPPORT_H
#define TESTS_SUPPORT_SUPPORT_H

#include "model/core/device.h"

/* Number i of a stream, from the program's generator: uniform in [0, 1), and close to normal. */
double drawn_uniform(uint64_t stream, int64_t i);
double drawn_normal(uint64_t stream, int64_t i);

/* A tensor in the middle of a larger block. Everything around its elements, gaps between rows
 * included, holds a pattern. */
typedef struct {
    Tensor tensor;
    unsigned char *block, *image; /* image: the block as guarded_arm saw it */
    size_t bytes;
    unsigned char *on_device; /* the block's twin after guarded_upload */
} Guarded;

/* Elements are zero at first. `gap`: elements between rows; with a gap the data starts at an odd
 * element. */
Guarded guarded_create(DType dtype, int ndim, const int64_t *dim, int64_t gap);
void guarded_free(Guarded *g);
/* Sets element i in row-major order, gaps not counted. */
void guarded_set(Guarded *g, int64_t i, double x);
/* Remembers the whole block; guarded_restore brings it back. */
void guarded_arm(Guarded *g);
void guarded_restore(Guarded *g);
/* Copies the whole block, bands and all, to its twin on the device (made at the first call), and
 * back; guarded_twin is the tensor there. Give it back with guarded_release. */
void guarded_upload(Guarded *g, Device *dev);
void guarded_download(Guarded *g, Device *dev);
Tensor guarded_twin(const Guarded *g);
void guarded_release(Guarded *g, Device *dev);
/* Nothing but elements differs from the image; nothing at all does. */
bool guarded_bands_intact(const Guarded *g);
bool guarded_intact(const Guarded *g);

/* Ends the running test as skipped, and says why: scripts/run_tests.sh shows the sentence, and
 * fails a program that skips without one. */
void skip_because(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Skips the test where no CUDA device, or the emulated one, can be opened, with the reason. */
void cuda_needed(void);
/* How many CUDA devices, or emulated ones, the process sees: 0 where there are none to open. */
int cuda_devices(void);
/* Skips the test where there are fewer. */
void cuda_devices_needed(int least);

/* Root mean square. */
double rms_of(const double *x, int64_t n);

/* Every element of t within tolerance * max(|exact|, rms of exact, magnitude) of exact[i]; else
 * false with a sentence on the first that is not (or is NaN) in err: index, both numbers, the
 * bound. */
bool tensor_close(Tensor t, const double *exact, double tolerance, double magnitude, char *err,
                  size_t n);

#endif
