/* option_cases.h -- for every row of the option table a short run in which it means something, and
 * another value. */
#ifndef TESTS_SUPPORT_TRAINER_OPTION_CASES_H
#define TESTS_SUPPORT_TRAINER_OPTION_CASES_H

typedef struct {
    const char *key;
    const char *value;     /* of the second run */
    int ranks;             /* of both; 0: one */
    const char *set[8];    /* of both runs, over the config of seen_run.c; NULL ends */
    const char *shows;     /* text that one of the two consoles has and the other has not */
    int code;              /* how the second run ends */
    const char *elsewhere; /* no run here can show it: the test that does */
} OptionCase;

extern const OptionCase option_cases[];
extern const int option_case_count;

#endif
