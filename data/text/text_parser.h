/* text_parser.h -- turns the bytes of one file, which arrive in pieces, into documents of a text:
 * plain text is one document, JSON lines are one document per line. How the bytes are divided into
 * pieces does not matter. */
#ifndef DATA_TEXT_TEXT_PARSER_H
#define DATA_TEXT_TEXT_PARSER_H

#include "data/text/text.h"

typedef struct {
    Text *text;
    const char *name; /* the file's name, for error messages */
    TextOptions options;
    bool lines;               /* the file has JSON lines */
    int64_t at;               /* offset of `kept` in the file */
    int64_t line;             /* number of the line that begins at `at`, from 1 */
    int64_t documents_before; /* documents of the text before this file */
    int64_t skipped;          /* bad lines of this file */
    uint8_t *kept;            /* bytes that have not been added to the text yet */
    int64_t n_kept, capacity;
    int64_t searched; /* for JSON lines: kept[0 .. searched) has no line feed */
} TextParser;

/* Begins a file. It has JSON lines if `name` ends in .jsonl or .json, optionally followed by .gz or
 * .zst. `options` may be NULL. */
void text_parser_begin(TextParser *p, Text *text, const char *name, const TextOptions *options);
/* Parses the next piece. Returns false and sets `err` if the contents are bad, or if the text
 * cannot be stored. */
bool text_parser_add(TextParser *p, const void *bytes, int64_t size, char *err, size_t n);
/* Ends the file. Fails like text_parser_add, and if the file is empty or has no good line. */
bool text_parser_end(TextParser *p, char *err, size_t n);
/* Frees the parser's memory. Must always be called, also after a failure. */
void text_parser_free(TextParser *p);

#endif
