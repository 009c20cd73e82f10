/* lt.c -- finds and opens cuBLASLt. The products are in lt_product.c. */
#include "model/kernels/cuda/lt.h"

#include "model/core/wheels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void lt_check(const Lt *lt, cublasStatus_t status, const char *call, const char *file, int line)
{
    if (status == CUBLAS_STATUS_SUCCESS) return;
    bool full = status == CUBLAS_STATUS_ALLOC_FAILED;
    fail(full ? EXIT_NO_MEMORY : EXIT_SYSTEM, "%s:%d: %s: %s%s", file, line, call,
         lt->GetStatusName(status), full ? "; " MEMORY_ADVICE : "");
}

/* ---- finding the library --------------------------------------------------------------------- */

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)

/* Advice in every message about a library that is missing or does not fit. */
#define LT_ADVICE "install cuBLAS " TEXT(CUBLAS_VER_MAJOR) " or add its folder to LD_LIBRARY_PATH"

/* File names of the library, which contain the major version; the second name is used in developer
 * toolkits. */
static const char *const file_names[] = {"libcublasLt.so." TEXT(CUBLAS_VER_MAJOR),
                                         "libcublasLt.so"};

/* Looks up all functions of the library. Returns false and names the first missing one in err. */
static bool find_functions(Lt *lt, char *err, size_t n)
{
    void *from = lt->library ? lt->library : RTLD_DEFAULT;
    static const char *const name[] = {
#define F(name) "cublasLt" #name,
        LT_FUNCTIONS(F)
#undef F
    };
    void *found[sizeof name / sizeof *name];
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        found[i] = dlsym(from, name[i]);
        if (found[i] == NULL) return error_set(err, n, "libcublasLt has no %s", name[i]);
    }
    void **at = found;
#define F(name) *(void **)&lt->name = *at++;
    LT_FUNCTIONS(F)
#undef F
    return true;
}

/* Returns true if the library has all functions and the major version of the header, whose
 * constants and structs this program contains; otherwise sets err. */
static bool fits(Lt *lt, char *err, size_t n)
{
    Dl_info from = {0};
    char version[32];
    if (!find_functions(lt, err, n)) return false;
    if (lt->GetVersion() / 10000 == CUBLAS_VER_MAJOR) return true;
    dladdr(*(void **)&lt->GetVersion, &from);
    return error_set(err, n,
                     "%s is cuBLASLt %s, and this program is built for version %d; " LT_ADVICE,
                     from.dli_fname ? from.dli_fname : file_names[1],
                     lt_version(lt, version, sizeof version), CUBLAS_VER_MAJOR);
}

/* Opens the library in this file and returns true if it fits. Otherwise returns false and sets err;
 * if there is no such file, err is unchanged. */
static bool load_file(Lt *lt, const char *path, char *err, size_t n)
{
    lt->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (lt->library == NULL) return false;
    if (fits(lt, err, n)) return true;
    dlclose(lt->library);
    lt->library = NULL;
    return false;
}

/* Opens the library: first by the loader's search rules, then in the toolkit's folders, then among
 * Python packages. Returns false and sets err if there is none that fits. Opens nothing if the
 * program itself contains the functions, as the test programs with the emulated cuBLASLt do. */
static bool load(Lt *lt, char *err, size_t n)
{
    const char *home = getenv("CUDA_HOME");
    const char *const folder[] = {"", home ? home : "/usr/local/cuda", "/usr/local/cuda"};
    char path[1024], unfit[1024] = "";
    if (dlsym(RTLD_DEFAULT, "cublasLtCreate") != NULL) return fits(lt, err, n);
    for (int f = 0; f < 3; f++) {
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s%s%s", folder[f], f ? "/lib64/" : "", file_names[i]);
            if (load_file(lt, path, unfit, sizeof unfit)) return true;
        }
    }
    if (wheels_find(file_names[0], path, sizeof path) && load_file(lt, path, unfit, sizeof unfit))
        return true;
    if (unfit[0] != 0) return error_set(err, n, "%s", unfit);
    return error_set(err, n,
                     "there is a GPU, but %s cannot be loaded; " LT_ADVICE
                     " (looked also in $CUDA_HOME/lib64, /usr/local/cuda/lib64 and the packages of "
                     "python3)",
                     file_names[0]);
}

bool lt_find(char *err, size_t n)
{
    Lt lt = {0};
    bool found = load(&lt, err, n);
    if (lt.library)
        dlclose(lt.library); /* the library stays loaded (RTLD_NODELETE), so lt_open
                              * does not load it again */
    return found;
}

Lt *lt_open(bool tf32, char *err, size_t n)
{
    Lt *lt = must_calloc(1, sizeof *lt);
    lt->tf32 = tf32;
    if (load(lt, err, n)) {
        cublasStatus_t status = lt->Create(&lt->handle);
        if (status == CUBLAS_STATUS_SUCCESS) return lt;
        error_set(err, n, "cuBLASLt cannot start: %s", lt->GetStatusName(status));
    }
    lt_close(lt);
    return NULL;
}

void lt_close(Lt *lt)
{
    if (lt == NULL) return;
    lt_plans_free(lt);
    if (lt->handle) LT_CHECK(lt, lt->Destroy(lt->handle));
    if (lt->library) dlclose(lt->library);
    free(lt);
}

const char *lt_version(const Lt *lt, char *buf, size_t n)
{
    size_t v = lt->GetVersion();
    snprintf(buf, n, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return buf;
}
