/* scratch.c -- creates and removes a test program's temporary folder; reads and writes text files.
 */
#include "tests/support/files/scratch.h"

#include "model/core/check.h"
#include "model/core/fs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct {
    char *folder, *before;
} Scratch;

const char *test_scratch_folder(void)
{
    struct statvfs fs;
    bool roomy = statvfs("/dev/shm", &fs) == 0 && fs.f_bavail * fs.f_frsize >= (200u << 20) &&
                 access("/dev/shm", W_OK | X_OK) == 0;
    return roomy ? "/dev/shm" : "/tmp";
}

int enter_scratch(void **state)
{
    Scratch *s = must_calloc(1, sizeof *s);
    s->folder = text_format("%s/%s.XXXXXX", test_scratch_folder(), program_invocation_short_name);
    s->before = getcwd(NULL, 0);
    *state = s;
    return s->before != NULL && mkdtemp(s->folder) != NULL && chdir(s->folder) == 0 ? 0 : -1;
}

int leave_scratch(void **state)
{
    Scratch *s = *state;
    char err[512] = "";
    bool gone =
        chdir(s->before) == 0 && fs_remove_tree(&fs_system, AT_FDCWD, s->folder, err, sizeof err);
    if (!gone) print_error("%s stays: %s\n", s->folder, err);
    free(s->folder);
    free(s->before);
    free(s);
    return gone ? 0 : -1;
}

void put_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

char *take_text(const char *path)
{
    char *text;
    size_t length;
    FILE *from = fopen(path, "r"), *to = open_memstream(&text, &length);
    assert_non_null(to);
    for (int c; from != NULL && (c = getc(from)) != EOF;)
        if (c != '\0') putc(c, to);
    fclose(to);
    if (from != NULL) {
        fclose(from);
        return text;
    }
    free(text);
    return NULL;
}
