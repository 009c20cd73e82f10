/* listening.c -- at which network addresses a process listens. */
#include "tests/support/meeting/listening.h"

#include "model/core/check.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the process has a descriptor of the socket with this inode. */
static bool has_socket(pid_t pid, unsigned long inode)
{
    char name[64], target[64], wanted[64];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *dir = opendir(name);
    for (const struct dirent *entry; dir && !found && (entry = readdir(dir)) != NULL;) {
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (n > 0) target[n] = 0;
        found = n > 0 && strcmp(target, wanted) == 0;
    }
    if (dir) closedir(dir);
    return found;
}

/* Reads one line: "0: 0100007F:1F90 00000000:0000 0A ... uid timeout inode". The words of an
 * address are in the byte order of the machine. */
static bool read_line(const char *line, int family, Address *address, unsigned long *inode)
{
    char ip[33], rest[8][64];
    unsigned port, state;
    if (sscanf(line, "%*d: %32[0-9A-F]:%x %*[0-9A-F:] %x %63s %63s %63s %63s %63s %lu", ip, &port,
               &state, rest[0], rest[1], rest[2], rest[3], rest[4], inode) != 9 ||
        state != 10)
        return false;
    *address = (Address){.family = (uint8_t)family, .port = (uint16_t)port};
    for (size_t word = 0; word < strlen(ip) / 8; word++) {
        char digits[9] = {0};
        memcpy(digits, ip + 8 * word, 8);
        uint32_t value = (uint32_t)strtoul(digits, NULL, 16);
        memcpy(address->ip + 4 * word, &value, 4);
    }
    return true;
}

void listening(pid_t pid, AddressList *list)
{
    *list = (AddressList){0};
    for (int family = 4; family <= 6; family += 2) {
        FILE *table = fopen(family == 4 ? "/proc/net/tcp" : "/proc/net/tcp6", "r");
        char line[512];
        unsigned long inode;
        Address address;
        while (table && fgets(line, sizeof line, table))
            if (read_line(line, family, &address, &inode) && has_socket(pid, inode) &&
                list->count < NETWORK_MOST_ADDRESSES)
                list->address[list->count++] = address;
        if (table) fclose(table);
    }
}
