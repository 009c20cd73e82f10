/* text.h -- a text in memory or in a file: its documents, and where the validation part begins.
 * text_files.c reads it from files.
 *
 * The text is always UTF-8 without byte-order mark, with lines that end in LF. NUL bytes and
 * invalid UTF-8 are errors that name the file and byte offset: silently replacing them would train
 * on text that nobody wrote. */
#ifndef DATA_TEXT_TEXT_H
#define DATA_TEXT_TEXT_H

#include "model/core/check.h"
#include "model/core/progress.h"
#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What was changed or left out while a text was read. */
typedef struct {
    int64_t crlf;      /* line ends CR LF that became LF */
    int64_t marks;     /* byte-order marks that were dropped */
    int64_t lines;     /* lines of JSON that are not blank */
    int64_t bad_lines; /* lines that were skipped (TextOptions.skip_bad_lines) */
    char *first_bad;   /* why the first of them was skipped; owned by the Text */
} TextNotes;

/* A sequence of documents, stored one after the other. Initialise it with {0}. */
typedef struct {
    uint8_t *bytes;
    int64_t size, capacity;
    int64_t *document_end; /* (n_documents) offset after each document's last byte, ascending */
    int64_t n_documents, documents_capacity;
    /* A text larger than `in_memory` bytes (0: TEXT_IN_MEMORY) is kept in an unnamed file in this
     * folder, which is created if needed. `bytes` is then a mapping of this file, so that the
     * system can write its pages to the disk and reclaim their memory. NULL: all text stays in
     * memory. */
    const char *folder;
    int64_t in_memory;
    int fd; /* the unnamed file, if `mapped` */
    bool mapped;
    bool unstored; /* the file could not be written; the error message says why */
    TextNotes notes;
} Text;

enum { TEXT_IN_MEMORY = 64 << 20 };

/* How files are read. A field that is zero means the default. */
typedef struct {
    const char *text_key; /* key of the text in a JSONL line; default "text" */
    /* The command-line option that sets text_key, for messages; default "--set data.text_key=". */
    const char *key_option;
    const char *skip_option; /* the option that sets skip_bad_lines; default "--set ...=true" */
    bool skip_bad_lines;     /* count and skip JSONL lines that have no text, instead of failing */
    Progress *progress;
} TextOptions;

/* Appends all files that match `patterns`. A pattern is a file name, a glob (its files are sorted),
 * a folder or "-" for standard input. A folder stands for all files in it and in its subfolders,
 * sorted, except names that begin with a dot. A file whose name ends in .jsonl or .json has one
 * document per line; any other file is one document. Files compressed with gzip or zstd are
 * decompressed; .gz and .zst are ignored when the type is determined. An empty file is an error. On
 * failure it returns false and sets `err` and *code: EXIT_MISSING (nothing matches, a file cannot
 * be opened, or the library to decompress it is missing), EXIT_DAMAGED (bad contents) or
 * EXIT_CANNOT_CREATE (text->folder has no room or cannot be written). */
bool text_read_files(Text *text, const StringList *patterns, const TextOptions *options, char *err,
                     size_t n, ExitCode *code);
/* Returns how messages name a file of the text: "standard input" for "-", otherwise its path. */
const char *text_file_shown(const char *path);
/* Returns whether files match and none is empty, without reading them. If not, sets `err` and *code
 * as text_read_files does. */
bool text_check_files(const StringList *patterns, char *err, size_t n, ExitCode *code);
/* Appends the contents of one file that is already in memory. The ending of `name` decides between
 * plain text and JSON lines. `options` may be NULL. */
bool text_add_file(Text *text, const char *name, const char *contents, size_t size,
                   const TextOptions *options, char *err, size_t n);
/* Appends one document: drops a byte-order mark, turns CRLF into LF, refuses NUL and invalid UTF-8.
 * Error messages begin with `place`, and byte offsets in them count from `base`. */
bool text_add_document(Text *text, const char *place, int64_t base, const uint8_t *bytes,
                       int64_t size, char *err, size_t n);
void text_free(Text *text);
/* Moves the text's notes to *to, which then owns their strings. */
void text_notes_take(TextNotes *to, Text *text);
/* Returns the notes as one line without a full stop, which the caller frees; NULL if there are
 * none. */
char *text_notes_line(const TextNotes *notes);

/* For a document that arrives in pieces: appends valid UTF-8 to the current document, and turns
 * CRLF into LF. Fails only if the text's file cannot be written. */
bool text_append(Text *text, const uint8_t *bytes, int64_t size, char *err, size_t n);
/* Ends the current document. */
void text_end_document(Text *text);
/* Returns the offset of the first byte that is NUL or not valid UTF-8; `size` if there is none. */
int64_t text_valid_bytes(const uint8_t *bytes, int64_t size);
/* Sets `err` to an error about bytes[at], which text_valid_bytes has found; `base` is the offset of
 * `bytes` in the file. Returns false. */
bool text_refuse_byte(const char *place, int64_t base, const uint8_t *bytes, int64_t at, char *err,
                      size_t n);
/* Returns the length of the byte-order mark at the start, or 0 if there is none. */
int64_t text_mark_length(const uint8_t *bytes, int64_t size);

/* Returns the byte offset at which the validation text begins: the first end of a document or line
 * at or after (1 - fraction) of the bytes. If no document or line ends between there and the last
 * byte, it is the start of the next character. */
int64_t text_split(const Text *text, double fraction);

#endif
