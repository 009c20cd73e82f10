/* library.c -- opens libnccl.so.2, looks up its functions and checks its version. */
#include "parallel/comm/nccl/library.h"

#include "model/core/check.h"
#include "model/core/wheels.h"
#include "parallel/comm/nccl/nccl.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_FILE "libnccl.so.2"
/* The end of the error message if NCCL is missing or too old: what the user can do. */
#define NCCL_ADVICE                                                                                \
    "; install NCCL " NCCL_LEAST_TEXT " or newer (NVIDIA's package libnccl2, or PyPI's "           \
    "nvidia-nccl-cu13 for the python3 in PATH), or set CUDA_VISIBLE_DEVICES to one GPU, which "    \
    "all ranks will share"

/* State of the library. A process opens it once. */
static struct {
    pthread_mutex_t mutex; /* guards all fields until the library is open */
    const NcclLibrary *given;
    bool asked, open;
    char err[1024];
    int version;
    NcclLibrary functions;
} nccl = {.mutex = PTHREAD_MUTEX_INITIALIZER};

const NcclLibrary *nccl_library(void)
{
    CHECK(nccl.open, "NCCL is not open: %s", nccl.asked ? nccl.err : "nobody has asked for it");
    return &nccl.functions;
}

void nccl_library_use(const NcclLibrary *functions)
{
    pthread_mutex_lock(&nccl.mutex);
    nccl.given = functions;
    nccl.asked = nccl.open = false;
    pthread_mutex_unlock(&nccl.mutex);
}

/* Opens the library where the loader finds it, otherwise that of a Python package. A library that
 * the loader finds but cannot open is an error: another one might be of another version. */
static void *open_file(char *err, size_t n)
{
    char path[1024], why[512];
    void *library = dlopen(NCCL_FILE, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) return library;
    snprintf(why, sizeof why, "%s", dlerror());
    bool missing = strstr(why, NCCL_FILE ": cannot open shared object file") != NULL;
    if (missing && wheels_find(NCCL_FILE, path, sizeof path)) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
        snprintf(why, sizeof why, "%s", dlerror());
    }
    error_set(err, n, "ranks with a GPU each need NCCL, which cannot be opened: %s" NCCL_ADVICE,
              why);
    return NULL;
}

static bool load(NcclLibrary *functions, char *err, size_t n)
{
    static const char *const name[] = {
#define X(field, name, result, arguments) #name,
        NCCL_FUNCTIONS(X)
#undef X
    };
    enum { FUNCTIONS = sizeof name / sizeof *name };
    _Static_assert(sizeof *functions == FUNCTIONS * sizeof(void *), "a table of functions alone");
    void *library = open_file(err, n), *found[FUNCTIONS];
    if (library == NULL) return false;
    /* Look up all functions now: a missing one must not end a run hours later. */
    for (int i = 0; i < FUNCTIONS; i++) {
        found[i] = dlsym(library, name[i]);
        if (found[i] == NULL) {
            struct link_map *map = NULL;
            bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
            error_set(err, n, "NCCL here (%s) has no %s" NCCL_ADVICE,
                      known ? map->l_name : NCCL_FILE, name[i]);
            dlclose(library); /* the error message already contains its path */
            return false;
        }
    }
    memcpy(functions, found, sizeof found);
    return true;
}

/* Returns the path of the file that the functions were loaded from, or "" if it is unknown. */
static const char *file_of(const NcclLibrary *functions)
{
    Dl_info info;
    void *address;
    memcpy(&address, &functions->get_version, sizeof address);
    return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

static const char *version_text(int version, char *buf, size_t n)
{
    snprintf(buf, n, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return buf;
}

void nccl_set_environment(void)
{
    /* Several communicators use a GPU at the same time. With NCCL_LAUNCH_ORDER_IMPLICIT, NCCL
     * starts their calls there in the order in which the host issued them, which is the same on all
     * ranks. NCCL_RAS_ENABLE=0 keeps NCCL from opening a diagnostics port that any user of the
     * machine could read. Values that the user has set are kept, except for NCCL_COMM_BLOCKING: it
     * overrides a communicator's own config, and with 0, calls would return before they are
     * complete. */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("NCCL_RAS_ENABLE", "0", 0);
    setenv("NCCL_COMM_BLOCKING", "1", 1);
}

static bool open_once(char *err, size_t n)
{
    char text[32];
    if (nccl.given)
        nccl.functions = *nccl.given;
    else if (!load(&nccl.functions, err, n))
        return false;
    NcclResult result = nccl.functions.get_version(&nccl.version);
    if (result != NCCL_SUCCESS)
        return error_set(err, n, "NCCL (%s) does not say its version: %s", file_of(&nccl.functions),
                         nccl.functions.error_string(result));
    return nccl.version >= NCCL_LEAST ||
           error_set(err, n, "NCCL here is %s (%s)" NCCL_ADVICE,
                     version_text(nccl.version, text, sizeof text), file_of(&nccl.functions));
}

bool nccl_open(char *err, size_t n)
{
    pthread_mutex_lock(&nccl.mutex);
    if (!nccl.asked) nccl.open = open_once(nccl.err, sizeof nccl.err);
    nccl.asked = true;
    bool open = nccl.open;
    if (!open) error_set(err, n, "%s", nccl.err);
    pthread_mutex_unlock(&nccl.mutex);
    return open;
}

const char *nccl_describe(char *buf, size_t n)
{
    char text[32];
    const char *file = file_of(nccl_library());
    snprintf(buf, n, "NCCL %s%s%s", version_text(nccl.version, text, sizeof text),
             file[0] ? ", " : "", file);
    return buf;
}

const char *nccl_version(char *buf, size_t n)
{
    (void)nccl_library();
    char text[32];
    snprintf(buf, n, "NCCL %s", version_text(nccl.version, text, sizeof text));
    return buf;
}
