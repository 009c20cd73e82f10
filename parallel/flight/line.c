/* line.c -- see line.h. */
#include "parallel/flight/line.h"

#include <math.h>
#include <string.h>

bool line_take_key(JsonCursor *j, const char *key)
{
    size_t n = strlen(key);
    if (!json_expect(j, j->at > j->start ? ',' : '{') || !json_expect(j, '"')) return false;
    if ((size_t)(j->end - j->at) <= n || memcmp(j->at, key, n) != 0 || j->at[n] != '"')
        return json_error(j, "the key \"%s\" is needed here", key);
    j->at += n + 1;
    return json_expect(j, ':');
}

bool line_take_text(JsonCursor *j, const char *key, char *out, size_t size)
{
    size_t n = 0;
    if (!line_take_key(j, key) || !json_expect(j, '"')) return false;
    for (; j->at < j->end && *j->at != '"'; j->at++) {
        if (*j->at < ' ' || *j->at > '~' || *j->at == '\\')
            return json_error(j, "a character that \"%s\" cannot have", key);
        if (n + 1 == size)
            return json_error(j, "\"%s\" has more than %zu characters", key, size - 1);
        out[n++] = *j->at;
    }
    out[n] = '\0';
    return json_expect(j, '"');
}

bool line_take_int(JsonCursor *j, const char *key, int64_t least, int64_t most, int64_t *out)
{
    if (!line_take_key(j, key) || !json_take_int(j, out)) return false;
    return (*out >= least && *out <= most) ||
           json_error(j, "\"%s\" is %lld, which is not possible", key, (long long)*out);
}

bool line_take_small(JsonCursor *j, const char *key, int least, int most, int *out)
{
    int64_t value;
    if (!line_take_int(j, key, least, most, &value)) return false;
    *out = (int)value;
    return true;
}

bool line_take_name(JsonCursor *j, const char *key, const char *const *name, int count, int *out)
{
    char text[32];
    if (!line_take_text(j, key, text, sizeof text)) return false;
    for (*out = 0; *out < count; ++*out)
        if (strcmp(text, name[*out]) == 0) return true;
    return json_error(j, "\"%s\" cannot be \"%s\"", key, text);
}

/* Reads decimal digits and appends each to the number *value (*value = 10 * *value + digit).
 * Returns how many digits there are. */
static int take_digits(const char **at, const char *end, double *value)
{
    enum { TEN = 10 };
    int digits = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at, digits++)
        *value = *value * TEN + (**at - '0');
    return digits;
}

/* Reads a decimal number without an exponent. */
static bool take_decimal(JsonCursor *j, double *out)
{
    enum { MOST_DIGITS = 18, TEN = 10 };
    const char *p = j->at;
    double value = 0;
    bool negative = p < j->end && *p == '-';
    p += negative;
    bool zero = p < j->end && *p == '0';
    int whole = take_digits(&p, j->end, &value), part = 0;
    bool good = whole > 0 && (whole == 1 || !zero);
    if (good && p < j->end && *p == '.') {
        p++;
        part = take_digits(&p, j->end, &value);
        good = part > 0;
    }
    if (!good || whole + part > MOST_DIGITS)
        return json_error(j, "a decimal number is needed here");
    for (; part > 0; part--)
        value /= TEN;
    j->at = p;
    *out = negative ? -value : value;
    return true;
}

bool line_take_seconds(JsonCursor *j, const char *key, double *out)
{
    return line_take_key(j, key) && take_decimal(j, out);
}

bool line_take_seconds_or_null(JsonCursor *j, const char *key, double *out)
{
    static const char null[] = "null";
    const size_t n = sizeof null - 1;
    if (!line_take_key(j, key)) return false;
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, null, n) != 0) return take_decimal(j, out);
    j->at += n;
    *out = NAN;
    return true;
}

bool line_end(JsonCursor *j)
{
    return json_expect(j, '}') && json_expect_end(j);
}
