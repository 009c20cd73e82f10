/* result.h -- the final figures of a finished run, and how RUN/result.json stores them. */
#ifndef PARALLEL_RUN_RESULT_H
#define PARALLEL_RUN_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The figures of a set of eval.sets. */
typedef struct {
    char *name;
    double loss, bits_per_byte; /* bits_per_byte is NaN if it is unknown */
    int64_t targets;
} SetResult;

typedef struct {
    int64_t steps, tokens; /* totals over the whole training */
    double loss;     /* of the last step; NaN: unknown, because an earlier attempt made that step */
    double val_loss; /* nats per token; NaN: the run has no validation data */
    double bits_per_byte; /* of the validation data; NaN: their size in bytes is unknown */
    /* Micro-batches that val_loss covers, and micro-batches of all validation data. If both are 0,
     * it covers all data. */
    int64_t batches, all_batches;
    int64_t patience; /* eval.patience, which ended the run before train_steps; 0: it did not */
    /* The step with the lowest validation loss, if lower than val_loss; 0: there is none. */
    int64_t best_step;
    double best_val_loss;  /* of best_step; NaN: there is none */
    char *prompt, *sample; /* UTF-8; NULL: the run drew no sample */
    SetResult *set;        /* (n_sets) the sets of eval.sets, in their order */
    int n_sets;
} RunResult;

/* Returns the text of result.json; the caller frees it. */
char *run_result_text(const RunResult *result);
/* Parses the text of result.json. Returns false and clears *result unless the text is one JSON
 * object with the integers "steps" and "tokens". After false the run counts as unfinished, so the
 * next start evaluates and samples once more. */
bool run_result_parse(RunResult *result, const char *text, size_t bytes);
void run_result_free(RunResult *result);

#endif
