/* run_signals.c -- how a run is asked to stop: by a signal, or by a file. */
#include "parallel/run.h"

#include <signal.h>

/* Written by the handler only; a signal has no other way to speak. */
static volatile sig_atomic_t stop_signal;

static const int watched_signals[] = {SIGINT, SIGTERM, SIGUSR1};
enum { N_WATCHED = sizeof watched_signals / sizeof watched_signals[0] };

/* The first signal asks for a stop after the step and gives the default actions back. The second
 * acts at once: by default, or, when both were pending and their handlers nest, by being raised
 * again. */
static void on_signal(int number)
{
    bool second = stop_signal != 0;
    stop_signal = number;
    for (int i = 0; i < N_WATCHED; i++)
        signal(watched_signals[i], SIG_DFL);
    if (second) raise(number);
}

void run_watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (int i = 0; i < N_WATCHED; i++)
        sigaction(watched_signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

bool run_stop_asked(const Run *run)
{
    return stop_signal != 0 || run_folder_stop_asked(&run->folder);
}
