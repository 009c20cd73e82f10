/* fuzz_best.c -- fuzz target: reads any bytes as RUN/checkpoints/best.json. An accepted record must
 * print and parse back to the same record. */
#include "tests/fuzz/fuzz_checkpoint.h"

#include "model/core/check.h"
#include "parallel/checkpoint/best.h"

#include <stdlib.h>
#include <string.h>

int fuzz_best(const uint8_t *data, size_t n)
{
    CheckpointBest best, again;
    if (!best_parse(&best, (const char *)data, n)) return 0;
    char *text = best_text(&best);
    CHECK(best_parse(&again, text, strlen(text)), "%s", text);
    CHECK(again.step == best.step && again.val_loss == best.val_loss &&
              strcmp(again.save_id, best.save_id) == 0,
          "%s", text);
    free(text);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_best(data, n);
    return 0;
}
