/* launch.cuh -- replaces model/kernels/cuda/launch.cuh on the emulated device: queues a launch on
 * its stream; when the stream runs it, all threads run on the CPU. */
#ifndef MODEL_KERNELS_CUDA_LAUNCH_CUH
#define MODEL_KERNELS_CUDA_LAUNCH_CUH

#include "tests/emu/include/cuda_runtime.h"

#include <type_traits>

#define KERNEL_START(kernel, name, grid, block, shared, stream, ...)                               \
    emu_launch(EmuLaunch{(name), __FILE__, __LINE__, NULL, (grid), (block), (shared), (stream),    \
                         NULL, NULL},                                                              \
               (kernel), __VA_ARGS__)

#define DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(emu_shared_memory())

/* Checks that a pointer argument, and every pointer in a struct, points to device memory or to
 * page-locked memory: on a GPU any other pointer would cause a fault. Padding of a struct is
 * cleared first, because it may still contain an old address. */
template <class T> static inline void emu_check_argument(const EmuLaunch *launch, const T &argument)
{
    if constexpr (std::is_class<T>::value) {
        T copy = argument;
        __builtin_clear_padding(&copy);
        emu_check_words(launch, &copy, sizeof copy);
    }
}

template <class T> static inline void emu_check_argument(const EmuLaunch *launch, T *const &p)
{
    emu_check_pointer(launch, (const void *)p);
}

/* A queued launch with its own copy of the arguments. */
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

/* Queues a launch. The arguments are converted to the parameters' types once; each thread then gets
 * its own copy. */
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
