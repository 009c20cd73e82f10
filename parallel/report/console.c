/* console.c -- prints the table, the results and the live line. See console.h. */
#include "parallel/report/console.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/progress.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_PER_HEADER = 40 };

/* Returns the value, or a NaN without a sign: the sign of a NaN has no meaning and is not printed.
 */
static double without_sign(double value)
{
    return isnan(value) ? (double)NAN : value;
}

/* ---- the live line --------------------------------------------------------------------------- */

void console_live(Console *c, const StepRecord *r, double tokens_per_second, double eta)
{
    if (!c->terminal) return;
    char line[160];
    double share = c->train_steps > 0 ? (double)r->step / (double)c->train_steps : 0;
    snprintf(line, sizeof line, "  step %lld of %lld (%.0f %%)  loss %.4g  %s tok/s  eta %s",
             (long long)r->step, (long long)c->train_steps, 100 * share, without_sign(r->loss),
             figure_short(tokens_per_second).text, figure_duration(eta).text);
    /* No line feed: the next step overwrites the line, and a result or a message erases it
     * first. */
    int64_t noted = flight_work_begin(c->flight, FLIGHT_CONSOLE);
    live_line_show(c->to, line);
    flight_work_end(c->flight, noted);
}

/* ---- results --------------------------------------------------------------------------------- */

void console_open(Console *c, const MetricsOptions *options)
{
    *c = (Console){.to = options->to ? options->to : stdout,
                   .terminal = options->terminal,
                   .colour = options->terminal && terminal_colours(),
                   .scale = options->loss_scale_shown,
                   .train_steps = options->pace.train_steps,
                   .flight = options->flight};
}

/* Begins to print lines: clears the live line. If nobody reads the console, the caller may block
 * here, or in end_lines. Returns the number of the flight recorder's entry, for end_lines. */
static int64_t begin_lines(Console *c)
{
    int64_t noted = flight_work_begin(c->flight, FLIGHT_CONSOLE);
    live_line_clear(c->to);
    return noted;
}

static void end_lines(Console *c, int64_t noted)
{
    fflush(c->to);
    flight_work_end(c->flight, noted);
}

void console_close(Console *c)
{
    live_line_clear(c->to);
    fflush(c->to);
}

/* Prints the header above each ROWS_PER_HEADER rows. Every column except the first has a space and
 * eight characters, so a row fits 80 columns. */
static void print_header(Console *c)
{
    if (c->rows++ % ROWS_PER_HEADER != 0) return;
    fprintf(c->to, "%s%8s %8s %8s %8s %8s%s %8s %8s %8s%s\n", c->colour ? "\033[1m" : "", "step",
            "tokens", "loss", "lr", "gnorm", c->scale ? "   scale" : "", "tok/s", "FLOP/s", "eta",
            c->colour ? "\033[0m" : "");
}

/* Prints indented lines below the row of a result. */
static void print_lines(const Console *c, const char *text, int indent)
{
    char *lines = text_wrap_to(terminal_line(c->to), text, indent, indent, WRAP_FIGURES);
    fprintf(c->to, "%*s%s\n", indent, "", lines);
    free(lines);
}

static void print_breakdown(const Console *c, const SpeedRecord *s)
{
    char text[256];
    if (!(s->forward >= 0) || s->steps <= 0) return;
    double ms = 1e3 / (double)s->steps;
    /* Time that the host spends between the phases: reading records, printing, the calls
     * themselves. */
    double other = s->seconds - s->forward - s->backward - s->optimizer - s->data;
    char comm[64] = "", stages[64] = "";
    /* A GPU measures its phases with its own clock, so their sum may exceed the host's time, and
     * `other` may be negative. */
    other -= s->communication + s->exchange + s->bubble;
    if (s->communication > 0)
        snprintf(comm, sizeof comm, "communication %.2f  ", s->communication * ms);
    if (s->exchange + s->bubble > 0)
        snprintf(stages, sizeof stages, "exchange %.2f  bubble %.2f  ", s->exchange * ms,
                 s->bubble * ms);
    snprintf(text, sizeof text,
             "%sms a step:  forward %.2f  backward %.2f  optimizer %.2f  %s%sdata %.2f  other %.2f",
             s->ranks > 1 ? "rank 0, " : "", s->forward * ms, s->backward * ms, s->optimizer * ms,
             comm, stages, s->data * ms, fmax(0, other) * ms);
    print_lines(c, text, 9);
}

/* Prints how long, within the phases, the device only waited: for other ranks, and for updates of
 * states in host memory. */
static void print_exposed(const Console *c, const SpeedRecord *s)
{
    char text[256] = "exposed communication, ms a step, the most of a rank:";
    size_t none = strlen(text), used = none;
    if (!(s->forward >= 0) || s->steps <= 0) return;
    for (int a = 0; a < EXPOSED_HOST; a++)
        if (s->exposed[a] > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "  %s %.2f",
                                     exposed_axis_name[a], s->exposed[a] * 1e3 / (double)s->steps);
    if (used > none) print_lines(c, text, 9);
    const char *of = s->ranks > 1 ? ", the most of a rank" : "";
    if (s->exposed[EXPOSED_HOST] > 0) {
        snprintf(text, sizeof text, "waits for host states, ms a step%s:  %.2f", of,
                 s->exposed[EXPOSED_HOST] * 1e3 / (double)s->steps);
        print_lines(c, text, 9);
    }
    if (!(s->updates > 0)) return;
    snprintf(text, sizeof text, "host states, each way, a step%s:  %s in %s, %.1f GB/s", of,
             figure_bytes(s->updated_bytes / (double)s->steps).text,
             figure_seconds(s->updates / (double)s->steps).text,
             s->updated_bytes / s->updates / 1e9);
    print_lines(c, text, 9);
}

/* Prints the speed per rank, the average work of a rank, and the rank that works longest, for which
 * the others wait. */
static void print_ranks(const Console *c, const SpeedRecord *s)
{
    char text[256];
    if (s->ranks < 2 || s->steps <= 0 || !(s->seconds > 0)) return;
    double ms = 1e3 / (double)s->steps, rate = (double)s->tokens / s->seconds / s->ranks;
    snprintf(text, sizeof text,
             "a rank:  %s tok/s  %s FLOP/s  work %.2f ms a step, most on rank %d: %.2f",
             figure_short(rate).text, figure_flops(rate * s->flops_per_token).text,
             s->mean_work * ms, s->slowest, s->most_work * ms);
    print_lines(c, text, 9);
}

/* Prints a normal loss with four digits after the point. A loss that has diverged is printed so
 * that it fits the column. */
static Figure loss_text(double loss)
{
    Figure f;
    snprintf(f.text, sizeof f.text, loss < 999 ? "%.4f" : "%.2e", without_sign(loss));
    return f;
}

/* Prints a loss scale. Large ones are usually powers of two, which are short as 2^N. */
static Figure scale_text(double scale)
{
    Figure f;
    int exponent = 0;
    if (scale >= 1e5 && frexp(scale, &exponent) == 0.5)
        snprintf(f.text, sizeof f.text, "2^%d", exponent - 1);
    else
        snprintf(f.text, sizeof f.text, scale < 1e5 ? "%.5g" : "%.1e", scale);
    return f;
}

void console_json(Console *c, const char *line, size_t bytes)
{
    int64_t noted = flight_work_begin(c->flight, FLIGHT_CONSOLE);
    fwrite(line, 1, bytes, c->to);
    end_lines(c, noted);
}

void console_row(Console *c, const StepRecord *r, const SpeedRecord *s, double eta)
{
    Figure speed = {"-"}, flops = {"-"};
    int64_t noted = begin_lines(c);
    print_header(c);
    /* A resumed run may print a row before it has made a step; its speed is then not known. */
    if (s->seconds > 0) {
        double rate = (double)s->tokens / s->seconds;
        speed = figure_short(rate);
        flops = figure_flops(rate * s->flops_per_token);
    }
    fprintf(c->to, "%8lld %8s %8s %8.2e %8.3g", (long long)r->step,
            figure_short((double)r->tokens).text, loss_text(r->loss).text, r->lr,
            without_sign(r->grad_norm));
    if (c->scale) fprintf(c->to, " %7s", scale_text(r->loss_scale).text);
    fprintf(c->to, " %8s %8s %8s\n", speed.text, flops.text, figure_duration(eta).text);
    print_breakdown(c, s);
    print_exposed(c, s);
    print_ranks(c, s);
    end_lines(c, noted);
}

void console_eval(Console *c, const EvalRecord *r)
{
    int64_t noted = begin_lines(c);
    print_header(c);
    fprintf(c->to, "%8lld %8s %s%8s%s", (long long)r->step, r->set ? r->set : "val",
            c->colour ? "\033[1m" : "", loss_text(r->loss).text, c->colour ? "\033[0m" : "");
    if (r->bits_per_byte >= 0) fprintf(c->to, "   %.4f bits per byte", r->bits_per_byte);
    if (r->set)
        fprintf(c->to, "   %s target%s\n", figure_short((double)r->targets).text,
                r->targets == 1 ? "" : "s");
    else
        fprintf(c->to, "   (%.1f s)\n", r->seconds);
    end_lines(c, noted);
}

/* Prints `label`, then both texts as one. Continuation lines are indented to the column of the
 * text. */
static void print_labelled(Console *c, const char *label, const char *text, const char *more,
                           Wrap wrap)
{
    enum { COLUMN = 10 };
    /* Joined before wrapping, because a sample continues in the line of its prompt. Control
     * characters are escaped, since the model may generate any bytes. */
    char *whole;
    size_t n;
    FILE *to = text_stream(&whole, &n);
    utf8_print_escaped(to, text);
    utf8_print_escaped(to, more);
    fclose(to);
    char *lines = text_wrap_to(terminal_line(c->to), whole, COLUMN, COLUMN, wrap);
    int64_t noted = begin_lines(c);
    fprintf(c->to, "  %-*s%s\n", COLUMN - 2, label, lines);
    end_lines(c, noted);
    free(lines);
    free(whole);
}

void console_sample(Console *c, const char *prompt, const char *text)
{
    print_labelled(c, "sample", prompt, text, WRAP_HARD);
}

void console_saved(Console *c, const SaveRecord *save)
{
    char what[240], waited[40] = "", replicas[64] = "", between[80] = "";
    if (save->stall < save->seconds)
        snprintf(waited, sizeof waited, " (training waited %.2f s)", save->stall);
    if (save->compared.n > 0)
        snprintf(replicas, sizeof replicas, ", replicas compared in %.3f s",
                 save->compared.seconds);
    if (save->between.n > 0)
        snprintf(between, sizeof between, ", and %s by interval in %.3f s",
                 figure_of(save->between.n, "time").text, save->between.seconds);
    snprintf(what, sizeof what, "step %lld in %.2f s%s%s%s: ", (long long)save->at.step,
             save->seconds, waited, replicas, between);
    print_labelled(c, "saved", what, save->path, WRAP_FIGURES);
}
