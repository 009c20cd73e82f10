/* launch.cuh -- the emulated twin of model/kernels/cuda/launch.cuh: a launch runs all threads
 * before it returns. */
#ifndef MODEL_KERNELS_CUDA_LAUNCH_CUH
#define MODEL_KERNELS_CUDA_LAUNCH_CUH

#include "tests/emu/include/cuda_runtime.h"

#define KERNEL_START(kernel, grid, block, shared, stream, ...)                                     \
    emu_launch(EmuLaunch{#kernel, __FILE__, __LINE__, NULL, emu_dims(grid), emu_dims(block),       \
                         (shared), (stream), NULL, NULL},                                          \
               (kernel), __VA_ARGS__)

#define DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(emu_shared_memory())

/* Sizes that do not fit 32 bits would be cut silently by dim3; here they stay too large. */
static inline dim3 emu_dims(dim3 size)
{
    return size;
}

template <class Integer> static inline dim3 emu_dims(Integer size)
{
    return dim3(size < 0 || size > (Integer)0x7fffffff ? 0xffffffffu : (unsigned)size);
}

/* A pointer handed to a kernel must be one into device memory: on a GPU others fault. */
template <class T> static inline void emu_check_argument(const EmuLaunch *, const T &)
{
}

template <class T> static inline void emu_check_argument(const EmuLaunch *launch, T *const &p)
{
    emu_check_pointer(launch, (const void *)p);
}

/* A launch with its own copy of the arguments. */
template <class Body> struct EmuLaunched {
    EmuLaunch launch;
    Body body;
};

template <class Body> static inline void emu_call(const void *body)
{
    (*(const Body *)body)();
}

template <class Body> static inline void emu_launched_run(void *context)
{
    EmuLaunched<Body> *launched = (EmuLaunched<Body> *)context;
    launched->launch.call = emu_call<Body>;
    launched->launch.context = &launched->body;
    emu_run(&launched->launch);
}

/* Arguments are converted to the parameters' types once; each thread then gets its own copy. */
template <class... Parameters, class... Arguments>
static inline void emu_launch(EmuLaunch launch, void (*kernel)(Parameters...),
                              const Arguments &...arguments)
{
    auto start = [&launch, kernel](Parameters... parameters) {
        launch.function = (const void *)kernel;
        launch.device = emu_current_device();
        emu_launch_check(&launch);
        (emu_check_argument(&launch, parameters), ...);
        auto body = [kernel, parameters...] { kernel(parameters...); };
        EmuLaunched<decltype(body)> launched = {launch, body};
        emu_stream_do(launch.stream, emu_launched_run<decltype(body)>, &launched, sizeof launched);
    };
    start(arguments...);
}

#endif
