/* folder.c -- chooses, creates and locks the folder of a run, and reads and writes its files. */
#include "parallel/run/folder.h"

#include "model/core/files.h"
#include "model/core/log.h"
#include "model/core/shell_text.h"
#include "model/core/temporary.h"
#include "model/core/utf8.h"
#include "parallel/run/identity.h"
#include "parallel/run/run_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FOLDERS = 10000 };

/* Returns the content of FOLDER/NAME, or NULL and sets err if it cannot be read. The caller frees
 * it. */
static char *read_text(const char *folder, const char *name, size_t *bytes, char *err, size_t n)
{
    char *path = text_format("%s/%s", folder, name), *text = NULL;
    file_read_own(path, &text, bytes, err, n);
    free(path);
    return text;
}

static bool write_text(const char *folder, const char *name, const char *text, char *err, size_t n)
{
    return file_write_in(&fs_system, folder, name, text, strlen(text), err, n);
}

/* ---- what is in a folder --------------------------------------------------------------------- */

typedef enum { FOLDER_FREE, FOLDER_RUN, FOLDER_FOREIGN, FOLDER_NONE } FolderKind;

/* Classifies `path`: a folder with config.json is a run; one without it is foreign if it has a file
 * that a run would write, and free otherwise. FOLDER_NONE: `path` is not a folder. */
static FolderKind folder_kind(const char *path)
{
    static const char *const names[] = {"machine.json", "metrics.jsonl", "samples.txt",
                                        "result.json",  "checkpoints",   "tokenizer.json"};
    if (run_path_has(path, "config.json")) return FOLDER_RUN;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (run_path_has(path, names[i])) return FOLDER_FOREIGN;
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode) ? FOLDER_NONE : FOLDER_FREE;
}

/* Reads RUN/result.json into run->result. Returns false if it is missing or damaged. */
static bool read_result(RunFolder *run)
{
    char ignored[512];
    size_t bytes;
    char *text = read_text(run->path, "result.json", &bytes, ignored, sizeof ignored);
    bool good = text != NULL && run_result_parse(&run->result, text, bytes);
    free(text);
    return good;
}

/* Returns whether a run with this result has reached the goal of the config. A result with fewer
 * steps was written before train_steps was raised, or by a run that eval.patience ended. In the
 * second case the run is finished unless eval.patience is now larger, or is 0. */
static bool is_finished(const RunResult *r, const Config *config)
{
    int64_t patience = config->eval.patience;
    return r->steps >= config->train_steps || (patience > 0 && patience <= r->patience);
}

/* Removes FOLDER/STOP, which requested an earlier stop: it would stop every later run in this
 * folder. Returns false and sets err if it cannot be removed. */
static bool remove_stop(const char *folder, char *err, size_t n)
{
    char *stop = text_format("%s/STOP", folder);
    bool removed = unlink(stop) == 0 || rmdir(stop) == 0;
    int why = errno;
    if (removed) log_info("run     %s was left by an earlier stop; removed", stop);
    bool good = removed || why == ENOENT || why == ENOTDIR;
    if (!good)
        error_set(err, n, "%s asks every run here to stop and cannot be removed: %s", stop,
                  strerror(why));
    free(stop);
    return good;
}

/* Creates the folder `path` if needed, locks it and determines the run's state. Takes ownership of
 * `path`. Returns false and sets err on failure. */
static bool enter_folder(RunFolder *run, char *path, const Config *config, char *err, size_t n)
{
    run->path = path;
    run->stop = text_format("%s/STOP", path);
    if (!fs_make_folders(&fs_system, path, err, n) || !folder_lock_take(&run->lock, path, err, n))
        return false;
    temporary_sweep_folder(&fs_system, path);
    run->attempt = run->lock.attempt;
    run->state = run_path_has(path, "config.json") ? RUN_RESUMED : RUN_NEW;
    if (run->state == RUN_RESUMED && read_result(run) && is_finished(&run->result, config))
        run->state = RUN_FINISHED;
    return remove_stop(path, err, n);
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Makes a path out/NAME from the config's name. Replaces all characters except letters, digits,
 * '.', '_' and '-', and avoids names that out/ uses for other purposes. The caller frees it. */
static char *folder_name(const char *name)
{
    char *clean = text_format("%.100s", *name ? name : "run");
    for (char *p = clean; *p; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                     (*p >= '0' && *p <= '9') || *p == '_' || *p == '-' || (*p == '.' && p > clean);
        if (!plain) *p = '_';
    }
    bool taken = strcmp(clean, "corpora") == 0 || strcmp(clean, "bench") == 0;
    char *path = text_format("out/%s%s", clean, taken ? "-run" : "");
    free(clean);
    return path;
}

/* If this config has more steps than the run in `path`, and no other difference that changes the
 * training, prints how to make that run longer: without this hint a user may not expect that a new
 * run begins. */
static void suggest_longer(const char *path, const Config *stored, const Config *config)
{
    if (!identity_is_longer(stored, config)) return;
    char *folder = shell_quoted_path(path);
    log_info("run     %s is the same run with %lld steps;", path, (long long)stored->train_steps);
    log_info("        ./train %s --set train_steps=%lld%s would make it longer", folder,
             (long long)config->train_steps, identity_length_option(config));
    free(folder);
}

/* Returns the first of out/NAME, out/NAME-2, ... in which this config may start or resume; the
 * caller frees it. Returns NULL and sets err if all are taken, or if permissions hide the config in
 * one of them: that may be the run to resume, and skipping it would start a second one. `aloud`:
 * prints why folders are skipped. */
static char *choose_folder(const Config *config, bool never_resume, bool aloud, char *err, size_t n)
{
    char *base = folder_name(config->name);
    char sentence[2048];
    for (int i = 1; i <= MAX_FOLDERS; i++) {
        char *path = i == 1 ? must_strdup(base) : text_format("%s-%d", base, i);
        FolderKind kind = folder_kind(path);
        bool fits = kind == FOLDER_FREE, readable = true;
        /* A difference that matters means that this is another run, so the search continues without
         * a message. --allow-config-change applies only to a folder that --out names. */
        if (kind == FOLDER_RUN && !never_resume) {
            const Config *stored = run_folder_config(path, sentence, sizeof sentence);
            fits = stored != NULL && identity_may_resume(path, stored, config, false, false,
                                                         sentence, sizeof sentence);
            /* A config that is damaged or of another version is taken for another run's. If this
             * user is not permitted to read the config, this may be the run to resume. */
            readable = stored != NULL || error_exit_code(sentence, EXIT_CONFIG) != EXIT_PERMISSION;
            if (aloud && stored == NULL && readable)
                log_notice("%s is passed over: %s", path, sentence);
            if (aloud && stored != NULL && !fits) suggest_longer(path, stored, config);
            config_free(stored);
        }
        if (!readable)
            error_set(err, n,
                      "%s, so it cannot be told whether that run is this config's; choose "
                      "another folder with --out",
                      sentence);
        if (fits || !readable) {
            free(base);
            if (fits) return path;
            free(path);
            return NULL;
        }
        free(path);
    }
    free(base);
    error_set(err, n, "out/ has %d runs of this name; choose a folder with --out", MAX_FOLDERS);
    return NULL;
}

/* Returns true if the folder named by --out may be used; otherwise sets err and *code. */
static bool check_given_folder(const Config *config, const RunRequest *request, char *err, size_t n,
                               ExitCode *code)
{
    FolderKind kind = folder_kind(request->out);
    if (kind == FOLDER_FREE) return true;
    /* The user has named this folder, so each refusal states what is wrong with it. Without --out
     * the search would silently try the next name. */
    if (kind == FOLDER_NONE)
        return error_set(err, n, "%s is not a folder; choose another name with --out",
                         request->out);
    if (kind == FOLDER_FOREIGN)
        return error_set(
            err, n,
            "%s holds other things and no config.json, so it is no run; choose another folder",
            request->out);
    if (request->never_resume)
        return error_set(
            err, n, "%s holds a run and --resume never asks for a new one; choose another folder",
            request->out);
    *code = EXIT_CONFIG;
    const Config *stored = run_folder_config(request->out, err, n);
    bool good = stored != NULL && identity_may_resume(request->out, stored, config,
                                                      request->allow_config_change, true, err, n);
    config_free(stored);
    return good;
}

bool run_folder_open(RunFolder *run, const Config *config, const RunRequest *request, char *err,
                     size_t n, ExitCode *code)
{
    *run = (RunFolder){.lock = FOLDER_LOCK_NONE};
    *code = EXIT_CANNOT_CREATE;
    if (request->out && !check_given_folder(config, request, err, n, code)) return false;
    char *path = request->out ? must_strdup(request->out)
                              : choose_folder(config, request->never_resume, true, err, n);
    if (path == NULL) return false;
    *code = EXIT_CANNOT_CREATE;
    if (enter_folder(run, path, config, err, n)) return true;
    run_folder_close(run);
    return false;
}

char *run_folder_chosen(const Config *config, const RunRequest *request)
{
    char ignored[2048];
    if (request->out) return must_strdup(request->out);
    return choose_folder(config, request->never_resume, false, ignored, sizeof ignored);
}

const Config *run_folder_continued(const Config *config, const RunRequest *request)
{
    char ignored[2048];
    if (request->never_resume) return NULL;
    char *path = run_folder_chosen(config, request);
    const Config *stored = path != NULL && folder_kind(path) == FOLDER_RUN
                               ? run_folder_config(path, ignored, sizeof ignored)
                               : NULL;
    free(path);
    return stored;
}

void run_folder_close(RunFolder *run)
{
    folder_lock_release(&run->lock);
    free(run->path);
    free(run->stop);
    run_result_free(&run->result);
    *run = (RunFolder){.lock = FOLDER_LOCK_NONE};
}

bool run_folder_hold(RunFolder *run, char *err, size_t n)
{
    return folder_lock_hold(&run->lock, run->path, err, n);
}

bool run_folder_in_place(const RunFolder *run, char *err, size_t n)
{
    return folder_lock_in_place(&run->lock, run->path, err, n);
}

/* ---- content --------------------------------------------------------------------------------- */

/* Compares the config stored in the folder with the new one and sets *same. If they differ, copies
 * the stored one to config.before-attempt-N.json, where N is the number of this attempt. Returns
 * false and sets err on failure. */
static bool keep_old_config(const RunFolder *run, const Config *config, bool *same, char *err,
                            size_t n)
{
    ConfigDifference *d;
    const Config *stored = run_folder_config(run->path, err, n);
    if (stored == NULL) return false;
    int count = config_diff(stored, config, &d);
    config_diff_free(d, count);
    config_free(stored);
    *same = count == 0;
    if (*same) return true;
    size_t bytes;
    char *old = read_text(run->path, "config.json", &bytes, err, n);
    char *name = text_format("config.before-attempt-%d.json", run->attempt);
    bool good = old != NULL && write_text(run->path, name, old, err, n);
    free(name);
    free(old);
    return good;
}

/* Renames RUN/result.json, the result of a run that is now made longer, to
 * result.before-attempt-N.json, so that only a finished run has a result.json. Returns false and
 * sets err on failure. */
static bool keep_old_result(const RunFolder *run, char *err, size_t n)
{
    if (run->result.steps == 0) return true; /* there is none */
    char *result = text_format("%s/result.json", run->path);
    char *old = text_format("%s/result.before-attempt-%d.json", run->path, run->attempt);
    bool good = rename(result, old) == 0 ||
                error_set(err, n, "cannot rename %s: %s", result, strerror(errno));
    free(old);
    free(result);
    return good;
}

/* Writes config.json, and the origins of its values to config.origins.json. A value that has not
 * changed keeps the origin that it had at an earlier start. Returns false and sets err on
 * failure. */
static bool write_config(const RunFolder *run, const Config *config, char *err, size_t n)
{
    static const char origins[] = "config.origins.json";
    char *text, ignored[512];
    size_t bytes;
    /* A run folder of an older program has no such file. */
    char *earlier = read_text(run->path, origins, &bytes, ignored, sizeof ignored);
    size_t size;
    FILE *to = text_stream(&text, &size);
    config_print_origins(config, earlier, earlier ? bytes : 0, to);
    fclose(to);
    bool good = write_text(run->path, origins, text, err, n);
    free(text);
    free(earlier);
    if (!good) return false;
    to = text_stream(&text, &size);
    config_print_json(config, to);
    fclose(to);
    good = write_text(run->path, "config.json", text, err, n);
    free(text);
    return good;
}

bool run_folder_describe(const RunFolder *run, const Config *config, const char *machine, char *err,
                         size_t n)
{
    bool same = false;
    if (run_path_has(run->path, "config.json") && !keep_old_config(run, config, &same, err, n))
        return false;
    /* An equal config is not rewritten, so the stored origins of its values stay those of the first
     * start. */
    if (!same && !write_config(run, config, err, n)) return false;
    if (!keep_old_result(run, err, n)) return false;
    char *name = run->attempt == 0 ? must_strdup("machine.json")
                                   : text_format("machine.attempt-%d.json", run->attempt);
    char *line = text_format("%s\n", machine);
    bool good = write_text(run->path, name, line, err, n);
    free(line);
    free(name);
    return good;
}

bool run_folder_note_command(const RunFolder *run, const char *command, const char *job, char *err,
                             size_t n)
{
    static const char name[] = "commands.txt";
    char when[32] = "", where[4096], *old = NULL;
    size_t bytes;
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &utc);
    if (getcwd(where, sizeof where) == NULL) snprintf(where, sizeof where, "an unknown folder");
    if (run_path_has(run->path, name) && (old = read_text(run->path, name, &bytes, err, n)) == NULL)
        return false;
    /* A line feed in the folder's name would end the comment. */
    char *folder = utf8_line(where);
    char *text = text_format("%s# attempt %d, %s, in %s%s%s\n%s\n", old ? old : "", run->attempt,
                             when, folder, *job ? ", " : "", job, command);
    bool good = write_text(run->path, name, text, err, n);
    free(text);
    free(folder);
    free(old);
    return good;
}

bool run_folder_finish(const RunFolder *run, const RunResult *result, char *err, size_t n)
{
    char *text = run_result_text(result);
    bool good = write_text(run->path, "result.json", text, err, n);
    free(text);
    return good;
}

const Config *run_folder_config(const char *path, char *err, size_t n)
{
    size_t bytes;
    char *text = read_text(path, "config.json", &bytes, err, n);
    if (text == NULL) return NULL;
    char *name = text_format("%s/config.json", path);
    ConfigReport report = {0};
    const Config *config =
        config_parse(&(ConfigContext){.stored = true}, name, text, bytes, 0, NULL, &report);
    if (config == NULL)
        error_set(err, n, "the config that this run was started with is not understood: %s",
                  report.n_errors > 0 ? report.error[0] : name);
    config_report_free(&report);
    free(name);
    free(text);
    return config;
}

bool run_folder_stop_asked(const RunFolder *run)
{
    return access(run->stop, F_OK) == 0;
}
