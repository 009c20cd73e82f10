/* dumps.h -- when the flight recorders of a run (flight.h) are written to files: on SIGUSR2, after
 * which the program continues, and when the program ends because a rank hangs or is lost, or
 * because of a bug.
 *
 * In each process that has something to write, a separate thread does this. It receives the signal,
 * which all other threads block so that none of them is interrupted. It writes the files and prints
 * what they show. Other threads only wake it. A thread that ends the process waits for it, but only
 * for a short time, because the disk may be what hangs.
 *
 * Dumps have numbers, so that the files of one dump can be told from older files: 1, 2, ... are
 * dumps while the program runs, and 0 is the dump at its end. If ranks are processes, the transport
 * passes a request for a dump to rank 0 (dumps_set_ask). Rank 0 then orders all ranks to write the
 * dump (dumps_order). */
#ifndef MODEL_CORE_DUMPS_H
#define MODEL_CORE_DUMPS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    DUMP_DEADLINE, /* the program ends with EXIT_HANG */
    DUMP_SIGNAL,   /* SIGUSR2: the program continues */
    DUMP_FAILURE,  /* the program ends with EXIT_PEER_LOST or EXIT_BUG */
    DUMP_REASONS
} DumpReason;
extern const char *const dump_reason_name[DUMP_REASONS];

typedef struct {
    int64_t number;
    DumpReason reason;
    bool alone; /* the other processes do not know of this dump: dumps_end_alone */
} Dump;

/* The functions that write the dumps of a process. The dump thread calls one of them at a time. */
typedef struct {
    void *context;
    /* Writes the files of this process. */
    void (*write)(void *context, Dump dump);
    /* Returns how many files of other processes are still missing. Called repeatedly until no file
     * is missing, but for at most two seconds; then `say` is called once. At the end of the program
     * the limits are one second in all and 0.4 s after the last file appeared, because a process
     * that is lost or stopped writes no file. */
    int (*missing)(void *context, Dump dump);
    /* Prints what the files show: after a signal, in every process; at the end of the program, in
     * the process that has printed the error message, after that message. */
    void (*say)(void *context, Dump dump);
} DumpWriter;

/* Blocks SIGUSR2 in a program that will write dumps, so that a signal that arrives early waits
 * until the dump thread runs. Must be called before the program has other threads. Does nothing if
 * the signal is already ignored or blocked. */
void dumps_hold_signal(void);
/* Returns whether dumps_hold_signal has blocked the signal. */
bool dumps_hold(void);

/* Starts the dump thread, which calls the functions of *writer. writer->context must stay valid
 * until dumps_close. A process has one writer at a time. Returns 0, or the errno value if the
 * system refuses. */
int dumps_open(const DumpWriter *writer);
/* Ends the dump thread after its current work. */
void dumps_close(void);

/* Sets the hook that forwards requests for dumps to rank 0, if ranks are processes; NULL removes
 * it. The dump thread calls it with the number of the requested dump, and rank 0 orders all ranks
 * to write that dump. If no order arrives within a second, the process writes the dump alone. When
 * this function returns, the previous hook is not running. */
void dumps_set_ask(void (*ask)(void *context, int64_t number), void *context);
/* Makes the dump thread write the dump of this number, unless it has already written it. May be
 * called from any thread; never waits. */
void dumps_order(int64_t number);

/* Makes the dump thread begin the last dump, because the process ends with this code. Does nothing
 * if the dump thread does not run, or if no DumpReason above names the code. Never waits. Called by
 * check.c and guard.c. */
void dumps_begin_last(int code);
/* Makes the last dump not wait for files of other processes. Called before dumps_end_last by a
 * process that ends and cannot tell the other processes. */
void dumps_end_alone(void);
/* Waits until the last dump is written, for at most two seconds. `spoken`: this process has printed
 * the error message, so it also prints what the files show. */
void dumps_end_last(bool spoken);

#endif
