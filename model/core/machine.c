/* machine.c -- see machine.h. */
#include "model/core/machine.h"

#include "model/core/check.h"
#include "model/core/json_text.h"
#include "model/core/version.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

/* The number after `key` in a file of "key value" lines (key "": the file's first number), or
 * SIZE_MAX. */
static size_t number_in(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) return SIZE_MAX;
    char line[256];
    size_t value = SIZE_MAX;
    while (value == SIZE_MAX && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        unsigned long long number;
        if (sscanf(line + strlen(key), "%llu", &number) == 1) value = (size_t)number;
    }
    fclose(f);
    return value;
}

/* What the control group leaves: its limit less its use, of which the page cache can be taken back.
 */
static size_t group_available(void)
{
    size_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    size_t used = number_in("/sys/fs/cgroup/memory.current", "");
    size_t cache = number_in("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (limit == SIZE_MAX || used == SIZE_MAX) return limit;
    if (cache != SIZE_MAX) used -= cache < used ? cache : used;
    return used < limit ? limit - used : 0;
}

size_t memory_available(void)
{
    size_t system = number_in("/proc/meminfo", "MemAvailable:");
    size_t group = group_available();
    if (system != SIZE_MAX) system *= 1024;
    return group < system ? group : system;
}

const char *machine_cpu_model(char *buf, size_t n)
{
    char line[256];
    snprintf(buf, n, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (f == NULL) return buf;
    while (fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        colon += strspn(colon, ": \t");
        snprintf(buf, n, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    fclose(f);
    return buf;
}

char *machine_json(const Device *device)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    CHECK(f != NULL, "no memory stream for the description of the machine");
    char cpu[256], computes[256] = "none";
    struct utsname system = {0};
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
    size_t total = number_in("/proc/meminfo", "MemTotal:");
    fprintf(f, ", \"memory\": %zu}", total == SIZE_MAX ? 0 : total * 1024);
    fclose(f);
    return text;
}
