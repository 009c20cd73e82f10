/* nvToolsExt.h -- named ranges for a profiler that is not there: their depth is kept, so that a
 * test can see every range end. */
#ifndef TESTS_EMU_NVTX3_NVTOOLSEXT_H
#define TESTS_EMU_NVTX3_NVTOOLSEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both return the depth outside of the range, from 0; negative when none was open. */
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
/* Ranges begun so far by this process, and how many of them are open. */
long emu_ranges_begun(void);
long emu_ranges_open(void);

#ifdef __cplusplus
}
#endif

#endif
