/* option_cases.h -- for every key of the option table, a short run in which the key has an effect,
 * and a second value for it. */
#ifndef TESTS_SUPPORT_TRAINER_OPTION_CASES_H
#define TESTS_SUPPORT_TRAINER_OPTION_CASES_H

#include <stdbool.h>

typedef struct {
    const char *key;
    const char *value;  /* value in the second run */
    const char *beside; /* a further setting of the second run that the value needs; or NULL */
    int ranks;          /* ranks of both runs; 0: one rank */
    /* Settings of both runs, on top of the config of seen_run.c; ended by NULL. */
    const char *set[8];
    /* Text that only one of the two runs prints. */
    const char *shows;
    int code; /* exit code of the second run */
    /* A run cannot be resumed with this value, although its row allows other changes. */
    bool impossible;
    /* The test that shows the effect, if no run here can show it. */
    const char *elsewhere;
} OptionCase;

extern const OptionCase option_cases[];
extern const int option_case_count;

#endif
