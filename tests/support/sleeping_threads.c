/* sleeping_threads.c -- implements sleeping_threads.h with the states of threads in /proc/self/task
 * and pthread_atfork. This file is also linked into the sanitizer builds of ./train. */
#include "tests/support/sleeping_threads.h"

#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exists only in programs that are built with a sanitizer. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* Returns true if a thread of the process is in one of these states, or has ended. Adds to
 * *switches how often it has been taken off its core. */
static bool is_in(int process, const char *thread, const char *states, uint64_t *switches)
{
    char path[64], line[128], state = '\0';
    unsigned long long n;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", process, thread);
    FILE *f = fopen(path, "r");
    if (f == NULL) return true;
    while (fgets(line, sizeof line, f)) {
        sscanf(line, "State: %c", &state);
        if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
            sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1)
            *switches += n;
    }
    fclose(f);
    return state == '\0' || strchr(states, state) != NULL;
}

/* Returns true if each thread of the process, except the caller, was in one of these states when it
 * was looked at. Stores their number and the number of their switches, which change if a thread has
 * begun, ended or run. */
static bool all_are_in(int process, const char *states, uint64_t *threads, uint64_t *switches)
{
    char path[32];
    bool all = true;
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *folder = opendir(path);
    *threads = *switches = 0;
    if (folder == NULL) return true;
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == gettid()) continue;
        *threads += 1;
        all = is_in(process, e->d_name, states, switches) && all;
    }
    closedir(folder);
    return all;
}

/* Microseconds between two looks. */
enum { MICROSECONDS = 200 };

bool other_threads_sleep(double seconds)
{
    static const char asleep[] = "STtXZ"; /* also stopped, or ended */
    uint64_t threads[2], switches[2];
    for (double waited = 0; waited <= seconds; waited += 1e-6 * MICROSECONDS) {
        /* A thread that was asleep may have woken while the others were looked at. If the numbers
         * are the same the second time, none has, and all slept at once. */
        if (all_are_in(getpid(), asleep, &threads[0], &switches[0]) &&
            all_are_in(getpid(), asleep, &threads[1], &switches[1]) && threads[0] == threads[1] &&
            switches[0] == switches[1])
            return true;
        usleep(MICROSECONDS);
    }
    return false;
}

void process_wait_until_stopped(pid_t process)
{
    uint64_t threads, switches;
    while (!all_are_in(process, "TXZ", &threads, &switches))
        usleep(MICROSECONDS);
}

static void before_fork(void)
{
    other_threads_sleep(0.5);
}

__attribute__((constructor)) static void watch_forks(void)
{
    if (__sanitizer_set_death_callback) pthread_atfork(before_fork, NULL, NULL);
}
