/* dumps.h -- when the flight recorders of a run (flight.h) are written to files: on SIGUSR2, which
 * stops nothing, and when the program ends because a rank hangs or is lost, or because of a bug.
 *
 * In each process that has something to write, a separate thread does this. It receives the signal,
 * which all other threads block so that none of them is interrupted. It writes the files and prints
 * what they show. Other threads only wake it. A thread that ends the process waits for it, but only
 * for a short time, because the disk may be what hangs.
 *
 * Dumps have numbers, so that files of the same dump can be told from older ones: 0 is the end of
 * the program, and 1, 2, ... those in between. If ranks are processes, the transport forwards a
 * request for a dump to rank 0, and rank 0's order to write it to all ranks (dumps_set_ask,
 * dumps_order). */
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

/* What a process writes. The thread calls these functions, one at a time. */
typedef struct {
    void *context;
    /* Writes the files of this process. */
    void (*write)(void *context, Dump dump);
    /* Returns how many files of other processes are still missing. Called repeatedly until none is,
     * but for at most two seconds; then `say` is called once. At the end of the program it is
     * called for at most one second, and for at most 0.4 s after the last file appeared, because a
     * process that is lost or stopped writes none. */
    int (*missing)(void *context, Dump dump);
    /* Prints what the files show: after a signal, in every process; at the end of the program, in
     * the process that has printed the error message, after that message. */
    void (*say)(void *context, Dump dump);
} DumpWriter;

/* At the start of a program that will write dumps, before it has other threads: blocks SIGUSR2,
 * which then waits until there is something to write. Does nothing if the signal is already ignored
 * or blocked. */
void dumps_hold_signal(void);
/* Returns whether dumps_hold_signal has blocked the signal. */
bool dumps_hold(void);

/* dumps_open starts the thread; dumps_close ends it after its current work. The caller keeps
 * *writer until then. A process has one writer at a time. Returns 0, or the errno value if the
 * system refuses. */
int dumps_open(const DumpWriter *writer);
void dumps_close(void);

/* Sets the hook for ranks that are processes; NULL removes it. The thread calls it when a dump is
 * requested: the hook forwards the request for the dump of this number to rank 0, which orders all
 * ranks to write it. If no order arrives within a second, the process writes the dump alone. When
 * this function returns, the previous hook is not running. */
void dumps_set_ask(void (*ask)(void *context, int64_t number), void *context);
/* Makes the thread write the dump of this number, unless it has done so. May be called from any
 * thread; never waits. */
void dumps_order(int64_t number);

/* For check.h and guard.h, when the process ends with this code. Begins the last dump, if there is
 * something to write and a DumpReason above names the code. Never waits. */
void dumps_begin_last(int code);
/* Called before dumps_end_last if the process ends and cannot tell the others. Their files are then
 * not awaited. */
void dumps_end_alone(void);
/* Waits until the last dump is written, for at most two seconds. `spoken`: this process has printed
 * the error message, so it also prints what the files show. */
void dumps_end_last(bool spoken);

#endif
