/* rendezvous.c -- writes, reads and removes the file by which rank 0 tells the other ranks where it
 * listens. See rendezvous.h. */
#include "parallel/meeting/rendezvous.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_LINE "train.c meeting 1\n"

/* ---- text ------------------------------------------------------------------------------------ */

void rendezvous_text(const Rendezvous *r, char text[RENDEZVOUS_MOST_BYTES])
{
    size_t room = RENDEZVOUS_MOST_BYTES, used = (size_t)snprintf(text, room, FIRST_LINE "secret ");
    for (int i = 0; i < SHA256_BYTES; i++)
        used += (size_t)snprintf(text + used, room - used, "%02x", r->secret[i]);
    for (int i = 0; i < r->at.count; i++) {
        const Address *a = &r->at.address[i];
        char ip[INET6_ADDRSTRLEN];
        inet_ntop(a->family == 6 ? AF_INET6 : AF_INET, a->ip, ip, sizeof ip);
        used += (size_t)snprintf(text + used, room - used, "\naddress %s %d", ip, a->port);
    }
    snprintf(text + used, room - used, "\nend\n");
}

/* Moves *at past `word` if the text continues with it. */
static bool skip(const char **at, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0) return false;
    *at += n;
    return true;
}

static bool read_secret(const char **at, unsigned char secret[SHA256_BYTES])
{
    for (int i = 0; i < SHA256_BYTES; i++) {
        char digits[3] = {0};
        for (int k = 0; k < 2; k++, (*at)++) {
            if (**at == 0 || strchr("0123456789abcdef", **at) == NULL) return false;
            digits[k] = **at;
        }
        secret[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return skip(at, "\n");
}

/* Reads "10.0.0.1 4711\n". */
static bool read_address(const char **at, Address *address)
{
    char ip[INET6_ADDRSTRLEN] = "";
    size_t bytes = strcspn(*at, " \n");
    if (bytes >= sizeof ip) return false;
    memcpy(ip, *at, bytes);
    *at += bytes;
    *address = (Address){0};
    if (inet_pton(AF_INET, ip, address->ip) == 1)
        address->family = 4;
    else if (inet_pton(AF_INET6, ip, address->ip) == 1)
        address->family = 6;
    if (address->family == 0 || !skip(at, " ")) return false;
    int port = 0, digits = 0;
    for (; isdigit((unsigned char)**at) && digits < 5; (*at)++, digits++)
        port = 10 * port + (**at - '0');
    address->port = (uint16_t)port;
    return port > 0 && port < 65536 && skip(at, "\n");
}

bool rendezvous_parse(Rendezvous *r, const char *text, size_t n)
{
    char copy[RENDEZVOUS_MOST_BYTES], again[RENDEZVOUS_MOST_BYTES];
    const char *at = copy;
    *r = (Rendezvous){0};
    if (n >= sizeof copy) return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    if (!skip(&at, FIRST_LINE) || !skip(&at, "secret ") || !read_secret(&at, r->secret))
        return false;
    while (skip(&at, "address "))
        if (r->at.count == NETWORK_MOST_ADDRESSES ||
            !read_address(&at, &r->at.address[r->at.count++]))
            return false;
    /* Only the text that rendezvous_text would write is valid: no number or address may be written
     * in another way. */
    rendezvous_text(r, again);
    return r->at.count > 0 && strlen(again) == n && memcmp(again, text, n) == 0;
}

void rendezvous_name(const char *name, char file[RENDEZVOUS_NAME_BYTES])
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-";
    enum { KEPT = 100 };
    size_t used = 0;
    for (const char *c = name; *c && used < KEPT; c++)
        used += (size_t)snprintf(file + used, 4,
                                 strchr(plain, *c) && !(*c == '.' && c == name) ? "%c" : "_%02x",
                                 (unsigned char)*c);
    file[used] = 0;
    if (used < KEPT) return;
    unsigned char digest[SHA256_BYTES];
    sha256(name, strlen(name), digest);
    used += (size_t)snprintf(file + used, 3, "__"); /* no escaped name contains this */
    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(file + used, 3, "%02x", digest[i]);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Opens the folder of the files. On failure returns -1 and sets *code, which is EXIT_OK if the
 * folder is only missing. */
static int open_folder(const char *folder, ExitCode *code, char *err, size_t n)
{
    struct stat st;
    *code = EXIT_OK;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT) return -1;
        bool link = errno == ELOOP || errno == ENOTDIR;
        *code = errno == EACCES || link ? EXIT_PERMISSION : EXIT_SYSTEM;
        error_set(
            err, n, "the folder of the meeting, %s, %s%s", folder,
            link ? "is a link or no folder" : "cannot be opened: ", link ? "" : strerror(errno));
        return -1;
    }
    const char *why = fstat(fd, &st) != 0        ? strerror(errno)
                      : st.st_uid != geteuid()   ? "it belongs to another user"
                      : (st.st_mode & 0022) != 0 ? "other users may write in it; chmod 700 it"
                                                 : NULL;
    if (why == NULL) return fd;
    close(fd);
    *code = EXIT_PERMISSION;
    error_set(err, n, "the folder of the meeting, %s, is not safe: %s", folder, why);
    return -1;
}

static int make_folder(const char *folder, ExitCode *code, char *err, size_t n)
{
    char *trimmed = path_trimmed(folder), *parent = path_beside(trimmed, ".");
    bool good = fs_make_folders(&fs_system, parent, err, n);
    if (good && mkdir(trimmed, 0700) != 0 && errno != EEXIST)
        good = error_set(err, n, "cannot create the folder %s: %s", trimmed, strerror(errno));
    *code = good ? EXIT_OK : EXIT_CANNOT_CREATE;
    int fd = good ? open_folder(trimmed, code, err, n) : -1;
    if (good && fd < 0 && *code == EXIT_OK) {
        *code = EXIT_CANNOT_CREATE;
        error_set(err, n, "the folder %s was removed", trimmed);
    }
    free(trimmed);
    free(parent);
    return fd;
}

/* Writes a new file, readable for this user alone, and syncs it. */
static bool write_new(int folder, const char *file, const char *text, char *err, size_t n)
{
    int fd = openat(folder, file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return error_set(err, n, "cannot create %s: %s", file, strerror(errno));
    bool good = fs_write_all(&fs_system, fd, text, strlen(text), file, err, n) &&
                fs_sync(&fs_system, fd, file, err, n);
    if (close(fd) != 0 && good)
        good = error_set(err, n, "cannot write %s: %s", file, strerror(errno));
    return good;
}

bool rendezvous_publish(const Rendezvous *r, const char *folder, const char *name, ExitCode *code,
                        char *err, size_t n)
{
    char text[RENDEZVOUS_MOST_BYTES], file[RENDEZVOUS_NAME_BYTES], why[512];
    unsigned char random[8];
    int fd = make_folder(folder, code, err, n);
    if (fd < 0) return false;
    rendezvous_text(r, text);
    rendezvous_name(name, file);
    if (getrandom(random, sizeof random, 0) != sizeof random)
        fail(EXIT_SYSTEM, "the system gives no random bytes: %s", strerror(errno));
    char *aside = text_format(".%s.%02x%02x%02x%02x%02x%02x%02x%02x", file, random[0], random[1],
                              random[2], random[3], random[4], random[5], random[6], random[7]);
    bool good = write_new(fd, aside, text, why, sizeof why);
    if (good && renameat(fd, aside, fd, file) != 0)
        good = error_set(why, sizeof why, "cannot rename it to %s: %s", file, strerror(errno));
    if (!good) unlinkat(fd, aside, 0);
    if (good) good = fs_sync(&fs_system, fd, folder, why, sizeof why);
    free(aside);
    close(fd);
    if (good) return true;
    *code = EXIT_CANNOT_CREATE;
    return error_set(err, n, "rank 0 cannot tell the others where it is, in the folder %s: %s",
                     folder, why);
}

bool rendezvous_can_publish(const char *folder, ExitCode *code, char *err, size_t n)
{
    int fd = make_folder(folder, code, err, n);
    if (fd < 0) return false;
    bool good = faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) == 0;
    if (!good) {
        *code = EXIT_CANNOT_CREATE;
        error_set(err, n, "rank 0 cannot tell the others where it is, in the folder %s: %s", folder,
                  strerror(errno));
    }
    close(fd);
    return good;
}

/* Returns why an opened file must not be trusted; NULL: it may be. */
static const char *distrust(int fd, struct stat *st)
{
    if (fstat(fd, st) != 0) return strerror(errno);
    if (!S_ISREG(st->st_mode)) return "it is no regular file";
    if (st->st_uid != geteuid()) return "it belongs to another user";
    if ((st->st_mode & 0077) != 0) return "other users may read or change it";
    return NULL;
}

/* Lists the folder, because a network file system might otherwise cache for half a minute that a
 * file does not exist. */
static void refresh(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir)
        while (readdir(dir) != NULL) {
        }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
}

RendezvousState rendezvous_look(Rendezvous *r, const char *folder, const char *name, ExitCode *code,
                                char *err, size_t n)
{
    char text[RENDEZVOUS_MOST_BYTES], file[RENDEZVOUS_NAME_BYTES];
    struct stat st;
    int at = open_folder(folder, code, err, n);
    if (at < 0) return *code == EXIT_OK ? RENDEZVOUS_NOT_THERE : RENDEZVOUS_REFUSED;
    rendezvous_name(name, file);
    refresh(at);
    int fd = openat(at, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int error = errno;
    close(at);
    if (fd < 0 && (error == ENOENT || error == ESTALE)) return RENDEZVOUS_NOT_THERE;
    const char *why = fd >= 0          ? distrust(fd, &st)
                      : error == ELOOP ? "it is a link"
                                       : strerror(error);
    *code = EXIT_PERMISSION;
    if (why == NULL) {
        ssize_t got = read(fd, text, sizeof text);
        if (got < 0 && errno == ESTALE) {
            close(fd);
            return RENDEZVOUS_NOT_THERE; /* it is being replaced at this moment */
        }
        if (got < 0 || !rendezvous_parse(r, text, (size_t)got)) {
            *code = EXIT_PROTOCOL;
            why = got < 0 ? strerror(errno) : "it is not what rank 0 writes";
        }
    }
    if (fd >= 0) close(fd);
    if (why == NULL) return RENDEZVOUS_READ;
    error_set(err, n, "the file of the meeting, %s/%s, is not used: %s", folder, file, why);
    return RENDEZVOUS_REFUSED;
}

void rendezvous_remove(const Rendezvous *r, const char *folder, const char *name)
{
    char err[512], file[RENDEZVOUS_NAME_BYTES];
    Rendezvous now;
    ExitCode code;
    /* If another rank 0 has replaced the file, it stays. */
    if (rendezvous_look(&now, folder, name, &code, err, sizeof err) != RENDEZVOUS_READ ||
        !same_bytes(now.secret, r->secret, SHA256_BYTES))
        return;
    int at = open_folder(folder, &code, err, sizeof err);
    rendezvous_name(name, file);
    if (at >= 0) {
        unlinkat(at, file, 0);
        close(at);
    }
}
