/* fuzz_started_by.c -- fuzz target: reads any bytes as an environment, one variable per line. What
 * is accepted must be a rank of its world. Reads the batch job, too. */
#include "tests/fuzz/fuzz_started_by.h"

#include "model/core/check.h"
#include "parallel/grid/launch.h"
#include "parallel/grid/started_by.h"
#include "parallel/run/job.h"

#include <stdlib.h>
#include <string.h>

/* Looks up NAME=value in lines that end with a zero byte each; an empty line ends the environment.
 */
static const char *look_up(const void *context, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = context; *line; line += strlen(line) + 1)
        if (strncmp(line, name, length) == 0 && line[length] == '=') return line + length + 1;
    return NULL;
}

int fuzz_started_by(const uint8_t *data, size_t size)
{
    char err[1024], variables[64], name[STARTED_BY_NAME];
    StartedBy s;
    char *lines = must_calloc(1, size + 2);
    memcpy(lines, data, size);
    for (size_t i = 0; i < size; i++)
        if (lines[i] == '\n') lines[i] = '\0';
    Environment environment = {.get = look_up, .context = lines};
    if (started_by_read(&s, &environment, err, sizeof err)) {
        CHECK(s.size >= 1 && s.size <= CONFIG_MAX_RANKS && s.rank >= 0 && s.rank < s.size,
              "rank %d of %d", s.rank, s.size);
        CHECK(s.local_rank >= -1 && s.local_rank < s.size && s.local_size >= 0 &&
                  s.local_size <= s.size && (s.local_size == 0 || s.local_rank < s.local_size),
              "local rank %d of %d", s.local_rank, s.local_size);
        CHECK(s.launcher != NULL || s.size == 1, "%d ranks without a launcher", s.size);
        started_by_variables(&s, &environment, variables, sizeof variables);
        CHECK(strlen(variables) < sizeof variables, "%zu bytes", strlen(variables));
        CHECK(started_by_meeting(&s, &environment, name) == (name[0] != '\0') &&
                  strlen(name) < sizeof name,
              "the name %s", name);
        started_by_allows(&s, 0, err, sizeof err);
    }
    BatchJob job;
    bool over;
    if (job_read(&job, &environment, &over, err, sizeof err))
        CHECK(strlen(job.text) < sizeof job.text && job.end >= 0, "a job that ends at %g", job.end);
    free(lines);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_started_by(data, size);
    return 0;
}
