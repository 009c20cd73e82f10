/* wheels.c -- see wheels.h. */
#include "model/core/wheels.h"

#include "model/core/check.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Looks for the file, as wheels_find does, in the packages below PREFIX/lib. Debian's Python keeps
 * packages in dist-packages, other Pythons in site-packages. */
static bool find_below(const char *prefix, const char *file, char *path, size_t n)
{
    glob_t found = {0};
    char *pattern =
        text_format("%s/lib/python3*/{site,dist}-packages/nvidia/*/lib/%s", prefix, file);
    /* glob sorts the names, so the choice does not depend on the order in which the system lists
     * them. */
    bool any = glob(pattern, GLOB_BRACE, NULL, &found) == 0 && found.gl_pathc > 0 &&
               (size_t)snprintf(path, n, "%s", found.gl_pathv[0]) < n;
    globfree(&found);
    free(pattern);
    return any;
}

/* Looks in the packages of the first python3 in PATH. In a virtual environment python3 is a
 * symbolic link; the packages are near the folder of the link, not near its target. */
static bool find_beside_python(const char *file, char *path, size_t n)
{
    const char *given = getenv("PATH");
    char *folders = must_strdup(given ? given : ""), *rest = folders, *folder;
    bool any = false, python = false;
    while (!python && (folder = strsep(&rest, ":")) != NULL) {
        char *program = text_format("%s/python3", folder), *prefix = text_format("%s/..", folder);
        python = *folder && access(program, X_OK) == 0;
        any = python && find_below(prefix, file, path, n);
        free(program);
        free(prefix);
    }
    free(folders);
    return any;
}

/* Looks below the folder that an environment variable names. */
static bool find_in_variable(const char *variable, const char *ending, const char *file, char *path,
                             size_t n)
{
    const char *value = getenv(variable);
    if (value == NULL || *value == '\0') return false;
    char *prefix = text_format("%s%s", value, ending);
    bool any = find_below(prefix, file, path, n);
    free(prefix);
    return any;
}

bool wheels_find(const char *file, char *path, size_t n)
{
    return find_in_variable("VIRTUAL_ENV", "", file, path, n) ||
           find_in_variable("CONDA_PREFIX", "", file, path, n) ||
           find_beside_python(file, path, n) ||
           find_in_variable("HOME", "/.local", file, path, n) ||
           find_below("/usr/local", file, path, n) || find_below("/usr", file, path, n);
}
