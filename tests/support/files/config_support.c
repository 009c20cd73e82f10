/* config_support.c -- makes and parses configs for tests. */
#include "tests/support/files/config_support.h"

#include "model/core/check.h"
#include "parallel/commands/commands.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *config_test_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail(EXIT_CONFIG, "%s cannot be opened; tests run from the repository's root", path);
    char *text = must_calloc(1, 1 << 20);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

const Config *config_test_parse(const char *text, int n_sets, const char *const *sets)
{
    ConfigReport report;
    const Config *config = config_parse(NULL, "c.json", text, strlen(text), n_sets, sets, &report);
    if (config == NULL) fail(EXIT_CONFIG, "%s\n%s", text, report.error[0]);
    config_report_free(&report);
    return config;
}

const Config *config_test_keys(const char *keys)
{
    char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8,\n%s}", keys);
    const Config *config = config_test_parse(text, 0, NULL);
    free(text);
    return config;
}

const Config *config_test_set(const char *set)
{
    return config_test_parse("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8}", 1, &set);
}

const Config *config_test_says(const char *keys, const char *set, const char *notice)
{
    ConfigReport report;
    char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                             "\"gradient_clipping\": 1%s\n%s}",
                             *keys ? "," : "", keys);
    const Config *c = config_parse(&(ConfigContext){.world = 1}, "c.json", text, strlen(text),
                                   set != NULL, &set, &report);
    int expected = *notice != '\0';
    if (c == NULL) fail(EXIT_CONFIG, "%s\n%s", text, report.error[0]);
    if (report.n_notices != expected || (expected && strcmp(report.notice[0], notice) != 0))
        fail(EXIT_CONFIG, "%s %s\n%d notices: %s\ninstead of %s", text, set ? set : "",
             report.n_notices, report.n_notices ? report.notice[0] : "", notice);
    config_report_free(&report);
    free(text);
    return c;
}

/* Returns a config with {"a": {"b": value}} for the key a.b, plus the keys that every valid config
 * needs; the caller frees it. */
static char *config_of(const char *key, const char *value)
{
    bool data = strncmp(key, "data.", 5) == 0,
         batch =
             strstr(key, "batch_size") != NULL || strcmp(key, "gradient_accumulation_steps") == 0;
    char *text = text_format("{%s%s", data ? "" : "\"data\": {\"text\": \"x\"}, ",
                             batch ? "" : "\"train_batch_size\": 8, ");
    int depth = 1;
    for (const char *part = key; part != NULL; depth++) {
        const char *dot = strchr(part, '.');
        int n = dot ? (int)(dot - part) : (int)strlen(part);
        char *more = text_format("%s%s\"%.*s\": ", text, part == key ? "" : "{", n, part);
        free(text);
        text = more;
        part = dot ? dot + 1 : NULL;
    }
    char *all = text_format("%s%s", text, value);
    free(text);
    for (int i = 1; i < depth; i++) {
        text = text_format("%s}", all);
        free(all);
        all = text;
    }
    return all;
}

int config_test_errors(const char *key, const char *value, int *n_notices)
{
    ConfigReport report;
    char *text = config_of(key, value);
    config_free(config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report));
    int n = report.n_errors;
    *n_notices = report.n_notices;
    config_report_free(&report);
    free(text);
    return n;
}

int config_test_command(char **argv)
{
    int argc = 0, out = dup(1), err = dup(2), nowhere = open("/dev/null", O_WRONLY);
    while (argv[argc] != NULL)
        argc++;
    fflush(stdout);
    dup2(nowhere, 1);
    dup2(nowhere, 2);
    int code = args_run(&cmd_config, argc, argv);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    close(nowhere);
    return code;
}
