/* report_csv.c -- prints the figures of runs as CSV. See report_csv.h. */
#include "parallel/report/report_csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void report_csv_head(FILE *to)
{
    fputs("run,step,samples,tokens,loss,lr,grad_norm,loss_scale,val_loss,val_bits_per_byte,"
          "tokens_per_second,exposed_communication\n",
          to);
}

/* Prints the name of a run as a cell, in quotes where the format needs them. */
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

/* Prints a number as the next cell, with the digits that identify it: mostly 15, at most 17. */
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
    putc('\n', to);
}

void report_csv_run(FILE *to, const char *run, const History *h)
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
    }
}
