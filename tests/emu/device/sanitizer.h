/* sanitizer.h -- AddressSanitizer's functions, which exist only in a program built with it. It must
 * know which stack is running and which bytes are forbidden. */
#ifndef TESTS_EMU_DEVICE_SANITIZER_H
#define TESTS_EMU_DEVICE_SANITIZER_H

#include <stddef.h>

extern "C" {
void __sanitizer_start_switch_fiber(void **save, const void *stack, size_t bytes)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *saved, const void **from, size_t *from_bytes)
    __attribute__((weak));
void __asan_poison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
}

static inline bool sanitizer_is_there(void)
{
    return __sanitizer_start_switch_fiber != NULL;
}

/* Call before a switch to `stack`. save NULL: the current stack will not be used again. */
static inline void sanitizer_leave(void **save, const void *stack, size_t bytes)
{
    if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(save, stack, bytes);
}

/* Call after a switch. Stores the previous stack in *from. */
static inline void sanitizer_enter(void *saved, const void **from, size_t *from_bytes)
{
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(saved, from, from_bytes);
}

static inline void sanitizer_forbid(const void *p, size_t bytes)
{
    if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
}

static inline void sanitizer_allow(const void *p, size_t bytes)
{
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
}

#endif
