/* cmd_doctor.h -- what the files of `./train doctor` share. */
#ifndef PARALLEL_COMMANDS_CMD_DOCTOR_H
#define PARALLEL_COMMANDS_CMD_DOCTOR_H

/* Prints one finding. `mark` is "ok" (present), "--" (absent, but not needed) or "!!" (a problem).
 */
void print_finding(const char *mark, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints which launcher has started this process and by which variables this is known; also why a
 * run would be refused. */
void print_launcher(void);
/* Prints the limits of this process that several ranks may reach: open files, locked memory and the
 * size of /dev/shm. */
void print_limits(void);

#endif
