/* fuzz_choices.c -- fuzz target: reads any bytes as a multiple-choice file. What is accepted must
 * lie within the file, with ids below the vocabulary, and give sequences and scores. */
#include "data/tokens/choice_file.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <stdlib.h>

enum { VOCABULARY = 300, LENGTH = 6 };

static void check_row(const ChoiceFile *f, int64_t row)
{
    int32_t tokens[LENGTH], targets[LENGTH];
    int64_t n = 0;
    choice_file_sequence(f, row, LENGTH, tokens, targets);
    for (int i = 0; i < LENGTH; i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < VOCABULARY, "token %d", tokens[i]);
        CHECK(targets[i] >= -1 && targets[i] < VOCABULARY, "target %d", targets[i]);
        n += targets[i] >= 0;
    }
    CHECK(n == f->row[row].completion_tokens, "%lld targets", (long long)n);
}

int fuzz_choices(const uint8_t *data, size_t size)
{
    ChoiceFile f;
    char err[512];
    int64_t cut, rows = 0;
    if (choice_file_parse(&f, "fuzz", data, size, VOCABULARY, err, sizeof err)) {
        for (int64_t i = 0; i < f.n_examples; i++) {
            CHECK(f.example[i].first_row == rows, "%lld rows", (long long)rows);
            CHECK(f.example[i].label < f.example[i].rows, "label %d", f.example[i].label);
            rows += f.example[i].rows;
        }
        CHECK(rows == f.n_rows, "%lld rows", (long long)rows);
        if (choice_file_fits(&f, LENGTH, &cut, err, sizeof err))
            for (int64_t i = 0; i < rows; i++)
                check_row(&f, i);
        double *nats = must_calloc((size_t)rows, sizeof *nats);
        ChoiceScore score = choice_file_score(&f, nats);
        CHECK(score.right <= f.n_examples, "%lld right", (long long)score.right);
        free(nats);
    }
    choice_file_close(&f);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_choices(data, size);
}
