/* fuzz_metrics.c -- fuzz target: reads any bytes as the metrics.jsonl of a run. The lists of points
 * must be sorted, the page must keep its limit and contain no other elements than its own, and the
 * table must have one line for each step. */
#include "model/core/check.h"
#include "parallel/report/report_csv.h"
#include "parallel/report/report_page.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void check_sorted(const History *h)
{
    for (int64_t i = 1; i < h->n_train; i++)
        CHECK(h->train[i - 1].step < h->train[i].step, "train %lld", (long long)i);
    for (int64_t i = 1; i < h->n_eval; i++)
        CHECK(h->eval[i - 1].step < h->eval[i].step, "eval %lld", (long long)i);
    for (int k = 0; k < h->n_sets; k++)
        for (int64_t i = 1; i < h->set[k].n_eval; i++)
            CHECK(h->set[k].eval[i - 1].step < h->set[k].eval[i].step, "set %lld", (long long)i);
    for (int64_t i = 1; i < h->n_speed; i++)
        CHECK(h->speed[i - 1].step < h->speed[i].step, "speed %lld", (long long)i);
    for (int64_t i = 1; i < h->n_sample; i++)
        CHECK(h->sample[i - 1].step < h->sample[i].step, "sample %lld", (long long)i);
}

static void check_table(const History *h)
{
    char *text;
    size_t bytes;
    int64_t lines = 0;
    StringList sets = {0};
    report_csv_sets(h, &sets);
    CHECK(sets.count == h->n_sets, "%d of %d sets", sets.count, h->n_sets);
    FILE *to = text_stream(&text, &bytes);
    report_csv_run(to, "run", h, &sets);
    string_list_free(&sets);
    fclose(to);
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    CHECK(lines >= h->n_train && lines <= h->n_train + h->n_eval + h->n_speed, "%lld lines",
          (long long)lines);
    free(text);
}

/* What begins after `from` and ends before `to` consists of finite numbers. */
static void check_numbers(const char *text, const char *from, char to)
{
    for (const char *at = text; (at = strstr(at, from)) != NULL;) {
        at += strlen(from);
        int n = (int)(strchr(at, to) - at);
        CHECK(memmem(at, (size_t)n, "nan", 3) == NULL && memmem(at, (size_t)n, "inf", 3) == NULL,
              "%s%.*s", from, n, at);
    }
}

static void check_page(const History *h)
{
    char *text;
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    report_page_print(to, &(const PageRun){.name = "run", .history = *h}, 1);
    fclose(to);
    CHECK(bytes < PAGE_BYTES_MOST && strlen(text) == bytes, "a page of %zu bytes", bytes);
    CHECK(strstr(text, "<script") == NULL, "%s", text);
    /* Only the plots' numbers: a set may be called "information". */
    check_numbers(text, " d=\"", '"');
    check_numbers(text, "class=\"x\">", '<');
    check_numbers(text, "class=\"y\">", '<');
    free(text);
}

int fuzz_metrics(const uint8_t *data, size_t size);
int fuzz_metrics(const uint8_t *data, size_t size)
{
    History h;
    FILE *from = size > 0 ? fmemopen((void *)data, size, "r") : NULL;
    if (from == NULL) return 0;
    history_read_stream(&h, from);
    fclose(from);
    check_sorted(&h);
    check_table(&h);
    if (h.n_train > 0) check_page(&h);
    history_free(&h);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_metrics(data, size);
    return 0;
}
