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

/* Returns the memory that the control group (cgroup) still allows: its limit minus its use, not
 * counting page cache, which the kernel can reclaim. */
static size_t group_available(void)
{
    size_t limit = kernel_number("/sys/fs/cgroup/memory.max", "");
    size_t used = kernel_number("/sys/fs/cgroup/memory.current", "");
    size_t cache = kernel_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (limit == SIZE_MAX || used == SIZE_MAX) return limit; /* "max" or no group: no limit */
    if (cache != SIZE_MAX) used -= cache < used ? cache : used;
    return used < limit ? limit - used : 0;
}

size_t memory_available(void)
{
    size_t system = kernel_number("/proc/meminfo", "MemAvailable:");
    size_t group = group_available();
    if (system != SIZE_MAX) system *= 1024;
    return group < system ? group : system;
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
    /* Each of these may change the last bits of a sum, so they are recorded for comparing two runs
     * whose results differ. */
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
    /* Without /proc the value is 0 instead of missing, so that readers always find the same
     * keys. */
    size_t total = kernel_number("/proc/meminfo", "MemTotal:");
    fprintf(f, ", \"memory\": %zu}", total == SIZE_MAX ? 0 : total * 1024);
    fclose(f);
    return text;
}
