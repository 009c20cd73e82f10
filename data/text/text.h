/* text.h -- reads text from files: a plain file is one document; a .jsonl or .json file has one
 * document per line.
 *
 * The result is always UTF-8 without byte-order mark, with lines that end in LF. NUL bytes and
 * invalid UTF-8 are errors that name the file and byte offset: silently replacing them would train
 * on text that nobody wrote. */
#ifndef DATA_TEXT_TEXT_H
#define DATA_TEXT_TEXT_H

#include "model/core/check.h"
#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A sequence of documents, stored one after the other. Initialise it with {0}. */
typedef struct {
    uint8_t *bytes;
    int64_t size, capacity;
    int64_t *document_end; /* (n_documents) offset after each document's last byte, ascending */
    int64_t n_documents, documents_capacity;
} Text;

/* Appends all files that match `patterns` (file names or globs; the files of a glob are sorted). An
 * empty file is an error. On failure it returns false and sets `err` and *code: EXIT_MISSING
 * (nothing matches, or a file cannot be opened) or EXIT_DAMAGED (bad contents). */
bool text_read_files(Text *text, const StringList *patterns, const char *text_key, char *err,
                     size_t n, ExitCode *code);
/* Returns whether files match and none is empty, without reading them. If not, sets `err` and *code
 * as text_read_files does. */
bool text_check_files(const StringList *patterns, char *err, size_t n, ExitCode *code);
/* Appends the contents of one file that is already in memory. The ending of `name` decides between
 * plain text and JSON lines. */
bool text_add_file(Text *text, const char *name, const char *contents, size_t size,
                   const char *text_key, char *err, size_t n);
/* Appends one document: drops a byte-order mark, turns CRLF into LF, refuses NUL and invalid UTF-8.
 * Error messages begin with `place`, and byte offsets in them count from `base`. */
bool text_add_document(Text *text, const char *place, int64_t base, const uint8_t *bytes,
                       int64_t size, char *err, size_t n);
void text_free(Text *text);

/* Returns the byte offset at which the validation text begins: the first end of a document or line
 * at or after (1 - fraction) of the bytes. If the rest of the text has no such end before its last
 * byte, it is the offset itself, moved to the next character border. */
int64_t text_split(const Text *text, double fraction);

#endif
