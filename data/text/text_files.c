/* text_files.c -- finds the files of a text and reads them; see text.h. */
#include "data/text/text.h"
#include "data/text/text_parser.h"
#include "data/text/text_stream.h"
#include "model/core/check.h"
#include "model/core/files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- finding --------------------------------------------------------------------------------- */

/* Appends all files in the folder and in its subfolders. A link to a folder is not followed, so
 * that links cannot form a cycle. */
static bool list_folder(const char *folder, StringList *out, char *err, size_t n)
{
    struct dirent **entry;
    int count = fs_scan(folder, &entry);
    bool good = count >= 0;
    if (!good) error_set(err, n, "cannot look into %s: %s", folder, strerror(errno));
    for (int i = 0; i < count; i++) {
        char *path = text_format("%s/%s", folder, entry[i]->d_name);
        struct stat info;
        if (good && lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
            good = list_folder(path, out, err, n);
        else if (good && !fs_is_folder(path))
            string_list_add(out, path);
        free(path);
        free(entry[i]);
    }
    if (count >= 0) free(entry);
    return good;
}

/* Appends the files that one pattern names. */
static bool list_pattern(const char *pattern, StringList *out, char *err, size_t n)
{
    StringList found = {0}, one = {.count = 1, .item = (char *[]){(char *)(uintptr_t)pattern}};
    if (strcmp(pattern, "-") == 0) {
        string_list_add(out, pattern);
        return true;
    }
    bool good = file_list(&one, &found, err, n);
    for (int i = 0; good && i < found.count; i++) {
        int before = out->count;
        if (!fs_is_folder(found.item[i]))
            string_list_add(out, found.item[i]);
        else if ((good = list_folder(found.item[i], out, err, n)) && out->count == before)
            good = error_set(err, n, "the folder %s has no files", found.item[i]);
    }
    string_list_free(&found);
    return good;
}

/* Lists all files. The caller frees the list in any case. */
static bool list_files(const StringList *patterns, StringList *out, char *err, size_t n)
{
    *out = (StringList){0};
    for (int i = 0; i < patterns->count; i++)
        if (!list_pattern(patterns->item[i], out, err, n)) return false;
    return true;
}

const char *text_file_shown(const char *path)
{
    return strcmp(path, "-") == 0 ? STANDARD_INPUT : path;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads an open file to its end. */
static bool read_stream(Text *text, TextStream *s, const char *name, const TextOptions *options,
                        char *err, size_t n)
{
    enum { PIECE = 1 << 18 };
    uint8_t *piece = must_alloc(PIECE);
    TextParser p;
    int64_t got = 0;
    text_parser_begin(&p, text, name, options);
    bool good = true;
    while (good && (got = text_stream_read(s, piece, PIECE, err, n)) > 0) {
        progress_print(options->progress, "reading: %.0f MB of text", 1e-6 * (double)text->size);
        good = text_parser_add(&p, piece, got, err, n);
    }
    good = good && got == 0 && text_parser_end(&p, err, n);
    text_parser_free(&p);
    free(piece);
    return good;
}

bool text_read_files(Text *text, const StringList *patterns, const TextOptions *options, char *err,
                     size_t n, ExitCode *code)
{
    StringList files;
    *code = EXIT_MISSING;
    bool good = list_files(patterns, &files, err, n);
    for (int i = 0; good && i < files.count; i++) {
        bool missing;
        const char *name = text_file_shown(files.item[i]);
        TextStream *s = text_stream_open(files.item[i], &missing, err, n);
        good = s != NULL && read_stream(text, s, name, options, err, n);
        if (!good)
            *code = missing ? EXIT_MISSING : text->unstored ? EXIT_CANNOT_CREATE : EXIT_DAMAGED;
        if (s) text_stream_close(s);
    }
    string_list_free(&files);
    return good;
}

bool text_check_files(const StringList *patterns, char *err, size_t n, ExitCode *code)
{
    StringList files;
    *code = EXIT_MISSING;
    bool good = list_files(patterns, &files, err, n);
    for (int i = 0; good && i < files.count; i++) {
        size_t size = 0;
        if (strcmp(files.item[i], "-") == 0) continue;
        good = file_check(files.item[i], &size, err, n);
        if (!good || size > 0) continue;
        *code = EXIT_DAMAGED;
        good = error_set(err, n, "%s is empty", files.item[i]);
    }
    string_list_free(&files);
    return good;
}
