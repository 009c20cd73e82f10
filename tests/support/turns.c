/* turns.c -- reads from the environment which of many cases a test tries. */
#include "tests/support/turns.h"

#include <stdlib.h>

/* Returns the value of an environment variable if it is a positive number, else `otherwise`. */
static int64_t number_of(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    int64_t n = text ? strtoll(text, NULL, 10) : 0;
    return n > 0 ? n : otherwise;
}

int64_t turns_every(int64_t sample)
{
    return number_of("TEST_EVERY", getenv("TEST_SAMPLE") ? sample : 1);
}

int64_t turns_first(int64_t every)
{
    return (number_of("TEST_TURN", 0) + number_of("TEST_LATER", 0)) % every;
}
