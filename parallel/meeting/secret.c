/* secret.c -- computes the secret of a job from what the user gives to all of its ranks. */
#include "parallel/meeting/meeting.h"

#include "model/core/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAST_BYTES = 16, MOST_BYTES = 4096 };

static bool refuse(ExitCode *code, ExitCode with, char *err, size_t n, const char *what,
                   const char *why)
{
    *code = with;
    return error_set(err, n, "%s: %s", what, why);
}

static bool make_secret(const char *text, size_t bytes, const char *what,
                        unsigned char secret[SHA256_BYTES], ExitCode *code, char *err, size_t n)
{
    if (bytes < LEAST_BYTES)
        return refuse(code, EXIT_CONFIG, err, n, what,
                      "a secret has at least 16 bytes; for example that of: openssl rand -hex 32");
    sha256(text, bytes, secret);
    return true;
}

bool meeting_secret_text(const char *text, unsigned char secret[SHA256_BYTES], ExitCode *code,
                         char *err, size_t n)
{
    return make_secret(text, strlen(text), "TRAIN_SECRET", secret, code, err, n);
}

bool meeting_secret_file(const char *path, unsigned char secret[SHA256_BYTES], ExitCode *code,
                         char *err, size_t n)
{
    char text[MOST_BYTES + 1];
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return refuse(code, errno == EACCES ? EXIT_PERMISSION : EXIT_MISSING, err, n, path,
                      strerror(errno));
    const char *why = fstat(fd, &st) != 0        ? strerror(errno)
                      : !S_ISREG(st.st_mode)     ? "it is no regular file"
                      : st.st_uid != geteuid()   ? "it belongs to another user"
                      : (st.st_mode & 0077) != 0 ? "other users may read it; chmod 600 it"
                                                 : NULL;
    ssize_t got = why ? 0 : read(fd, text, sizeof text);
    close(fd);
    if (why) return refuse(code, EXIT_PERMISSION, err, n, path, why);
    if (got < 0) return refuse(code, EXIT_INPUT_OUTPUT, err, n, path, strerror(errno));
    if (got > MOST_BYTES)
        return refuse(code, EXIT_CONFIG, err, n, path, "it is no secret: too long");
    while (got > 0 && strchr(" \t\r\n", text[got - 1]))
        got--;
    return make_secret(text, (size_t)got, path, secret, code, err, n);
}
