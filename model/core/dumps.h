/* dumps.h -- when the flight recorders of a run (flight.h) are written to files: on SIGUSR2, which
 * stops nothing, and when the program ends because a rank hangs or is lost, or because of a bug.
 *
 * A thread of its own does the work, in each process that has something to write: it takes the
 * signal, which all other threads block, so that none of them is disturbed; it writes the files and
 * says what they show. The others only wake it. A thread that ends the process waits for it, but
 * not for long: the disk may be what hangs.
 *
 * Dumps have numbers, so that files of the same dump can be told from older ones: 0 is the end of
 * the program, and 1, 2, ... those in between. If ranks are processes, the transport passes the
 * wish for a dump on to rank 0, and rank 0's order to all (dumps_set_ask, dumps_order). */
#ifndef MODEL_CORE_DUMPS_H
#define MODEL_CORE_DUMPS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    DUMP_DEADLINE, /* the program ends with EXIT_HANG */
    DUMP_SIGNAL,   /* SIGUSR2: the program goes on */
    DUMP_FAILURE,  /* the program ends with EXIT_PEER_LOST or EXIT_BUG */
    DUMP_REASONS
} DumpReason;
extern const char *const dump_reason_name[DUMP_REASONS];

typedef struct {
    int64_t number;
    DumpReason reason;
    bool alone; /* the other processes do not know of it: dumps_end_alone */
} Dump;

/* What a process writes. The thread calls these functions, one at a time. */
typedef struct {
    void *context;
    /* Writes the files of this process. */
    void (*write)(void *context, Dump dump);
    /* Returns how many files of other processes are not there yet. Called repeatedly until all are,
     * but at most for two seconds, and then `say` once. At the end of the program at most for one,
     * and no longer than 0.4 s after the last file that has come: a process that is lost or stopped
     * writes none. */
    int (*missing)(void *context, Dump dump);
    /* Says what the files show: after a signal in every process, and at the end of the program in
     * the process that has printed the error message, after that. */
    void (*say)(void *context, Dump dump);
} DumpWriter;

/* At the start of a program that will write dumps, before it has other threads: blocks SIGUSR2,
 * which then waits until there is something to write. Does nothing if the signal is ignored or
 * blocked already: it stays so. */
void dumps_hold_signal(void);
/* Returns whether that call has blocked it. */
bool dumps_hold(void);

/* Start the thread, and end it after what it is doing. The caller keeps *writer until then. A
 * process has one writer at a time. Returns 0, or the errno value if the system refuses. */
int dumps_open(const DumpWriter *writer);
void dumps_close(void);

/* Sets the hook for ranks that are processes; NULL removes it. The thread calls it when a dump is
 * wished for: it passes the wish for the dump of this number on to rank 0, which orders it from
 * all. If no order comes within a second, the process writes the dump alone. When this function
 * returns, the previous hook is not running. */
void dumps_set_ask(void (*ask)(void *context, int64_t number), void *context);
/* Makes the thread write the dump of this number, unless it has. From any thread; never waits. */
void dumps_order(int64_t number);

/* For check.h and guard.h: the process ends with this code. Begins its last dump, if there is
 * something to write and the code is one of those above. Never waits. */
void dumps_begin_last(int code);
/* The process ends, and cannot tell the others: their files are not awaited. Before dumps_end_last.
 */
void dumps_end_alone(void);
/* Waits until that dump is written, at most two seconds. `spoken`: this process has printed the
 * error message, so it also says what the files show. */
void dumps_end_last(bool spoken);

#endif
