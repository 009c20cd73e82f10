/* runtime.cc -- the device management and error functions of the CUDA runtime. */
#include "tests/emu/device/emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MULTIPROCESSORS = 6
}; /* small, and not a power of two, so that work does not divide
    * evenly */

static __thread cudaError_t last_error;
static int64_t allocations, waits;

cudaError_t emu_error(cudaError_t code)
{
    last_error = code;
    return code;
}

void emu_count_wait(void)
{
    __atomic_fetch_add(&waits, 1, __ATOMIC_RELAXED);
    emu_memory_host_waits();
}

void emu_count_allocation(void)
{
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
}

int64_t emu_count_allocations(void)
{
    return __atomic_load_n(&allocations, __ATOMIC_RELAXED);
}

int64_t emu_count_waits(void)
{
    return __atomic_load_n(&waits, __ATOMIC_RELAXED);
}

/* ---- errors ---------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

typedef struct {
    cudaError_t code;
    const char *name, *words;
} ErrorWords;

#define WORDS(code, words)                                                                         \
    {                                                                                              \
        code, #code, words                                                                         \
    }
static const ErrorWords ERRORS[] = {
    WORDS(cudaSuccess, "no error"),
    WORDS(cudaErrorInvalidValue, "an argument is not valid"),
    WORDS(cudaErrorMemoryAllocation, "out of memory"),
    WORDS(cudaErrorInitializationError, "no initialisation"),
    WORDS(cudaErrorInvalidConfiguration, "no such launch is possible"),
    WORDS(cudaErrorInvalidMemcpyDirection, "a copy in no known direction"),
    WORDS(cudaErrorInsufficientDriver, "the driver is too old"),
    WORDS(cudaErrorNoDevice, "no device is there"),
    WORDS(cudaErrorInvalidDevice, "no such device"),
    WORDS(cudaErrorInvalidResourceHandle, "no such stream or event"),
    WORDS(cudaErrorNotReady, "not ready"),
    WORDS(cudaErrorIllegalAddress, "an illegal address was touched"),
    WORDS(cudaErrorPeerAccessAlreadyEnabled, "access was enabled before"),
    WORDS(cudaErrorLaunchFailure, "a kernel failed"),
    WORDS(cudaErrorNotSupported, "not supported"),
};
#undef WORDS

static const ErrorWords *error_words(cudaError_t code)
{
    static const ErrorWords unknown = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    for (const ErrorWords &e : ERRORS)
        if (e.code == code) return &e;
    return &unknown;
}

const char *cudaGetErrorName(cudaError_t code)
{
    return error_words(code)->name;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return error_words(code)->words;
}

/* ---- the device ------------------------------------------------------------------------------ */

/* EMU_DRIVER ("none", "old", "broken" or "hangs") replaces the working driver. */
static bool driver_is(const char *state)
{
    const char *word = getenv("EMU_DRIVER");
    return word != NULL && strcmp(word, state) == 0;
}

/* Appends to the file EMU_STARTED the value of CUDA_DEVICE_MAX_CONNECTIONS, which a real driver
 * reads at the first call of a process. */
static void start_driver(void)
{
    const char *file = getenv("EMU_STARTED"), *word = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    FILE *to = file != NULL ? fopen(file, "a") : NULL;
    if (to == NULL) return;
    fprintf(to, "%s connections\n", word != NULL ? word : "default");
    fclose(to);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    EMU_CALL();
    static pthread_once_t started = PTHREAD_ONCE_INIT;
    pthread_once(&started, start_driver);
    const char *word = getenv("EMU_DEVICES");
    *count = 0;
    while (driver_is("hangs"))
        pause();
    if (driver_is("none") || driver_is("old")) return emu_error(cudaErrorInsufficientDriver);
    if (driver_is("broken")) return emu_error(cudaErrorUnknown);
    *count = word != NULL ? atoi(word) : 1;
    if (*count > EMU_DEVICES_MOST) *count = EMU_DEVICES_MOST;
    return *count > 0 ? cudaSuccess : emu_error(cudaErrorNoDevice);
}

static bool is_device(int device)
{
    int count;
    return cudaGetDeviceCount(&count) == cudaSuccess && device >= 0 && device < count;
}

static __thread int current_device;

cudaError_t cudaSetDevice(int device)
{
    EMU_CALL();
    if (!is_device(device)) return emu_error(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

void emu_set_current_device(int device)
{
    current_device = device;
}

int emu_current_device(void)
{
    return current_device;
}

cudaError_t cudaGetDevice(int *device)
{
    EMU_CALL();
    *device = current_device;
    return cudaSuccess;
}

int emu_setting_of(const char *name, int device, int fallback)
{
    const char *word = getenv(name), *comma;
    for (int i = 0; word != NULL && i < device && (comma = strchr(word, ',')) != NULL; i++)
        word = comma + 1;
    return word != NULL && atoi(word) > 0 ? atoi(word) : fallback;
}

size_t emu_memory_of(int device)
{
    return (size_t)emu_setting_of("EMU_MEMORY", device, 8192) << 20;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    EMU_CALL();
    if (!is_device(device)) return emu_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    const char *name = getenv("EMU_NAME");
    snprintf(p->name, sizeof p->name, "%s", name ? name : "emulated GPU");
    p->totalGlobalMem = emu_memory_of(device);
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = EMU_SHARED_MOST;
    p->sharedMemPerMultiprocessor = EMU_SHARED_MOST + 1024;
    p->regsPerBlock = 65536;
    p->warpSize = EMU_WARP;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = EMU_MAX_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    int capability = emu_setting_of("EMU_CAPABILITY", device, 90);
    p->major = capability / 10;
    p->minor = capability % 10;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->asyncEngineCount = 2;
    p->unifiedAddressing = p->concurrentKernels = 1;
    p->memoryBusWidth = 64;
    p->l2CacheSize = 1 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    EMU_CALL();
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess)
        return emu_error(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    default: return emu_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    EMU_CALL();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* With EMU_BUS=same all devices report the same bus id. With EMU_BUS=N the first one is at N + 1:
 * as if the process saw only some of the machine's devices. */
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int device)
{
    EMU_CALL();
    const char *word = getenv("EMU_BUS");
    if (!is_device(device)) return emu_error(cudaErrorInvalidDevice);
    bool same = word && strcmp(word, "same") == 0;
    snprintf(id, (size_t)n, "0000:%02X:00.0", same ? 1 : (word ? atoi(word) : 0) + device + 1);
    return cudaSuccess;
}

static int enabled[EMU_DEVICES_MOST]; /* per device: one bit for each peer whose memory it may
                                       * use */

bool emu_device_reaches(int device, int other)
{
    return device == other ||
           (__atomic_load_n(&enabled[device], __ATOMIC_RELAXED) >> other & 1) != 0;
}

/* EMU_PEERS=none: no device can access another's memory. pairs: devices 0 and 1 can, 2 and 3, and
 * so on. later: a device can access only those with higher numbers. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    EMU_CALL();
    const char *word = getenv("EMU_PEERS");
    if (!is_device(device) || !is_device(peer)) return emu_error(cudaErrorInvalidDevice);
    bool none = word != NULL && strcmp(word, "none") == 0;
    bool pairs = word != NULL && strcmp(word, "pairs") == 0;
    bool later = word != NULL && strcmp(word, "later") == 0;
    *can =
        device != peer && !none && (!pairs || device / 2 == peer / 2) && (!later || device < peer);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    EMU_CALL();
    int can = 0;
    if (flags != 0) return emu_error(cudaErrorInvalidValue);
    if (cudaDeviceCanAccessPeer(&can, current_device, peer) != cudaSuccess || !can)
        return emu_error(cudaErrorInvalidDevice);
    int before = __atomic_fetch_or(&enabled[current_device], 1 << peer, __ATOMIC_RELAXED);
    return before >> peer & 1 ? emu_error(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver_is("none") ? 0 : driver_is("old") ? 12040 : CUDART_VERSION;
    return cudaSuccess;
}
