/* console.c -- see console.h. */
#include "parallel/console.h"

#include "data/utf8.h"
#include "model/core/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_PER_HEADER = 40 };

/* ---- figures in few characters --------------------------------------------------------------- */

/* "0:42", "12:07", "3:05:09"; "-" when it is not known. */
static const char *duration_text(char *buf, size_t n, double seconds)
{
    if (!(seconds >= 0) || seconds > 1e8) {
        snprintf(buf, n, "-");
        return buf;
    }
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, n, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, n, "%lld:%02lld", s / 60, s % 60);
    return buf;
}

/* A count with commas: 12,100. */
static const char *comma_text(char *buf, size_t n, double value)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f",
                          value < 0      ? 0
                          : value > 1e15 ? 1e15
                                         : value);
    size_t at = 0;
    for (int i = 0; i < length && at + 2 < n; i++) {
        if (i > 0 && (length - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

/* A number of tokens in millions, then billions. */
static const char *tokens_text(char *buf, size_t n, int64_t tokens)
{
    if (tokens < 1000000000)
        snprintf(buf, n, "%.2f M", (double)tokens / 1e6);
    else
        snprintf(buf, n, "%.3f B", (double)tokens / 1e9);
    return buf;
}

/* ---- the live line --------------------------------------------------------------------------- */

/* Makes room for a result: afterwards the cursor stands at the start of an empty line. */
static void begin_result(const Console *c)
{
    if (c->terminal) live_line_clear(c->to);
}

void console_live(Console *c, const StepRecord *r, double tokens_per_second, double eta)
{
    if (!c->terminal) return;
    char line[160], speed[32], left[32];
    double share = c->train_steps > 0 ? (double)r->step / (double)c->train_steps : 0;
    snprintf(line, sizeof line, "  step %lld of %lld (%.0f %%)   loss %.4f   %s tok/s   eta %s",
             (long long)r->step, (long long)c->train_steps, 100 * share, r->loss,
             comma_text(speed, sizeof speed, tokens_per_second),
             duration_text(left, sizeof left, eta));
    live_line_show(c->to, line);
}

/* ---- results --------------------------------------------------------------------------------- */

void console_open(Console *c, const MetricsOptions *options)
{
    const char *no_color = getenv("NO_COLOR");
    *c = (Console){.to = options->to ? options->to : stdout,
                   .terminal = options->terminal,
                   .colour = options->terminal && (no_color == NULL || *no_color == '\0'),
                   .scale = options->loss_scale_shown,
                   .train_steps = options->train_steps};
}

void console_close(Console *c)
{
    begin_result(c);
    fflush(c->to);
}

static void print_header(Console *c)
{
    if (c->rows++ % ROWS_PER_HEADER != 0) return;
    fprintf(c->to, "%s%8s %10s %9s %9s %9s %9s%s %9s %9s %9s%s\n", c->colour ? "\033[1m" : "",
            "step", "tokens", "loss", "val", "lr", "gnorm", c->scale ? "     scale" : "", "tok/s",
            "GFLOP/s", "eta", c->colour ? "\033[0m" : "");
}

static void print_breakdown(const Console *c, const SpeedRecord *s)
{
    if (!(s->forward >= 0) || s->steps <= 0) return;
    double ms = 1e3 / (double)s->steps;
    double other = s->seconds - s->forward - s->backward - s->optimizer - s->data;
    fprintf(
        c->to,
        "         ms a step: forward %.2f  backward %.2f  optimizer %.2f  data %.2f  other %.2f\n",
        s->forward * ms, s->backward * ms, s->optimizer * ms, s->data * ms, other * ms);
}

void console_row(Console *c, const StepRecord *r, const SpeedRecord *s, double eta)
{
    char tokens[32], speed[32] = "-", flops[32] = "-", left[32];
    begin_result(c);
    print_header(c);
    if (s->seconds > 0) {
        double rate = (double)s->tokens / s->seconds;
        comma_text(speed, sizeof speed, rate);
        snprintf(flops, sizeof flops, "%.1f", rate * s->flops_per_token / 1e9);
    }
    fprintf(c->to, "%8lld %10s %9.4f %9s %9.2e %9.3g", (long long)r->step,
            tokens_text(tokens, sizeof tokens, r->tokens), r->loss, "", r->lr, r->grad_norm);
    if (c->scale) fprintf(c->to, " %9.4g", r->loss_scale);
    fprintf(c->to, " %9s %9s %9s\n", speed, flops, duration_text(left, sizeof left, eta));
    print_breakdown(c, s);
    fflush(c->to);
}

void console_eval(Console *c, const EvalRecord *r)
{
    begin_result(c);
    print_header(c);
    fprintf(c->to, "%8lld %10s %9s %s%9.4f%s", (long long)r->step, "", "",
            c->colour ? "\033[1m" : "", r->loss, c->colour ? "\033[0m" : "");
    if (r->bits_per_byte >= 0) fprintf(c->to, "   %.4f bits per byte", r->bits_per_byte);
    fprintf(c->to, "   (%.1f s)\n", r->seconds);
    fflush(c->to);
}

/* Prints text that may hold anything: control characters and bytes that are no UTF-8 come as \xNN;
 * lines after the first are indented. */
static void print_text(FILE *to, const char *text)
{
    int64_t left = (int64_t)strlen(text);
    while (left > 0) {
        uint32_t code = 0;
        int length = utf8_decode((const uint8_t *)text, left, &code);
        bool plain = length > 0 && code >= 32 && (code < 127 || code >= 160);
        if (*text == '\n')
            fputs("\n          ", to);
        else if (plain || *text == '\t')
            fwrite(text, 1, (size_t)length, to);
        else
            fprintf(to, "\\x%02x", (unsigned char)*text);
        text += plain ? length : 1;
        left -= plain ? length : 1;
    }
}

void console_sample(Console *c, const char *prompt, const char *text)
{
    begin_result(c);
    fputs("  sample  ", c->to);
    print_text(c->to, prompt);
    print_text(c->to, text);
    fputc('\n', c->to);
    fflush(c->to);
}

void console_saved(Console *c, int64_t step, double seconds, const char *path)
{
    begin_result(c);
    fprintf(c->to, "  saved   step %lld in %.2f s: ", (long long)step, seconds);
    print_text(c->to, path);
    fputc('\n', c->to);
    fflush(c->to);
}
