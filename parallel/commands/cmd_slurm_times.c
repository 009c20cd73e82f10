/* cmd_slurm_times.c -- how long a run's save and step take: measured by an earlier start, or
 * estimated. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"
#include "parallel/commands/cmd_slurm.h"
#include "parallel/memory/saved_bytes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* SLURM's tolerance: it may send a signal a minute early or check a limit a minute late. */
static const double MINUTE = 60;
/* The assumed seconds of a step if the run has not made one yet. */
static const double STEP = 60;

static double number(const cJSON *line, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, key);
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : 0;
}

/* Reads the time of a save or a step from a line of metrics.jsonl. `tokens`: the tokens of a step,
 * from the line "start" of each attempt. */
static void read_line(const char *text, size_t bytes, double *tokens, SlurmTimes *times)
{
    cJSON *line = json_tree_parse(text, bytes);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, "event");
    const char *event = cJSON_IsString(item) ? item->valuestring : "";
    double speed = number(line, "tokens_per_second");
    if (strcmp(event, "start") == 0) *tokens = number(line, "tokens_per_step");
    if (strcmp(event, "ckpt") == 0) times->save = number(line, "seconds");
    if (strcmp(event, "speed") == 0 && speed > 0) times->step = *tokens / speed;
    cJSON_Delete(line);
}

/* Reads the newest times from RUN/metrics.jsonl; a time that is not in the file stays 0. */
static void measure(const char *out, SlurmTimes *times)
{
    char ignored[512], *text = NULL, *path = text_format("%s/metrics.jsonl", out);
    size_t bytes;
    double tokens = 0;
    if (file_read_own(path, &text, &bytes, ignored, sizeof ignored))
        for (const char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
            if (end > at) read_line(at, (size_t)(end - at), &tokens, times);
    free(text);
    free(path);
}

SlurmTimes slurm_times(const Config *config, const char *out)
{
    SlurmTimes times = {0};
    measure(out, &times);
    times.measured = times.save > 0 && times.step > 0;
    if (times.measured) return times;
    double bytes = (double)saved_bytes(config);
    return (SlurmTimes){.save = saved_seconds(bytes), .step = STEP, .bytes = bytes};
}

int64_t slurm_signal_time(const SlurmTimes *times)
{
    double seconds = ceil(times->save) + ceil(times->step) + MINUTE;
    return seconds < 1e9 ? (int64_t)seconds : (int64_t)1e9;
}

/* Reads a number of one to six digits. Returns the position after it, or NULL. */
static const char *read_number(const char *at, int64_t *number)
{
    const char *from = at;
    for (*number = 0; *at >= '0' && *at <= '9'; at++)
        if (at - from < 7) *number = 10 * *number + (*at - '0');
    return at > from && at - from <= 6 ? at : NULL;
}

bool slurm_time_read(const char *text, int64_t *seconds)
{
    int64_t days = 0, part[3] = {0};
    int n = 0;
    const char *at = read_number(text, &part[0]);
    bool with_days = at != NULL && *at == '-';
    if (with_days) {
        days = part[0];
        at = read_number(at + 1, &part[0]);
    }
    for (n = 1; at != NULL && *at == ':' && n < 3; n++)
        at = read_number(at + 1, &part[n]);
    if (at == NULL || *at != '\0') return false;
    /* With days the first part is hours. Without days a single part is minutes; otherwise the last
     * part is seconds. */
    if (with_days)
        *seconds = days * 86400 + part[0] * 3600 + part[1] * 60 + part[2];
    else if (n == 3)
        *seconds = part[0] * 3600 + part[1] * 60 + part[2];
    else
        *seconds = part[0] * 60 + part[1];
    return *seconds > 0;
}
