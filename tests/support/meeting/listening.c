/* listening.c -- at which network addresses a process listens. */
#include "tests/support/meeting/listening.h"

#include "model/core/check.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_SOCKETS = 4096 };

/* Writes the inodes of all sockets of which the process has a descriptor, and returns their number.
 */
static int sockets_of(pid_t pid, unsigned long inode[MOST_SOCKETS])
{
    char name[64], target[64];
    int count = 0;
    snprintf(name, sizeof name, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(name);
    for (const struct dirent *entry; dir && count < MOST_SOCKETS && (entry = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        if (sscanf(target, "socket:[%lu]", &inode[count]) == 1) count++;
    }
    if (dir) closedir(dir);
    return count;
}

static bool is_among(unsigned long inode, const unsigned long *list, int count)
{
    while (count > 0 && list[count - 1] != inode)
        count--;
    return count > 0;
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
    unsigned long own[MOST_SOCKETS];
    int sockets = sockets_of(pid, own);
    *list = (AddressList){0};
    for (int family = 4; family <= 6; family += 2) {
        FILE *table = fopen(family == 4 ? "/proc/net/tcp" : "/proc/net/tcp6", "r");
        char line[512];
        unsigned long inode;
        Address address;
        while (table && fgets(line, sizeof line, table))
            if (read_line(line, family, &address, &inode) && is_among(inode, own, sockets) &&
                list->count < NETWORK_MOST_ADDRESSES)
                list->address[list->count++] = address;
        if (table) fclose(table);
    }
}
