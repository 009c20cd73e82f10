/* ranges.cc -- the profiler's named ranges (NVTX): only counted. */
#include <nvtx3/nvToolsExt.h>

static long begun, open;

int nvtxRangePushA(const char *message)
{
    (void)message;
    __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED);
    return (int)__atomic_fetch_add(&open, 1, __ATOMIC_RELAXED);
}

int nvtxRangePop(void)
{
    return (int)__atomic_sub_fetch(&open, 1, __ATOMIC_RELAXED);
}

long emu_ranges_begun(void)
{
    return __atomic_load_n(&begun, __ATOMIC_RELAXED);
}

long emu_ranges_open(void)
{
    return __atomic_load_n(&open, __ATOMIC_RELAXED);
}
