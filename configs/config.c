/* config.c -- loads a config: reads a file and --set values into one validated Config, in the order
 * that config.h describes.
 *
 * assign.c and value.c store the values, derive.c computes missing ones, validate.c checks the
 * rules between keys; option_table.c and known_keys.c list the keys. */
#include "configs/config.h"

#include "configs/reader/eval_sets.h"
#include "configs/reader/load.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void config_free(const Config *config)
{
    if (config == NULL) return;
    Origin *origin = config->provenance;
    for (int i = 0; i < option_count; i++) {
        void *field = option_field(&option_table[i], config);
        free(origin[i].text);
        free(origin[i].given_at);
        if (option_table[i].type == OPTION_STRING) free(*(char **)field);
        if (option_table[i].type == OPTION_STRINGS) string_list_free(field);
        if (option_table[i].type == OPTION_SETS) eval_sets_free(field);
        if (option_table[i].type == OPTION_INTEGERS) free(((IntegerList *)field)->item);
    }
    free(origin);
    free(config->path);
    free(config->name);
    free((void *)(uintptr_t)config);
}

/* Returns the run's name: "demo" for "configs/demo.json". */
static char *run_name(const char *path)
{
    if (path == NULL) return must_strdup("default");
    if (strcmp(path, "-") == 0) return must_strdup("stdin");
    const char *base = path_name(path);
    size_t n = strlen(base), dot = n;
    for (size_t i = 1; i < n; i++)
        if (base[i] == '.') dot = i;
    return text_format("%.*s", (int)dot, base);
}

/* Returns the key that was given instead of option `row` and determines the option's value, as
 * train_tokens determines train_steps; NULL if there is none. */
static const char *settled_by(const Load *load, int row)
{
    for (int i = 0; i < option_count; i++)
        if (option_table[i].settles != NULL && load_given(load, option_table[i].key) &&
            strcmp(option_table[i].settles, option_table[row].key) == 0)
            return option_table[i].key;
    return NULL;
}

/* Writes the strings that config_origin and config_given_at return. config_print puts them into //
 * comments, so the path must not contain a line break. */
static void name_origins(Load *load)
{
    char *path = utf8_line(load->path ? load->path : "");
    for (int i = 0; i < option_count; i++) {
        Origin *o = &load->origin[i];
        const char *key = o->kind == ORIGIN_DERIVED ? settled_by(load, i) : NULL;
        if (origin_given(o)) o->given_at = load_place_text(load, o->place);
        switch (o->kind) {
        case ORIGIN_DEFAULT: o->text = must_strdup("default"); break;
        case ORIGIN_DERIVED:
            o->text = key ? text_format("derived from %s", key) : must_strdup("derived");
            break;
        case ORIGIN_SET: o->text = must_strdup("--set"); break;
        case ORIGIN_FILE: o->text = text_format("%s:%d", path, o->place.line); break;
        }
    }
    free(path);
}

static int compare_findings(const void *x, const void *y)
{
    const Finding *a = x, *b = y;
    const int order[] = {a->place.set - b->place.set, a->place.line - b->place.line,
                         a->place.column - b->place.column};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (order[i] != 0) return order[i];
    return strcmp(a->text, b->text);
}

static void report_findings(Load *load, ConfigReport *report)
{
    *report = (ConfigReport){0};
    if (load->n_findings == 0) {
        free(load->finding); /* a --set may have removed every finding again */
        return;
    }
    qsort(load->finding, (size_t)load->n_findings, sizeof *load->finding, compare_findings);
    report->error = must_calloc((size_t)load->n_findings, sizeof(char *));
    report->remedy = must_calloc((size_t)load->n_findings, sizeof(char *));
    report->notice = must_calloc((size_t)load->n_findings, sizeof(char *));
    report->routine = must_calloc((size_t)load->n_findings, sizeof(bool));
    report->idle = must_calloc((size_t)load->n_findings, sizeof(bool));
    for (int i = 0; i < load->n_findings; i++) {
        const Finding *f = &load->finding[i];
        free(f->key);
        if (f->kind == FINDING_ERROR) {
            report->remedy[report->n_errors] = f->remedy;
            report->error[report->n_errors++] = f->text;
        } else {
            report->routine[report->n_notices] = f->kind == FINDING_ROUTINE;
            report->idle[report->n_notices] = f->kind == FINDING_IDLE;
            report->notice[report->n_notices++] = f->text;
        }
    }
    free(load->finding);
}

/* Builds the config after the file has been read; `text` is NULL if there is no file. */
static const Config *parse(Load *load, const char *text, size_t length, ConfigReport *report)
{
    char err[200];
    size_t at;
    load->config = must_calloc(1, sizeof *load->config);
    load->origin = must_calloc((size_t)option_count, sizeof *load->origin);
    load->seen = must_calloc((size_t)(option_count + known_count), sizeof *load->seen);
    load->dropped = must_calloc((size_t)load->n_sets + 1, sizeof *load->dropped);
    load->config->provenance = load->origin;
    load->config->path = must_strdup(load->path ? load->path : "");
    load->config->name = run_name(load->path);
    /* Every field gets its default before any value is read. So a refused value leaves a usable one
     * behind, the rules between keys can still be checked, and all mistakes are reported
     * together. */
    for (int i = 0; i < option_count; i++)
        load_default(load, i);
    if (text != NULL) {
        Json json;
        load->unreadable = !json_parse(&json, text, length, err, sizeof err, &at);
        if (load->unreadable) {
            ConfigPlace place = {0};
            json_place(&json, at, &place.line, &place.column);
            load_error(load, place, "", "%s", err);
        } else {
            assign_document(load, &json);
            load->config->foreign = load->foreign;
            load->config->settled = load->context.stored || load->context.resumed;
        }
        json_free(&json);
    }
    assign_sets(load);
    /* If the file is not JSON, the rules are skipped: each would only report that its keys are
     * missing. */
    if (!load->unreadable) {
        derive_values(load);
        validate_config(load);
    }
    name_origins(load);
    free(load->seen);
    free(load->dropped);
    bool good = load->n_errors == 0;
    report_findings(load, report);
    if (good) return load->config;
    config_free(load->config);
    return NULL;
}

const Config *config_parse(const ConfigContext *context, const char *path, const char *text,
                           size_t length, int n_sets, const char *const *sets, ConfigReport *report)
{
    Load load = {.path = path ? path : "config", .sets = sets, .n_sets = n_sets};
    if (context != NULL) load.context = *context;
    return parse(&load, text, length, report);
}

const Config *config_load(const char *path, int n_sets, const char *const *sets,
                          const ConfigContext *context, ConfigReport *report)
{
    Load load = {.path = path, .sets = sets, .n_sets = n_sets};
    if (context != NULL) load.context = *context;
    if (path == NULL) return parse(&load, NULL, 0, report);
    size_t length;
    const char *why;
    /* One byte more than the JSON reader accepts (plus a byte order mark), so that the reader
     * itself reports a file that is too large. */
    char *text = file_read_input(path, JSON_MAX_BYTES + 4, &length, &why);
    if (text == NULL) {
        load_error(&load, (ConfigPlace){0}, "", "cannot be read: %s", why);
        report_findings(&load, report);
        report->missing = true;
        return NULL;
    }
    const Config *config = parse(&load, text, length, report);
    free(text);
    return config;
}

ExitCode config_report_code(const ConfigReport *report)
{
    ExitCode code = report->missing ? EXIT_MISSING : EXIT_CONFIG;
    return report->n_errors > 0 ? error_exit_code(report->error[0], code) : code;
}

void config_report_free(ConfigReport *report)
{
    for (int i = 0; i < report->n_errors; i++) {
        free(report->error[i]);
        free(report->remedy[i]);
    }
    for (int i = 0; i < report->n_notices; i++)
        free(report->notice[i]);
    free(report->error);
    free(report->remedy);
    free(report->notice);
    free(report->routine);
    free(report->idle);
    *report = (ConfigReport){0};
}

static int count_idle(const ConfigReport *report)
{
    int n = 0;
    for (int i = 0; i < report->n_notices; i++)
        n += report->idle[i];
    return n;
}

void config_report_count_idle(const ConfigReport *report, FILE *to)
{
    int n = count_idle(report);
    if (n > 0)
        fprintf(to, "%d key%s no effect here; --verbose lists %s\n", n, n == 1 ? " has" : "s have",
                n == 1 ? "it" : "them");
}

/* Prints the errors of a rank that is not rank 0 as one message: the first error, and the number of
 * the others. */
static void print_in_short(const ConfigReport *report)
{
    int more = report->n_errors - 1;
    char end[64] = "";
    if (report->n_errors == 0) return;
    if (more > 0) snprintf(end, sizeof end, " (and %d more mistake%s)", more, more == 1 ? "" : "s");
    error_print(config_report_code(report), "%s%s", report->error[0], end);
}

void config_report_print(const ConfigReport *report, bool verbose, FILE *to)
{
    int shown = 0;
    if (log_rank() > 0) {
        print_in_short(report);
        return;
    }
    bool alone = report->n_errors > 0 && !verbose; /* errors are printed without notices */
    for (int i = 0; !alone && i < report->n_notices; i++) {
        if ((report->routine[i] || report->idle[i]) && !verbose) continue;
        terminal_message(to, report->notice[i], MARK_NONE, 0);
        shown++;
    }
    if (!alone && !verbose) config_report_count_idle(report, to);
    int more = verbose ? 0 : report->n_notices - shown - count_idle(report);
    if (shown > 0 && more > 0)
        fprintf(to, "%d more notice%s (--verbose)\n", more, more == 1 ? "" : "s");
    for (int i = 0; i < report->n_errors; i++)
        terminal_message(to, report->error[i], MARK_NONE, 0);
    if (report->n_errors == LOAD_MAX_ERRORS)
        fprintf(to, "... there may be more: only %d are listed\n", LOAD_MAX_ERRORS);
    if (report->n_errors > 0) ends_tell(config_report_code(report), report->error[0], true);
}

const char *config_origin(const Config *config, const char *key)
{
    const Origin *origin = config->provenance;
    int row = option_find(key);
    CHECK(row >= 0, "no option is called %s", key);
    return origin[row].text;
}

const char *config_given_at(const Config *config, const char *key)
{
    const Origin *origin = config->provenance;
    int row = option_find(key);
    CHECK(row >= 0, "no option is called %s", key);
    return origin[row].given_at;
}

const char *config_word(const Config *config, const char *key)
{
    int row = option_find(key);
    CHECK(row >= 0 && option_table[row].type == OPTION_CHOICE, "%s takes no word", key);
    return option_choice_name(&option_table[row],
                              *(const int *)option_field(&option_table[row], config));
}

GridPlace config_grid(const Config *config, int64_t ranks)
{
    GridPlace grid = {(int)config->parallel.pipeline, 1, 1, (int)config->parallel.tensor};
    grid.dp = (int)(ranks > 0 ? ranks / grid_ranks(grid) : config->parallel.data);
    return grid;
}

int config_shard(const Config *config, int data)
{
    int64_t shard = config->parallel.shard;
    return config->zero_optimization.stage == 0 || shard == 0 ? data : (int)shard;
}

const char *config_grid_key(int number)
{
    for (int i = 0; i < option_count; i++)
        if ((option_table[i].flags & OPTION_GRID) != 0 && number-- == 0) return option_table[i].key;
    return NULL;
}

/* As in DeepSpeed: "AdamW" always uses decoupled weight decay, and so does "Adam" unless
 * adam_w_mode is false. */
bool config_decay_is_decoupled(const Config *config)
{
    return config->optimizer.type == OPTIMIZER_ADAMW ||
           (config->optimizer.type == OPTIMIZER_ADAM && config->optimizer.params.adam_w_mode);
}

DType config_dtype(const Config *config)
{
    return config->fp64.enabled   ? F64
           : config->bf16.enabled ? BF16
           : config->fp16.enabled ? F16
                                  : F32;
}

DType config_grad_dtype(const Config *config)
{
    switch (config->data_types.grad_accum_dtype) {
    case GRAD_DTYPE_F32: return F32;
    case GRAD_DTYPE_F16: return F16;
    case GRAD_DTYPE_BF16: return BF16;
    case GRAD_DTYPE_AUTO: break;
    }
    if (config->bf16.enabled && config->bf16.bf16_master_weights_and_grads) return BF16;
    return config->fp64.enabled ? F64 : F32;
}

DType config_communication_dtype(const Config *config)
{
    switch (config->communication_data_type) {
    case GRAD_DTYPE_F32: return F32;
    case GRAD_DTYPE_F16: return F16;
    case GRAD_DTYPE_BF16: return BF16;
    case GRAD_DTYPE_AUTO: break;
    }
    return config_grad_dtype(config);
}
