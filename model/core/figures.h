/* figures.h -- formats numbers for people ("12,100", "1.28 M", "62.6 MiB"). */
#ifndef MODEL_CORE_FIGURES_H
#define MODEL_CORE_FIGURES_H

#include <stdint.h>

/* A formatted number, returned by value: figure_count(n).text is valid until the end of the full
 * expression, for example as an argument of printf. */
typedef struct {
    char text[32];
} Figure;

/* Formats a number of things with their name, `one` in the singular: "1 layer", "12,100 layers". */
Figure figure_of(int64_t n, const char *one);
/* Formats a number like "12,100". A number below ten gets one decimal unless it is whole: "2.1". */
Figure figure_count(double value);
/* Formats a number in at most eight characters: "812,345", "1.28 M", "102.4 B", "1.50 T". */
Figure figure_short(double value);
/* Formats a number of floating-point operations per second in at most eight characters: "0.3 G",
 * "145.0 G", "1.2 T". */
Figure figure_flops(double value);
/* Formats a number of bytes like "512 bytes", "305.0 KiB", "62.6 MiB", "132.1 GiB". */
Figure figure_bytes(double bytes);
/* Returns the size in bytes of the unit that figure_bytes chooses for this value, so that parts of
 * it can be printed in the same unit. */
double figure_bytes_unit(double bytes);
/* Formats the exit status from waitpid: "ended with exit code 3", "was ended by signal 9". */
Figure figure_ending(int status);
/* Formats a duration like "0:42", "12:07", "3:05:09", "2d 21h", "412 d"; "-" if unknown (negative
 * or NaN). */
Figure figure_duration(double seconds);
/* Formats a duration with its units: "850 us", "12.3 ms", "4.56 s", "2 min 14 s", "3 h 5 min",
 * "19.2 days", "1,200 days"; "-" if unknown. */
Figure figure_seconds(double seconds);

#endif
