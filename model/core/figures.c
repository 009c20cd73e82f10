/* figures.c -- implements figures.h: formats numbers for people. */
#include "model/core/figures.h"

#include "model/core/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

Figure figure_count(double value)
{
    Figure f = {""};
    char digits[32];
    double v = !(value > 0) ? 0 : fmin(value, 1e15);
    /* Decided before rounding: 9.96 is printed as "10.0", which shows that it is not exactly
     * ten. */
    bool whole = v >= 10 || v == floor(v);
    int n = snprintf(digits, sizeof digits, whole ? "%.0f" : "%.1f", v);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (whole && i > 0 && (n - i) % 3 == 0) f.text[at++] = ',';
        f.text[at++] = digits[i];
    }
    return f;
}

Figure figure_of(int64_t n, const char *one)
{
    Figure f;
    int length = snprintf(f.text, sizeof f.text, "%s %s%s", figure_count((double)n).text, one,
                          n == 1 ? "" : "s");
    CHECK(length < (int)sizeof f.text, "a long name: %s", one);
    return f;
}

/* Divides *value by `step` until it prints as less than `step` with one decimal, at most `most`
 * times. Returns the number of divisions. */
static int unit_of(double *value, double step, int most)
{
    int u = 0;
    for (; *value >= step - 0.05 && u < most; u++)
        *value /= step;
    return u;
}

Figure figure_short(double value)
{
    static const char unit[] = "MBTPE";
    Figure f = {""};
    /* Values that would round to a million are printed in millions, further down. A NaN is printed
     * here, too. */
    if (!(value >= 999999.5)) return figure_count(round(value));
    value /= 1e6;
    int u = unit_of(&value, 1e3, (int)sizeof unit - 2);
    snprintf(f.text, sizeof f.text, "%.*f %c", value < 100 ? 2 : 1, fmin(value, 1e4), unit[u]);
    return f;
}

Figure figure_flops(double value)
{
    static const char unit[] = "GTPE";
    Figure f = {""};
    value /= 1e9;
    int u = unit_of(&value, 1e3, (int)sizeof unit - 2);
    snprintf(f.text, sizeof f.text, "%.1f %c", value, unit[u]);
    return f;
}

static const char *const bytes_unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
enum { LAST_BYTES_UNIT = sizeof bytes_unit / sizeof *bytes_unit - 1 };

Figure figure_bytes(double bytes)
{
    Figure f = {""};
    if (!(bytes >= 1024)) return figure_of((int64_t)fmax(bytes, 0), "byte");
    bytes /= 1024;
    int u = unit_of(&bytes, 1024, LAST_BYTES_UNIT);
    snprintf(f.text, sizeof f.text, "%.1f %s", bytes, bytes_unit[u]);
    return f;
}

double figure_bytes_unit(double bytes)
{
    if (!(bytes >= 1024)) return 1;
    bytes /= 1024;
    return ldexp(1024, 10 * unit_of(&bytes, 1024, LAST_BYTES_UNIT));
}

Figure figure_ending(int status)
{
    Figure f;
    if (WIFSIGNALED(status))
        snprintf(f.text, sizeof f.text, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(f.text, sizeof f.text, "ended with exit code %d", WEXITSTATUS(status));
    return f;
}

Figure figure_duration(double seconds)
{
    Figure f = {"-"};
    if (!(seconds >= 0) || seconds > 1e12) return f;
    long long s = (long long)(seconds + 0.5), hours = s / 3600;
    if (hours >= 100 * 24)
        snprintf(f.text, sizeof f.text, "%lld d", hours / 24);
    else if (hours >= 24)
        snprintf(f.text, sizeof f.text, "%lldd %lldh", hours / 24, hours % 24);
    else if (hours > 0)
        snprintf(f.text, sizeof f.text, "%lld:%02lld:%02lld", hours, s / 60 % 60, s % 60);
    else
        snprintf(f.text, sizeof f.text, "%lld:%02lld", s / 60, s % 60);
    return f;
}

Figure figure_seconds(double seconds)
{
    Figure f = {"-"};
    if (!(seconds >= 0) || seconds > 1e15) return f;
    long long s = (long long)(seconds + 0.5), minutes = (long long)(seconds / 60 + 0.5);
    double days = seconds / 86400;
    /* From each limit on, the rounded number would need a fourth digit or reach one whole larger
     * unit. */
    if (seconds < 999.5e-6)
        snprintf(f.text, sizeof f.text, "%.0f us", 1e6 * seconds);
    else if (seconds < 0.9995)
        snprintf(f.text, sizeof f.text, "%.3g ms", 1e3 * seconds);
    else if (seconds < 59.95)
        snprintf(f.text, sizeof f.text, "%.3g s", seconds);
    else if (s < 3600)
        snprintf(f.text, sizeof f.text, "%lld min %lld s", s / 60, s % 60);
    else if (minutes < 24 * 60)
        snprintf(f.text, sizeof f.text, "%lld h %lld min", minutes / 60, minutes % 60);
    else if (days < 99.95)
        snprintf(f.text, sizeof f.text, "%.3g day%s", days, days < 1.005 ? "" : "s");
    else
        snprintf(f.text, sizeof f.text, "%.20s days", figure_count(days).text);
    return f;
}
