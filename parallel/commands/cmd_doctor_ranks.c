/* cmd_doctor_ranks.c -- the findings of `./train doctor` about several ranks: how this process was
 * started, and the limits that ranks may reach. */
#include "model/core/figures.h"
#include "parallel/commands/cmd_doctor.h"
#include "parallel/grid/started_by.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

/* Writes ", local rank 1 of 2", as far as the launcher provides these numbers, and returns buf. */
static const char *local_place(const StartedBy *s, char *buf, size_t n)
{
    buf[0] = '\0';
    if (s->local_rank >= 0 && s->local_size > 0)
        snprintf(buf, n, ", local rank %d of %d", s->local_rank, s->local_size);
    else if (s->local_rank >= 0)
        snprintf(buf, n, ", local rank %d", s->local_rank);
    return buf;
}

/* Writes what a run would do now, and returns the mark of the finding. */
static const char *next_run(const StartedBy *s, char *text, size_t n)
{
    char name[STARTED_BY_NAME];
    const char *secret = process_environment.get(NULL, "TRAIN_SECRET");
    const char *master = process_environment.get(NULL, "MASTER_ADDR");
    bool named = started_by_meeting(s, &process_environment, name);
    if (s->size == 1)
        snprintf(text, n, "a run works alone, or starts its ranks itself (--ranks)");
    else if (secret && *secret)
        snprintf(text, n, "a run joins the other ranks at %.80s, with the secret of TRAIN_SECRET",
                 master && *master ? master : "the first machine");
    else if (named)
        snprintf(text, n,
                 "a run joins the other ranks by the file %s in parallel.rendezvous, or with "
                 "parallel.secret_file at MASTER_ADDR",
                 name);
    else
        snprintf(text, n,
                 "no number of this start: a run joins the other ranks only if "
                 "parallel.rendezvous is a folder of its own");
    return s->size == 1 || named || (secret && *secret) ? "ok" : "--";
}

void print_launcher(void)
{
    char text[1024], variables[1024], place[64];
    StartedBy s;
    if (!started_by_read(&s, &process_environment, text, sizeof text)) {
        print_finding("!!", "launcher", "%s", text);
        return;
    }
    started_by_variables(&s, &process_environment, variables, sizeof variables);
    bool idle = !started_by_allows(&s, 0, text, sizeof text);
    const char *mark = idle ? "!!" : next_run(&s, text, sizeof text);
    if (s.launcher != NULL)
        print_finding(mark, "launcher", "%s: rank %d of %d%s (%s); %s", s.launcher->name, s.rank,
                      s.size, local_place(&s, place, sizeof place), variables, text);
    else if (idle)
        print_finding(mark, "launcher", "none (%s); a run is refused: %s", variables, text);
    else if (s.unknown_size)
        print_finding("!!", "launcher",
                      "none that tells how many ranks there are (PMIX_RANK alone): %s", text);
    else
        print_finding("ok", "launcher", "none: %s", text);
}

enum {
    /* Measured: with 200 descriptors the launcher can create the sockets of 64 ranks that are
     * processes on CPUs; with 100 it cannot. */
    LEAST_FILES = 200,
    /* An estimate for a rank with a GPU, with room: about 15 sockets for each of up to five NCCL
     * communicators, and 60 descriptors of CUDA. If ranks with their own GPUs are threads, one
     * process needs this for each rank. */
    FEW_FILES = 1024,
};
/* NVIDIA's containers are started with this size (docker run --shm-size=1g); Docker's default is 64
 * MiB. */
static const double SMALL_SHM = 1 << 30;

static Figure files_text(rlim_t limit)
{
    return limit == RLIM_INFINITY ? (Figure){"any number"} : figure_count((double)limit);
}

static void print_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_max < FEW_FILES)
        print_finding(limit.rlim_max < LEAST_FILES ? "!!" : "--", "open files",
                      "at most %llu, which may be too few for several ranks; raise ulimit -Hn to "
                      "%d or more",
                      (unsigned long long)limit.rlim_max, FEW_FILES);
    else if (limit.rlim_cur >= limit.rlim_max)
        print_finding("ok", "open files", "%s", files_text(limit.rlim_cur).text);
    else
        print_finding("ok", "open files", "%s; several ranks raise it to %s",
                      files_text(limit.rlim_cur).text, files_text(limit.rlim_max).text);
}

static void print_locked_memory(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
    if (limit.rlim_max == RLIM_INFINITY)
        print_finding("ok", "locked memory", "no limit");
    else
        print_finding("--", "locked memory",
                      "at most %s: enough within a machine; NCCL over InfiniBand or RoCE needs "
                      "ulimit -l unlimited",
                      figure_bytes((double)limit.rlim_max).text);
}

static void print_shared_memory(void)
{
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs) != 0) {
        print_finding("--", "/dev/shm",
                      "not there; NCCL may need it between GPUs that cannot access each other's "
                      "memory");
        return;
    }
    double bytes = (double)fs.f_blocks * (double)fs.f_frsize;
    double free = (double)fs.f_bavail * (double)fs.f_frsize;
    if (bytes < SMALL_SHM)
        print_finding("--", "/dev/shm",
                      "%s, %s free: may be too small for NCCL between GPUs that cannot access each "
                      "other's memory; in a container docker run --shm-size=1g",
                      figure_bytes(bytes).text, figure_bytes(free).text);
    else
        print_finding("ok", "/dev/shm", "%s, %s free", figure_bytes(bytes).text,
                      figure_bytes(free).text);
}

void print_limits(void)
{
    print_open_files();
    print_locked_memory();
    print_shared_memory();
}
