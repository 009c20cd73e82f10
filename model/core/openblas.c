/* openblas.c -- loads the system's OpenBLAS at run time and checks that it works; see openblas.h.
 *
 * OpenBLAS is limited to one thread: our thread pool cuts every product into tiles and calls
 * OpenBLAS once per tile. The ranks of one process share the library, each with its own dlopen
 * handle. Environment variables that would change its kernels or threads are overridden before it
 * loads.
 *
 * Each concurrent call needs its own 128 MiB buffer, which OpenBLAS maps when it first needs it. If
 * the system refuses the memory, OpenBLAS retries forever while holding its lock. So all buffers
 * are mapped when the library is opened. If the address space is limited, a forked child process
 * first tries whether there is room for them. */
#include "model/core/openblas.h"

#include "model/core/check.h"
#include "model/core/child.h"
#include "model/core/machine.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* CPU time limit of a trial: twenty times the usual duration. */
enum { TRIAL_MICROSECONDS = 250000 };
/* Address space that must be left after a trial: for files, thread stacks and a small model. */
#define TRIAL_LEAVES ((size_t)64 << 20)
/* Side of the trial's matrices: too large for the kernels that need no buffer. */
enum { TRIAL_SIDE = 128 };

/* Exit codes of a trial, in this order: all memory is available; too little address space is left;
 * OpenBLAS could not be opened, in which case the parent process tries to open it as well and
 * reports the error. */
enum { TRIAL_GOOD, TRIAL_REFUSED, TRIAL_NOT_OPENED };

/* State of the library, which all devices of the process share: for how many concurrent calls it
 * has buffers, and whether it was already limited to one thread. */
static struct {
    int callers;
    bool asked;
} process;

/* Sets an environment variable, or clears it if `value` is NULL. Does not write if it already has
 * that value. */
static void environment_force(const char *name, const char *value)
{
    const char *now = getenv(name);
    if (value == NULL && now != NULL) unsetenv(name);
    if (value != NULL && (now == NULL || strcmp(now, value) != 0)) setenv(name, value, 1);
}

void openblas_prepare(void)
{
    /* OpenBLAS reads these variables when it is loaded. A kernel named in the user's environment
     * might need instructions that this CPU does not have. */
    environment_force("OPENBLAS_CORETYPE", NULL);
    environment_force("OPENBLAS_NUM_THREADS", "1");
}

/* Opens a thread-safe OpenBLAS. Returns NULL if the system has none (why is "") or none that can be
 * loaded (why tells the reason). Of the three builds that Debian packages, the pthread build is
 * tried first, because its threads, if they were ever started, sleep while idle. */
static void *library_open(char *why, size_t n)
{
    static const char *const name[] = {
        "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
        "libopenblas.so.0",
        "libopenblasp.so.0",
        "libopenblas.so",
    };
    openblas_prepare();
    error_set(why, n, "%s", "");
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        void *library = dlopen(name[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library == NULL) {
            const char *error = dlerror();
            if (why[0] == '\0' && error && strstr(error, "No such file") == NULL)
                error_set(why, n, "%s", error);
            continue;
        }
        int (*parallel)(void) = (int (*)(void))dlsym(library, "openblas_get_parallel");
        if (parallel != NULL && parallel() != 0) return library; /* nonzero: thread-safe */
        dlclose(library);
    }
    return NULL;
}

/* Fills in cpu's fields. Returns false if the library lacks a function that is needed. */
static bool find_functions(CpuDevice *cpu, void *library)
{
    void (*set_threads)(int) = (void (*)(int))dlsym(library, "openblas_set_num_threads");
    char *(*config)(void) = (char *(*)(void))dlsym(library, "openblas_get_config");
    BlasSgemm sgemm = (BlasSgemm)dlsym(library, "cblas_sgemm");
    BlasDgemm dgemm = (BlasDgemm)dlsym(library, "cblas_dgemm");
    if (set_threads == NULL || config == NULL || sgemm == NULL || dgemm == NULL) return false;
    if (!process.asked) set_threads(1);
    process.asked = true;
    cpu->library = library;
    cpu->sgemm = sgemm;
    cpu->dgemm = dgemm;
    char product[64] = "OpenBLAS", version[32] = "";
    sscanf(config(), "%63s %31s", product, version);
    snprintf(cpu->blas_name, sizeof cpu->blas_name, "%s %s", product, version);
    return true;
}

/* Makes the library map its buffers for `threads` concurrent calls, using the internal functions
 * with which its own calls take and return buffers; it keeps the mappings. A library that hides
 * these functions maps its buffers later. Returns false if malloc fails. */
static bool take_buffers(void *library, int threads)
{
    void *(*take)(int) = (void *(*)(int))dlsym(library, "blas_memory_alloc");
    void (*give_back)(void *) = (void (*)(void *))dlsym(library, "blas_memory_free");
    if (take == NULL || give_back == NULL) return true;
    void **buffer = calloc((size_t)threads, sizeof *buffer);
    if (buffer == NULL) return false;
    for (int i = 0; i < threads; i++)
        buffer[i] = take(0);
    for (int i = 0; i < threads; i++)
        if (buffer[i]) give_back(buffer[i]);
    free(buffer);
    return true;
}

/* Returns how many concurrent calls the library was compiled for. Its configuration string ends in
 * "MAX_THREADS=64". Returns INT_MAX if the string does not contain this. */
static int most_callers(void *library)
{
    static const char key[] = "MAX_THREADS=";
    char *(*config)(void) = (char *(*)(void))dlsym(library, "openblas_get_config");
    const char *at = strstr(config(), key);
    int most = at ? (int)strtol(at + sizeof key - 1, NULL, 10) : 0;
    return most > 0 ? most : INT_MAX;
}

/* Multiplies two matrices of ones and checks the result. x has room for input and result. */
static bool multiplies(const CpuDevice *cpu, float *x)
{
    const int side = TRIAL_SIDE, count = side * side;
    float *y = x + count;
    for (int i = 0; i < count; i++)
        x[i] = 1;
    cpu->sgemm(101, 111, 112, side, side, side, 1, x, side, x, side, 0, y, side);
    bool good = true;
    for (int i = 0; i < count; i++)
        good &= y[i] == (float)side;
    return good;
}

/* Opens the library for use in this process. Also called in the forked child, so it returns errors
 * and never exits. */
static bool open_here(CpuDevice *cpu, int threads, char *why, size_t n)
{
    void *library = library_open(why, n);
    if (library == NULL) return false;
    if (!find_functions(cpu, library)) {
        dlclose(library);
        return error_set(why, n, "OpenBLAS lacks functions that every release has");
    }
    float *x = calloc((size_t)2 * TRIAL_SIDE * TRIAL_SIDE, sizeof *x);
    int most = most_callers(library);
    bool few = threads <= most;
    bool memory =
        few && x != NULL && (threads <= process.callers || take_buffers(library, threads));
    bool good = memory && multiplies(cpu, x);
    free(x);
    if (good) {
        if (threads > process.callers) process.callers = threads;
        return true;
    }
    *cpu = (CpuDevice){.level = cpu->level};
    dlclose(library);
    if (!few)
        return error_set(why, n, "OpenBLAS is built for %d threads at once, and %d would call it",
                         most, threads);
    return error_set(why, n, "OpenBLAS %s",
                     memory ? "computes 1 + 1 wrongly on this CPU" : "gets no memory");
}

/* Returns whether mmap may fail although memory is free: because of a resource limit, or because
 * the system does not overcommit memory. */
static bool address_space_is_limited(void)
{
    struct rlimit space, data;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) return true;
    if (getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur != RLIM_INFINITY) return true;
    return kernel_number("/proc/sys/vm/overcommit_memory", "") == 2;
}

/* Runs in the child: opens OpenBLAS as the process would, with a CPU time limit that ends an
 * endless loop. Never returns. */
static void try_and_exit(int threads, size_t rest)
{
    CpuDevice cpu = {0};
    char why[256];
    struct itimerval limit = {.it_value = {.tv_usec = TRIAL_MICROSECONDS}};
    struct rlimit no_core = {0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGPROF, SIG_DFL);
    setitimer(ITIMER_PROF, &limit, NULL);
    if (!open_here(&cpu, threads, why, sizeof why)) _exit(TRIAL_NOT_OPENED);
    void *left =
        mmap(NULL, TRIAL_LEAVES + rest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _exit(left == MAP_FAILED ? TRIAL_REFUSED : TRIAL_GOOD);
}

/* Opens OpenBLAS in a forked child. Returns false and sets `why` if the child runs out of memory,
 * crashes or cannot be started. */
static bool trial(int threads, size_t rest, char *why, size_t n)
{
    int status = 0;
    Child child;
    pid_t pid = child_fork(&child);
    if (pid == 0) try_and_exit(threads, rest);
    if (pid < 0 || child_wait(&child, &status, 0) < 0)
        return error_set(why, n, "OpenBLAS cannot be tried in a process of its own: %s",
                         strerror(errno));
    int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (by != 0 && by != SIGPROF)
        return error_set(why, n,
                         "OpenBLAS, tried within the limit on address space, was ended by signal "
                         "%d (%s)",
                         by, strsignal(by));
    if (by == 0 && WEXITSTATUS(status) != TRIAL_REFUSED) return true;
    return error_set(
        why, n,
        "OpenBLAS does not get its memory, 128 MiB for each of %d thread%s, within the "
        "limit on address space (ulimit -v)",
        threads, threads == 1 ? "" : "s");
}

bool openblas_open(CpuDevice *cpu, int threads, size_t rest, char *why, size_t n)
{
    /* The trial costs a fork, so it is made only if the address space is limited. Otherwise mmap
     * fails only when all memory is used up. */
    bool tried = threads <= process.callers || !address_space_is_limited();
    return (tried || trial(threads, rest, why, n)) && open_here(cpu, threads, why, n);
}
