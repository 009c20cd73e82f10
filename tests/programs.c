/* programs.c -- the test programs of a folder in one file: it runs the main() of the name that it
 * is called by. The Makefile says which there are, as PROGRAMS, gives their main() the name
 * test_NAME_main and makes a link test_NAME to the file for each. */
#include <stdio.h>
#include <string.h>

#define PROGRAM(name) int name##_main(void);
PROGRAMS
#undef PROGRAM

static const struct {
    const char *name;
    int (*main)(void);
} programs[] = {
#define PROGRAM(name) {#name, name##_main},
    PROGRAMS
#undef PROGRAM
};

int main(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "";
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (strcmp(programs[i].name, name) == 0) return programs[i].main();
    fprintf(stderr, "%s: no test program of this folder has that name\n", name);
    return 64;
}
