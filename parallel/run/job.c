/* job.c -- reads the batch job of a run from SLURM's variables, and watches its end. */
#include "parallel/run/job.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/grid/node_list.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The slack is a minute, because SLURM checks limits about once a minute; for a short job it is a
 * tenth of the job's time. */
static const double MOST_SLACK = 60, SLACK_SHARE = 0.1;
/* SLURM's value of a limit that is not set, or is unlimited. */
static const double NO_LIMIT = 4294967294.0;

/* Returns the value of a variable, or NULL if it is not set or empty. */
static const char *value_of(const Environment *environment, const char *name)
{
    const char *value = environment->get(environment->context, name);
    return value != NULL && *value != '\0' ? value : NULL;
}

/* Returns whether the text is a number of at most `most` digits. */
static bool is_number(const char *text, size_t most)
{
    size_t digits = text ? strspn(text, "0123456789") : 0;
    return digits > 0 && digits <= most && text[digits] == '\0';
}

/* Writes the machines to text[0..n): the list, or their number if the list is long; nothing if it
 * is not a valid list. */
static void add_machines(char *text, size_t n, const char *list)
{
    enum { LONG = 80 };
    StringList names = {0};
    char ignored[512];
    if (list != NULL && node_list_expand(list, &names, ignored, sizeof ignored)) {
        if (strlen(list) <= LONG)
            snprintf(text, n, ", on %s", list);
        else
            snprintf(text, n, ", on %s", figure_of(names.count, "machine").text);
    }
    string_list_free(&names);
}

/* Reads digits as a number; a double is precise enough for times. */
static double number(const char *digits)
{
    double value = 0;
    for (; *digits; digits++)
        value = 10 * value + (*digits - '0');
    return value;
}

static bool read_end(BatchJob *job, const Environment *environment, bool *over, char *err, size_t n)
{
    static const char name[] = "SLURM_JOB_END_TIME";
    const char *value = value_of(environment, name);
    if (value == NULL) return true;
    if (!is_number(value, 18))
        return error_set(err, n,
                         "%s=%.80s is not the time at which the job ends, in seconds since 1970; "
                         "unset it",
                         name, value);
    double end = number(value), left = end - wall_seconds_now();
    if (end == 0 || end >= NO_LIMIT) return true;
    *over = left <= 0;
    if (*over) return true;
    job->end = seconds_now() + left;
    job->slack = fmin(MOST_SLACK, SLACK_SHARE * left);
    return true;
}

bool job_read(BatchJob *job, const Environment *environment, bool *over, char *err, size_t n)
{
    enum { DIGITS = 10 };
    const char *id = value_of(environment, "SLURM_JOB_ID");
    const char *restart = value_of(environment, "SLURM_RESTART_COUNT");
    *job = (BatchJob){0};
    *over = false;
    if (is_number(id, DIGITS)) {
        char machines[128] = "";
        add_machines(machines, sizeof machines, value_of(environment, "SLURM_JOB_NODELIST"));
        snprintf(job->text, sizeof job->text, "SLURM job %s, restart %s%s", id,
                 is_number(restart, DIGITS) ? restart : "0", machines);
    }
    return read_end(job, environment, over, err, n);
}

double job_seconds(const BatchJob *job, double save, double step)
{
    return job->end > 0 ? job->end - job->slack - save - step - seconds_now() : INFINITY;
}

Figure job_left(const BatchJob *job)
{
    enum { MINUTE = 60 };
    double left = fmax(job->end - seconds_now(), 0);
    return left >= 2 * MINUTE ? figure_of((int64_t)(left / MINUTE), "minute")
                              : figure_of((int64_t)left, "second");
}
