/* wheels.h -- finds shared libraries that Python packages bring along: PyTorch installs NVIDIA's
 * libraries as packages from PyPI (wheels), where the loader does not look. */
#ifndef MODEL_CORE_WHEELS_H
#define MODEL_CORE_WHEELS_H

#include <stdbool.h>
#include <stddef.h>

/* Looks for a file such as "libnccl.so.2" in the packages nvidia/PACKAGE/lib of, in this order, the
 * virtual environment ($VIRTUAL_ENV, $CONDA_PREFIX), the python3 in PATH, the user (~/.local) and
 * the system (/usr/local, /usr). Writes the path of the first such file to path[0..n) and returns
 * true. Returns false if there is no such file. Runs no Python. */
bool wheels_find(const char *file, char *path, size_t n);

#endif
