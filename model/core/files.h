/* files.h -- whole files, lists of files and folders, with sentences for what goes wrong. */
#ifndef MODEL_CORE_FILES_H
#define MODEL_CORE_FILES_H

#include "configs/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The whole of a regular file, zero-terminated; the caller frees. *missing (may be NULL): it could
 * not be opened. */
bool file_read(const char *path, char **contents, size_t *size, bool *missing, char *err, size_t n);

/* Whether file_read could open it, and how large it is. */
bool file_check(const char *path, size_t *size, char *err, size_t n);

/* A new empty folder beside `path`, to be renamed to it; its modes follow the umask. Its name,
 * which the caller frees; NULL with a sentence. */
char *temporary_folder(const char *path, char *err, size_t n);
/* A file that appears under `path` complete or not at all: written under a temporary name beside
 * it, fsynced, renamed; its modes follow the umask. Writing to `to` is the caller's; errors may be
 * left to the commit, which finds them. */
typedef struct {
    FILE *to;
    char *path, *temporary;
} AtomicFile;
bool atomic_file_open(AtomicFile *f, const char *path, char *err, size_t n);
bool atomic_file_commit(AtomicFile *f, char *err, size_t n);
/* Removes what was written; harmless after a commit. */
void atomic_file_abort(AtomicFile *f);

/* The files that patterns name, in their order, sorted within a glob. A pattern that matches
 * nothing is an error, and so is one whose braces would take for ever to try. */
bool file_list(const StringList *patterns, StringList *out, char *err, size_t n);
void string_list_free(StringList *list);

/* fsyncs a folder, so that names in it last. */
bool folder_sync(const char *path, char *err, size_t n);
/* "folder of path/name"; the caller frees. */
char *path_beside(const char *path, const char *name);

#endif
