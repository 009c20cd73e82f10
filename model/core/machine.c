/* machine.c -- implements machine.h by reading the kernel's files under /proc and /sys. */
#include "model/core/machine.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"
#include "model/core/version.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

size_t kernel_number(const char *path, const char *key)
{
    char text[1 << 14];
    unsigned long long number;
    file_head(path, text, sizeof text);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), "%llu", &number) == 1)
            return (size_t)number;
    return SIZE_MAX;
}

/* Names of files in the folder of a control group (cgroup). `cache` is the key, in the file `stat`,
 * of the number of bytes of page cache that the kernel can reclaim. */
typedef struct {
    const char *limit, *used, *stat, *cache;
} GroupFiles;

static size_t number_in(const char *folder, const char *file, const char *key)
{
    char *path = text_format("%s/%s", folder, file);
    size_t number = kernel_number(path, key);
    free(path);
    return number;
}

/* Returns how many bytes this group still allows: its limit minus its use, where page cache that
 * can be reclaimed does not count as used. */
static size_t left_of_group(const char *folder, const GroupFiles *files)
{
    size_t limit = number_in(folder, files->limit, "");
    size_t used = number_in(folder, files->used, "");
    size_t cache = number_in(folder, files->stat, files->cache);
    if (limit == SIZE_MAX || used == SIZE_MAX) return limit; /* "max" or no group: no limit */
    if (cache != SIZE_MAX) used -= cache < used ? cache : used;
    return used < limit ? limit - used : 0;
}

/* Returns the smallest number of bytes that the group `path` below `root` and the groups that
 * contain it still allow. A container may see only the outermost folder, which then is its own
 * group. */
static size_t left_of_groups(const char *root, const char *path, const GroupFiles *files)
{
    char *folder = text_format("%s%s", root, path);
    size_t least = SIZE_MAX, shortest = strlen(root);
    for (;;) {
        size_t left = left_of_group(folder, files);
        if (left < least) least = left;
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < shortest) break;
        *slash = '\0';
    }
    free(folder);
    return least;
}

size_t memory_group_left(const char *groups, const char *root)
{
    static const GroupFiles first = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "memory.stat", "total_inactive_file "},
                            second = {"memory.max", "memory.current", "memory.stat",
                                      "inactive_file "};
    char text[1 << 14], *rest = text;
    size_t least = left_of_group(root, &second);
    file_head(groups, text, sizeof text);
    /* A line is "NUMBER:CONTROLLERS:PATH"; in version 2 there are no controllers. */
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        size_t left = SIZE_MAX;
        if (path == NULL) continue;
        *path++ = '\0';
        if (strcmp(controllers, ":") == 0) {
            left = left_of_groups(root, path, &second);
        } else if (strcmp(controllers, ":memory") == 0) {
            char *folder = text_format("%s/memory", root);
            left = left_of_groups(folder, path, &first);
            free(folder);
        }
        if (left < least) least = left;
    }
    return least;
}

static size_t left_of_system(void)
{
    size_t kilobytes = kernel_number("/proc/meminfo", "MemAvailable:");
    return kilobytes == SIZE_MAX ? SIZE_MAX : 1024 * kilobytes;
}

static size_t left_of_own_groups(void)
{
    return memory_group_left("/proc/self/cgroup", "/sys/fs/cgroup");
}

size_t memory_available(void)
{
    size_t system = left_of_system(), group = left_of_own_groups();
    return group < system ? group : system;
}

bool memory_is_limited(void)
{
    return left_of_own_groups() < left_of_system();
}

const char *machine_cpu_model(char *buf, size_t n)
{
    char text[1 << 14]; /* enough for the first core's entry; all cores are alike */
    file_head("/proc/cpuinfo", text, sizeof text);
    const char *line = strncmp(text, "model name", 10) == 0 ? text : strstr(text, "\nmodel name");
    const char *colon = line ? strchr(line + 1, ':') : NULL;
    snprintf(buf, n, "unknown");
    if (colon == NULL) return buf;
    colon += strspn(colon, ": \t");
    snprintf(buf, n, "%.*s", (int)strcspn(colon, "\n"), colon);
    return buf;
}

void raise_limit_of_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

char *machine_json(const Device *device)
{
    char *text;
    size_t size;
    FILE *f = text_stream(&text, &size);
    char cpu[256], computes[256] = "none";
    struct utsname system = {0};
    /* Each of the following facts may change the last bits of a sum, so they are recorded for
     * comparing two runs whose results differ. */
    uname(&system);
    if (device != NULL) device_describe(device, computes, sizeof computes);
    const struct {
        const char *key, *value;
    } texts[] = {
        {"cpu", machine_cpu_model(cpu, sizeof cpu)},
        {"device", computes},
        {"host", system.nodename},
        {"kernel", system.release},
        {"compiler", "gcc " __VERSION__},
        {"program", program_version()},
        {"commit", program_commit()},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fprintf(f, "%s\"%s\": ", i == 0 ? "{" : ", ", texts[i].key);
        json_print_string(f, texts[i].value);
    }
    fprintf(f, ", \"cores\": %d", pool_allowed_cores());
    if (device != NULL) fprintf(f, ", \"threads\": %d", pool_threads(device->pool));
    /* Without /proc the value is 0, not missing, so that the object always has the same keys. */
    size_t total = kernel_number("/proc/meminfo", "MemTotal:");
    fprintf(f, ", \"memory\": %zu}", total == SIZE_MAX ? 0 : total * 1024);
    fclose(f);
    return text;
}
