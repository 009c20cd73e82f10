/* bench_sources.c -- see bench_sources.h. */
#include "parallel/commands/bench_sources.h"

#include <stdarg.h>
#include <string.h>

static const char *say(BenchSources *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const char *say(BenchSources *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->text, sizeof s->text, fmt, args);
    va_end(args);
    return s->text;
}

static bool among(const char *key, const char *const *keys)
{
    while (*keys && strcmp(key, *keys) != 0)
        keys++;
    return *keys != NULL;
}

/* If the system reports the number `key`, or if it follows from another number, returns its source;
 * otherwise NULL. */
static const char *known(BenchSources *s, const char *key)
{
    static const char *const facts[] = {"capability", "device_bytes", NULL};
    bool cuda = s->printed->cuda;
    if (strcmp(key, "host_bandwidth") == 0 && !cuda) return say(s, "a CPU has none");
    if (among(key, facts)) return cuda ? say(s, "the GPU's driver") : say(s, "a CPU has none");
    if (strcmp(key, "host_bytes") == 0) return say(s, "MemTotal of /proc/meminfo");
    if (strcmp(key, "devices_per_node") == 0)
        return say(s, "%s",
                   cuda             ? "the GPUs that this program sees"
                   : s->given_ranks ? "given by --ranks"
                                    : "the cores that this program may use, at least 2");
    if (strcmp(key, "product_most") == 0 && !s->known)
        return say(s, "by definition: the peaks are fitted rates divided by this");
    if (strcmp(key, "peak_tf32") == 0 && !cuda) return say(s, "a CPU has no TF32: that of f32");
    if (strcmp(key, "peak_tf32") == 0 && !s->known)
        return say(s, "assumed: in the same ratio to peak_bf16 as in the preset %s", s->preset);
    if (strcmp(key, "nics_per_node") == 0)
        return say(s, "assumed: as in the preset %s, at most one for each device", s->preset);
    if (strcmp(key, "disk_bandwidth") == 0)
        return say(s, "assumed: as in the preset %s, at least node_disk_bandwidth", s->preset);
    return NULL;
}

/* Returns whether the number `key` is still that of the preset, because it was not measured. */
static bool of_preset(const BenchSources *s, const char *key)
{
    static const char *const never[] = {"between_latency", "between_bandwidth", "workspace_bytes",
                                        NULL},
                             *const not_of_gpus[] = {"product_sustained", "inside_latency", NULL},
                             *const of_calls[] = {"inside_latency", "inside_bandwidth",
                                                  "collective", NULL};
    if (among(key, never)) return true;
    if (s->printed->cuda && among(key, not_of_gpus)) return true;
    if (!s->calls && among(key, of_calls)) return true;
    if (strncmp(key, "peak_", 5) == 0) return s->known;
    return false;
}

const char *bench_source(void *context, const char *key)
{
    BenchSources *s = context;
    const char *text = known(s, key);
    if (text != NULL) return text;
    if (of_preset(s, key) || (strcmp(key, "peak_f64") == 0 && !s->f64))
        return say(s, "%s, as in the preset %s",
                   s->known && strncmp(key, "peak_", 5) == 0 ? "the data sheet's"
                                                             : "assumed, not measured",
                   s->preset);
    double printed = hardware_number(s->printed, key), seen = hardware_number(s->measured, key);
    if (printed != seen)
        return say(s, "the limit of what is possible: %g was measured by %s", seen, s->by);
    return say(s, "measured by %s%s", s->by,
               strncmp(key, "peak_", 5) == 0 ? "; large products reach product_most of it" : "");
}
