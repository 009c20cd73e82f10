/* text.h -- text from files: plain files are one document each, .jsonl and .json files one document
 * a line.
 *
 * What comes in has one form when it leaves: UTF-8 without byte-order mark, lines ended by LF. NUL
 * bytes and invalid UTF-8 are refused by file and byte offset, because silently replacing them
 * would train on something that nobody wrote. */
#ifndef DATA_TEXT_TEXT_H
#define DATA_TEXT_TEXT_H

#include "model/core/check.h"
#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Documents one after the other. Start from {0}. */
typedef struct {
    uint8_t *bytes;
    int64_t size, capacity;
    int64_t *document_end; /* (n_documents) offset just past each document, ascending */
    int64_t n_documents, documents_capacity;
} Text;

/* Appends all files of `patterns` (files or globs; sorted within a glob). Empty files are refused.
 * On false *code is EXIT_MISSING (nothing matches, cannot open) or EXIT_DAMAGED (contents). */
bool text_read_files(Text *text, const StringList *patterns, const char *text_key, char *err,
                     size_t n, ExitCode *code);
/* Whether text_read_files will find files and something in each, without reading them; else false
 * with its sentence and code. */
bool text_check_files(const StringList *patterns, char *err, size_t n, ExitCode *code);
/* Appends the contents of one file that is already in memory; `name` decides between plain text and
 * JSON lines. */
bool text_add_file(Text *text, const char *name, const char *contents, size_t size,
                   const char *text_key, char *err, size_t n);
/* Appends one document: drops a byte-order mark, turns CRLF into LF, refuses NUL and invalid UTF-8.
 * `place` begins the sentence of a refusal; offsets in it count from `base`. */
bool text_add_document(Text *text, const char *place, int64_t base, const uint8_t *bytes,
                       int64_t size, char *err, size_t n);
void text_free(Text *text);

/* Where validation begins: the first document or line border at or after (1 - fraction) of the
 * bytes; if there is none before the end, that byte itself, moved to a character border. */
int64_t text_split(const Text *text, double fraction);

#endif
