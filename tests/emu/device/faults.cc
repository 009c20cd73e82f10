/* faults.cc -- prints a message for memory errors: the kernel, block and thread, and what is at the
 * address. Then the error has its usual effect (a core dump, or AddressSanitizer's report with the
 * line). Kernels are compiled with -fsanitize=alignment, which traps with an illegal instruction,
 * because a GPU rejects misaligned accesses that x86 allows. */
#include "tests/emu/device/emu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL};
enum { SIGNAL_COUNT = 3 };

static struct sigaction handler_before[SIGNAL_COUNT];

static void describe_address(const char *at, char *buf, size_t n)
{
    const EmuThread *thread = emu_thread;
    if (thread != NULL && at >= thread->block->shared_space - EMU_GUARD &&
        at < thread->block->shared_space + EMU_SHARED_MOST + EMU_GUARD)
        snprintf(buf, n, "%zd bytes from the start of its %zu bytes of shared memory",
                 at - (const char *)thread->block->shared, thread->block->launch->shared);
    else if (!emu_memory_describe(at, buf, n))
        snprintf(buf, n, "no device memory (address %p)", (const void *)at);
}

static void fault(int signal, siginfo_t *info, void *)
{
    char what[256] = "memory that is not aligned to the type it is read or written as";
    char where[512], line[1024];
    if (signal != SIGILL) describe_address((const char *)info->si_addr, what, sizeof what);
    emu_describe(where, sizeof where);
    int n = snprintf(line, sizeof line, "emu: %s touches %s%s\n",
                     emu_thread ? "a kernel" : "host code", what, where);
    if (write(2, line, (size_t)n) != n) _exit(128 + signal);
    for (int i = 0; i < SIGNAL_COUNT; i++)
        if (SIGNALS[i] == signal) sigaction(signal, &handler_before[i], NULL);
}

/* Other code, such as a test framework, may have installed its own handlers since the last
 * launch. */
void emu_faults_install(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction action, now;
    pthread_mutex_lock(&lock);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < SIGNAL_COUNT; i++) {
        if (sigaction(SIGNALS[i], NULL, &now) != 0 || now.sa_sigaction == fault) continue;
        handler_before[i] = now;
        sigaction(SIGNALS[i], &action, NULL);
    }
    pthread_mutex_unlock(&lock);
}

EmuSignalStack emu_signal_stack_enter(void *stack)
{
    stack_t mine = {}, before;
    mine.ss_sp = stack;
    mine.ss_size = EMU_SIGNAL_STACK;
    if (sigaltstack(&mine, &before) != 0) emu_die("sigaltstack failed");
    return before;
}

void emu_signal_stack_leave(EmuSignalStack before)
{
    sigaltstack(&before, NULL);
}
