/* text.h -- a text in memory: documents, and where the validation part begins. text_files.c reads
 * it from files.
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
    int64_t bad_lines; /* those that were skipped (TextOptions.skip_bad_lines) */
    char *first_bad;   /* why the first of them was skipped; owned by the Text */
} TextNotes;

/* A sequence of documents, stored one after the other. Initialise it with {0}. */
typedef struct {
    uint8_t *bytes;
    int64_t size, capacity;
    int64_t *document_end; /* (n_documents) offset after each document's last byte, ascending */
    int64_t n_documents, documents_capacity;
    /* A text larger than `in_memory` bytes (0: TEXT_IN_MEMORY) is kept in a file without a name in
     * this folder, which is made if needed, and `bytes` is a mapping of that file: the system may
     * write its pages to the disk and take their memory. NULL: all of it stays in memory. */
    const char *folder;
    int64_t in_memory;
    int fd; /* that file, if `mapped` */
    bool mapped;
    bool unstored; /* the file could not be written; the error message says why */
    TextNotes notes;
} Text;

enum { TEXT_IN_MEMORY = 64 << 20 };

/* How files are read. A field that is zero means the default. */
typedef struct {
    const char *text_key;    /* key of the text in a JSONL line; default "text" */
    const char *key_option;  /* how the user sets it; default "--set data.text_key=" */
    const char *skip_option; /* how the user sets skip_bad_lines; default "--set ...=true" */
    bool skip_bad_lines;     /* count and skip JSONL lines that have no text, instead of failing */
    Progress *progress;
} TextOptions;

/* Appends all files that match `patterns`: file names, globs (their files are sorted), folders (all
 * files in them and in their folders, sorted; names that begin with a dot are left out), or "-" for
 * standard input. A file whose name ends in .jsonl or .json has one document per line; any other is
 * one document. Files that are compressed with gzip or zstd are unpacked; their ending .gz or .zst
 * is not part of the name. An empty file is an error. On failure it returns false and sets `err`
 * and *code: EXIT_MISSING (nothing matches, a file cannot be opened, or a library to unpack it is
 * missing), EXIT_DAMAGED (bad contents) or EXIT_CANNOT_CREATE (text->folder cannot take it). */
bool text_read_files(Text *text, const StringList *patterns, const TextOptions *options, char *err,
                     size_t n, ExitCode *code);
/* Returns how messages name a file of the text: "standard input" for "-". */
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
/* Adds the text's notes to *to, which then owns their strings; the text has none any more. */
void text_notes_take(TextNotes *to, Text *text);
/* Returns what the notes say, as one line without a full stop, which the caller frees; NULL if
 * there is nothing to say. */
char *text_notes_line(const TextNotes *notes);

/* The parts of text_add_document, for a document that arrives in pieces. text_append appends valid
 * UTF-8 to the document that text_end_document will end; it fails only if the text's file cannot
 * be written. */
bool text_append(Text *text, const uint8_t *bytes, int64_t size, char *err, size_t n);
void text_end_document(Text *text);
/* Returns the offset of the first byte that is NUL or not valid UTF-8; `size` if there is none. */
int64_t text_valid_bytes(const uint8_t *bytes, int64_t size);
/* Sets `err` to what is wrong with bytes[at], which text_valid_bytes has found; `base` is the
 * offset of `bytes` in the file. Returns false. */
bool text_refuse_byte(const char *place, int64_t base, const uint8_t *bytes, int64_t at, char *err,
                      size_t n);
/* Returns the length of the byte-order mark at the start, or 0 if there is none. */
int64_t text_mark_length(const uint8_t *bytes, int64_t size);

/* Returns the byte offset at which the validation text begins: the first end of a document or line
 * at or after (1 - fraction) of the bytes. If the rest of the text has no such end before its last
 * byte, it is the offset itself, moved to the next character border. */
int64_t text_split(const Text *text, double fraction);

#endif
