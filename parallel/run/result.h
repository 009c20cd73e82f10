/* result.h -- what a finished run has come to, and RUN/result.json, which keeps it. */
#ifndef PARALLEL_RUN_RESULT_H
#define PARALLEL_RUN_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t steps, tokens; /* trained on in all */
    double loss;           /* of the last step; NaN: an attempt before this one made it */
    double val_loss;       /* nats a token; NaN: the run has no validation data */
    double bits_per_byte;  /* of the validation data; only with val_loss */
    char *prompt, *sample; /* UTF-8; NULL: the run has sampled nothing */
} RunResult;

/* The text of result.json; the caller frees. */
char *run_result_text(const RunResult *result);
/* Reads such a text. False, and *result holds nothing, for anything that is not one JSON object
 * with the integers "steps" and "tokens": a run whose result is damaged has none, and its last
 * steps are evaluated and sampled anew. */
bool run_result_parse(RunResult *result, const char *text, size_t bytes);
void run_result_free(RunResult *result);

#endif
