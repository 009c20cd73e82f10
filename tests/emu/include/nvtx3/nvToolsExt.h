/* nvToolsExt.h -- replaces NVTX, which names ranges for a profiler. Only counts the ranges, so that
 * a test can check that every range ends. */
#ifndef TESTS_EMU_NVTX3_NVTOOLSEXT_H
#define TESTS_EMU_NVTX3_NVTOOLSEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both return the number of ranges that are open around this one; nvtxRangePop returns a negative
 * number if no range was open. */
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
/* Returns the number of ranges that this process has begun so far; the second function, the number
 * of those still open. */
long emu_ranges_begun(void);
long emu_ranges_open(void);

#ifdef __cplusplus
}
#endif

#endif
