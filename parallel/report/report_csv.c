/* report_csv.c -- prints the figures of runs as CSV. See report_csv.h. */
#include "parallel/report/report_csv.h"

#include "model/core/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Prints a name as a cell, in quotes where the format needs them. */
static void print_name(FILE *to, const char *name)
{
    bool quoted = name[strcspn(name, ",\"\r\n")] != '\0';
    if (quoted) putc('"', to);
    for (; *name; name++) {
        if (*name == '"') putc('"', to);
        putc(*name, to);
    }
    if (quoted) putc('"', to);
}

void report_csv_head(FILE *to, const StringList *sets)
{
    static const char *const figure[] = {"val_loss", "val_bits_per_byte"};
    fputs("run,step,samples,tokens,loss,lr,grad_norm,loss_scale,val_loss,val_bits_per_byte,"
          "tokens_per_second,exposed_communication",
          to);
    for (int i = 0; i < sets->count; i++) {
        for (int k = 0; k < 2; k++) {
            char *column = text_format("%s_%s", figure[k], sets->item[i]);
            putc(',', to);
            print_name(to, column);
            free(column);
        }
    }
    putc('\n', to);
}

void report_csv_sets(const History *h, StringList *sets)
{
    for (int i = 0; i < h->n_sets; i++) {
        bool known = false;
        for (int k = 0; k < sets->count; k++)
            known |= strcmp(sets->item[k], h->set[i].name) == 0;
        if (!known) string_list_add(sets, h->set[i].name);
    }
}

/* Prints a number as the next cell, with enough digits to read back the same value: 15, or 17 if 15
 * are not enough. The cell is empty if the number is not finite. */
static void print_cell(FILE *to, double value)
{
    char text[40] = "";
    if (isfinite(value)) {
        snprintf(text, sizeof text, "%.15g", value);
        if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    }
    fprintf(to, ",%s", text);
}

/* The points of a run at one step; NULL where there is none. */
typedef struct {
    const TrainPoint *train;
    const EvalPoint *eval;
    const SpeedPoint *speed;
} Row;

static void print_row(FILE *to, const char *run, int64_t step, Row row)
{
    print_name(to, run);
    fprintf(to, ",%lld", (long long)step);
    if (row.train)
        fprintf(to, ",%lld,%lld", (long long)row.train->samples, (long long)row.train->tokens);
    else
        fputs(",,", to);
    print_cell(to, row.train ? row.train->loss : NAN);
    print_cell(to, row.train ? row.train->lr : NAN);
    print_cell(to, row.train ? row.train->grad_norm : NAN);
    print_cell(to, row.train ? row.train->loss_scale : NAN);
    print_cell(to, row.eval ? row.eval->loss : NAN);
    print_cell(to, row.eval ? row.eval->bits_per_byte : NAN);
    print_cell(to, row.speed ? row.speed->tokens_per_second : NAN);
    print_cell(to, row.speed ? row.speed->exposed : NAN);
}

/* Returns the evaluation at a step, or NULL if there is none. The steps of set->eval increase, so a
 * binary search finds it. */
static const EvalPoint *point_at(const SetHistory *set, int64_t step)
{
    int64_t from = 0, to = set->n_eval;
    while (from < to) {
        int64_t middle = from + (to - from) / 2;
        if (set->eval[middle].step < step)
            from = middle + 1;
        else
            to = middle;
    }
    return from < set->n_eval && set->eval[from].step == step ? &set->eval[from] : NULL;
}

/* Prints the cells of all sets at one step. */
static void print_sets(FILE *to, const History *h, const StringList *sets, int64_t step)
{
    for (int i = 0; i < sets->count; i++) {
        const EvalPoint *p = NULL;
        for (int k = 0; k < h->n_sets; k++)
            if (strcmp(h->set[k].name, sets->item[i]) == 0) p = point_at(&h->set[k], step);
        print_cell(to, p ? p->loss : NAN);
        print_cell(to, p ? p->bits_per_byte : NAN);
    }
}

void report_csv_run(FILE *to, const char *run, const History *h, const StringList *sets)
{
    int64_t t = 0, e = 0, s = 0;
    while (t < h->n_train || e < h->n_eval || s < h->n_speed) {
        int64_t step = INT64_MAX;
        if (t < h->n_train) step = h->train[t].step;
        if (e < h->n_eval && h->eval[e].step < step) step = h->eval[e].step;
        if (s < h->n_speed && h->speed[s].step < step) step = h->speed[s].step;
        Row row = {0};
        if (t < h->n_train && h->train[t].step == step) row.train = &h->train[t++];
        if (e < h->n_eval && h->eval[e].step == step) row.eval = &h->eval[e++];
        if (s < h->n_speed && h->speed[s].step == step) row.speed = &h->speed[s++];
        print_row(to, run, step, row);
        print_sets(to, h, sets, step);
        putc('\n', to);
    }
}
