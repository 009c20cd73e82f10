/* cmd_data.c -- `./train data`: trains a tokenizer, writes token shards, inspects and decodes them.
 */
#include "parallel/commands/cmd_data.h"
#include "data/text/meta.h"
#include "data/text/shards.h"
#include "data/text/text.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_set.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/fs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int64_t vocab, from, count;
    double val_fraction;
    const char *out, *tokenizer, *text_key;
    bool verify, skip_bad_lines, special_tokens;
    SplitPattern split;
    ArgList files;
} Arguments;

/* Returns the file names of the command line as a StringList. */
static StringList files_of(const Arguments *a)
{
    return (StringList){.count = a->files.count, .item = (char **)(uintptr_t)a->files.item};
}

/* Reads the text of the files of the command line. Returns false and sets err and *code on failure.
 */
static bool read_text(const Arguments *a, Text *text, char *err, size_t n, ExitCode *code)
{
    StringList given = files_of(a);
    Progress progress = progress_begin();
    const TextOptions options = {.text_key = a->text_key,
                                 .key_option = "--text-key ",
                                 .skip_option = "--skip-bad-lines",
                                 .skip_bad_lines = a->skip_bad_lines,
                                 .progress = &progress};
    /* A large text is kept in a temporary file in the folder of the result. */
    char *folder = path_beside(a->out, ".");
    text->folder = folder;
    bool good = text_read_files(text, &given, &options, err, n, code);
    text->folder = NULL;
    free(folder);
    progress_end(&progress);
    char *notes = text_notes_line(&text->notes);
    if (good && notes) printf("%s\n", notes);
    free(notes);
    return good;
}

/* Lists the token files that the patterns of the command line match; a folder stands for its .bin
 * files. The caller frees `files` with string_list_free. */
static bool list_tokens(const Arguments *a, StringList *files, char *err, size_t n)
{
    StringList given = files_of(a),
               patterns = {.count = given.count,
                           .item = must_calloc((size_t)given.count + 1, sizeof *patterns.item)};
    for (int i = 0; i < given.count; i++)
        patterns.item[i] =
            text_format(fs_is_folder(given.item[i]) ? "%s/*.bin" : "%s", given.item[i]);
    bool good = file_list(&patterns, files, err, n);
    string_list_free(&patterns);
    return good;
}

static int train_bpe(const void *values)
{
    const Arguments *a = values;
    char err[1024] = "";
    size_t n = sizeof err;
    ExitCode code;
    Text text = {0};
    Tokenizer *t = NULL;
    bool good = read_text(a, &text, err, n, &code);
    if (good) {
        code = EXIT_DAMAGED; /* if the text is too small for this vocabulary */
        Progress progress = progress_begin();
        BpeRequest r = {.text = text.bytes,
                        .size = text.size,
                        .vocab_size = a->vocab,
                        .split = a->split,
                        .pool = text_pool(0, text.size),
                        .progress = &progress};
        good = tokenizer_learn(&r, &t, NULL, err, n);
        pool_destroy(r.pool);
        progress_end(&progress);
    }
    if (good) {
        code = EXIT_CANNOT_CREATE; /* if the output cannot be written */
        char *folder = path_beside(a->out, "");
        good = fs_make_folders(&fs_system, folder, err, n) &&
               tokenizer_save(t, &fs_system, a->out, err, n);
        free(folder);
    }
    if (good)
        printf("%s: %d ids (256 bytes, %lld merges, %s) from %lld bytes of text\n", a->out,
               tokenizer_vocab_size(t), (long long)tokenizer_merge_count(t), END_OF_TEXT,
               (long long)text.size);
    tokenizer_free(t);
    text_free(&text);
    return good ? EXIT_OK : error_print(code, "%s", err);
}

static bool load_tokenizer(const char *path, Tokenizer **t, char *err, size_t n, ExitCode *code)
{
    bool missing = false;
    bool good = tokenizer_load(path, t, &missing, err, n);
    *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
    return good;
}

/* Returns false and sets err if the folder already has shards. If the new shards were fewer, a
 * reader would mix them with the remaining old ones. */
static bool check_no_shards(const char *folder, char *err, size_t n)
{
    for (Split k = 0; k < SPLITS; k++) {
        char *path = split_shard_path(folder, k, 0);
        bool there = access(path, F_OK) == 0;
        if (there) error_set(err, n, "%s is there already; name a new folder", path);
        free(path);
        if (there) return false;
    }
    return fs_make_folders(&fs_system, folder, err, n);
}

static bool write_shards(const Arguments *a, const Tokenizer *t, const Text *text, char *err,
                         size_t n)
{
    /* The last part of the text is kept for validation, as when a run prepares its own data. */
    int64_t end = text_split(text, a->val_fraction);
    const TextRange range[SPLITS] = {[SPLIT_TRAIN] = {.text = text, .to = end},
                                     [SPLIT_VAL] = {.text = text, .from = end, .to = text->size}};
    Meta meta = {.documents = text->n_documents};
    Progress progress = progress_begin();
    const ShardOptions options = {.special_tokens = a->special_tokens, .progress = &progress};
    bool good = shards_write(t, range, &fs_system, a->out, &meta, &options, err, n);
    progress_end(&progress);
    for (Split k = 0; good && k < SPLITS; k++)
        printf("%-6s %lld bytes  %lld tokens  %lld files\n", split_name[k],
               (long long)meta.split[k].bytes, (long long)meta.split[k].tokens,
               (long long)meta.split[k].shards);
    meta_free(&meta);
    return good;
}

static int tokenize(const void *values)
{
    const Arguments *a = values;
    char err[1024] = "";
    size_t n = sizeof err;
    ExitCode code;
    Text text = {0};
    Tokenizer *t = NULL;
    if (!(a->val_fraction >= 0 && a->val_fraction < 1))
        return error_print(EXIT_USAGE, "--val-fraction is a share: at least 0, less than 1");
    bool good =
        load_tokenizer(a->tokenizer, &t, err, n, &code) && read_text(a, &text, err, n, &code);
    if (good) {
        code = EXIT_CANNOT_CREATE;
        good = check_no_shards(a->out, err, n) && write_shards(a, t, &text, err, n);
    }
    text_free(&text);
    tokenizer_free(t);
    return good ? EXIT_OK : error_print(code, "%s", err);
}

/* Prints how many tokens a shard has, and the range of their ids. Returns false and sets err if an
 * id is outside the vocabulary. */
static bool inspect_file(const TokenSet *s, int64_t vocab, bool verified, char *err, size_t n)
{
    enum { CHUNK = 1 << 14 };
    const TokenFile *f = &s->file[0];
    int32_t ids[CHUNK], smallest = INT32_MAX, largest = -1;
    for (int64_t at = 0; at < f->n_tokens; at += CHUNK) {
        int64_t count = f->n_tokens - at < CHUNK ? f->n_tokens - at : CHUNK;
        if (!token_set_read(s, at, count, vocab, ids, err, n)) return false;
        for (int64_t i = 0; i < count; i++) {
            smallest = ids[i] < smallest ? ids[i] : smallest;
            largest = ids[i] > largest ? ids[i] : largest;
        }
    }
    printf("%s: %lld tokens of %d bits", f->path, (long long)f->n_tokens, 8 * f->width);
    if (largest >= 0) printf(", ids from %d to %d", smallest, largest);
    printf(verified ? ", as meta.json says\n" : "\n");
    return true;
}

static int inspect(const void *values)
{
    const Arguments *a = values;
    char err[1024] = "";
    size_t n = sizeof err;
    /* Without a vocabulary, any id that fits in the file's integer type is accepted. */
    int64_t vocab = a->vocab > 0 ? a->vocab : INT64_C(1) << 31;
    ExitCode code = EXIT_OK;
    if (a->tokenizer) {
        Tokenizer *t;
        if (!load_tokenizer(a->tokenizer, &t, err, n, &code)) return error_print(code, "%s", err);
        vocab = tokenizer_vocab_size(t);
        tokenizer_free(t);
    }
    StringList files;
    if (!list_tokens(a, &files, err, n)) return error_print(EXIT_MISSING, "%s", err);
    bool good = true, known = true;
    for (int i = 0; good && i < files.count; i++) {
        TokenSet s = {0};
        /* Opens one file at a time, so that the files before a bad one are still printed. */
        StringList one = {.count = 1, .item = &files.item[i]};
        good = (!a->verify || meta_verify(files.item[i], &known, err, n)) &&
               token_set_open(&s, &one, err, n) && inspect_file(&s, vocab, a->verify, err, n);
        token_set_close(&s);
    }
    string_list_free(&files);
    return good ? EXIT_OK : error_print(known ? EXIT_DAMAGED : EXIT_MISSING, "%s", err);
}

/* Prints a->count tokens as text to stdout, beginning with token a->from; if a->count < 0, all
 * tokens from there on. */
static bool decode_tokens(const Arguments *a, const Tokenizer *t, const TokenSet *s, char *err,
                          size_t n)
{
    int64_t from = a->from < s->n_tokens ? a->from : s->n_tokens, left = s->n_tokens - from;
    if (a->count >= 0 && a->count < left) left = a->count;
    /* Decode in pieces, because a shard may be larger than memory. */
    int32_t ids[4096];
    while (left > 0) {
        int64_t some = left < 4096 ? left : 4096, size;
        if (!token_set_read(s, from, some, tokenizer_vocab_size(t), ids, err, n)) return false;
        char *text = tokenizer_decode(t, ids, some, true, &size);
        fwrite(text, 1, (size_t)size, stdout);
        free(text);
        from += some;
        left -= some;
    }
    return true;
}

static int decode(const void *values)
{
    const Arguments *a = values;
    char err[1024] = "";
    size_t n = sizeof err;
    if (a->from < 0) return error_print(EXIT_USAGE, "--from counts tokens from 0");
    StringList files;
    if (!list_tokens(a, &files, err, n)) return error_print(EXIT_MISSING, "%s", err);
    char *path =
        a->tokenizer ? must_strdup(a->tokenizer) : path_beside(files.item[0], "tokenizer.json");
    Tokenizer *t = NULL;
    TokenSet s = {0};
    ExitCode code;
    bool good = load_tokenizer(path, &t, err, n, &code);
    if (good) {
        code = EXIT_DAMAGED;
        good = token_set_open(&s, &files, err, n) && decode_tokens(a, t, &s, err, n);
    }
    token_set_close(&s);
    tokenizer_free(t);
    free(path);
    string_list_free(&files);
    return good ? EXIT_OK : error_print(code, "%s", err);
}

/* Reads the value of --split. */
static bool parse_split(const char *text, void *field, char *err, size_t n)
{
    return split_by_name(text, field) ||
           error_set(err, n, "--split %s: the patterns are gpt2, llama3, qwen2 and smollm", text);
}

static const Arguments defaults = {.count = -1, .text_key = "text"};

/* Options that several commands share; each command has its own help text for them. */
#define TOKENIZER(text)                                                                            \
    .name = "--tokenizer", .value = "FILE", .help = (text), .kind = ARG_NAME,                      \
    .at = offsetof(Arguments, tokenizer)
#define VOCAB(text)                                                                                \
    .name = "--vocab", .value = "N", .help = (text), .kind = ARG_INTEGER,                          \
    .at = offsetof(Arguments, vocab)
#define OUT(what, text)                                                                            \
    .name = "--out", .value = (what), .help = (text), .kind = ARG_NAME, .required = true,          \
    .at = offsetof(Arguments, out)
#define TEXT_KEY                                                                                   \
    .name = "--text-key", .value = "KEY",                                                          \
    .help = "key of the text in .jsonl and .json lines (text)", .kind = ARG_NAME,                  \
    .at = offsetof(Arguments, text_key)

#define SKIP_BAD_LINES                                                                             \
    .name = "--skip-bad-lines", .help = "leave out .jsonl and .json lines that have no text",      \
    .kind = ARG_FLAG, .at = offsetof(Arguments, skip_bad_lines)

static const ArgOption train_bpe_options[] = {
    {VOCAB("ids in all: 256 bytes, merges, <|endoftext|>; at least 258"), .required = true,
     .least = 258, .most = INT32_MAX},
    {OUT("FILE", "the tokenizer.json to write; its folder is made if needed")},
    {.name = "--split",
     .value = "NAME",
     .help = "the pattern that splits text into words: gpt2, llama3,\nqwen2 or smollm (gpt2)",
     .kind = ARG_OWN,
     .at = offsetof(Arguments, split),
     .parse = parse_split},
    {TEXT_KEY},
    {SKIP_BAD_LINES},
};

static const ArgOption tokenize_options[] = {
    {TOKENIZER("a tokenizer.json, .tiktoken file or GPT-2's vocab.bpe,\nor a folder with one"),
     .required = true},
    {OUT("FOLDER", "a folder without shards; made if needed")},
    {.name = "--special-tokens",
     .help = "names of special tokens in the text become those tokens;\nby default they are text "
             "like any other",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, special_tokens)},
    {.name = "--val-fraction",
     .value = "F",
     .help = "last share of the text, for val_000000.bin, ... (0)",
     .kind = ARG_REAL,
     .at = offsetof(Arguments, val_fraction)},
    {TEXT_KEY},
    {SKIP_BAD_LINES},
};

static const ArgOption inspect_options[] = {
    {TOKENIZER("ids must be in this vocabulary")},
    {VOCAB("ids must be below N")},
    {.name = "--verify",
     .help = "every byte must be what was written: a checksum is in\nmeta.json beside them",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, verify)},
};

static const ArgOption decode_options[] = {
    {TOKENIZER("their tokenizer (tokenizer.json beside the first)")},
    {.name = "--from",
     .value = "N",
     .help = "first token (0)",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, from)},
    {.name = "--count",
     .value = "N",
     .help = "how many tokens (all)",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, count)},
};

/* The fields that all command tables below share. */
#define DATA_COMMAND(title, rows, function)                                                        \
    .name = (title), .call = "./train data " title, .options = (rows),                             \
    .n_options = ARG_ROWS(rows),                                                                   \
    .words = {.least = 1,                                                                          \
              .most = ARGS_ANY,                                                                    \
              .at = offsetof(Arguments, files),                                                    \
              .missing = "which file? see ./train data " title " --help"},                         \
    .size = sizeof(Arguments), .defaults = &defaults, .run = (function)

static const ArgCommand command_train_bpe = {
    DATA_COMMAND("train-bpe", train_bpe_options, train_bpe),
    .usage = "--vocab N --out FILE TEXT...",
    .summary = "trains a byte-level BPE on text or JSONL files and writes a tokenizer.json",
};

static const ArgCommand command_tokenize = {
    DATA_COMMAND("tokenize", tokenize_options, tokenize),
    .usage = "--tokenizer FILE --out FOLDER TEXT...",
    .summary = "writes text or JSONL files as token shards: FOLDER/train_000000.bin, ...,\n"
               "with the tokenizer beside them",
};

static const ArgCommand command_inspect = {
    DATA_COMMAND("inspect", inspect_options, inspect),
    .usage = "[--tokenizer FILE | --vocab N] [--verify] SHARD|FOLDER...",
    .summary = "reads every token of the shards, checks it, and says how many there are\n"
               "and in which range",
};

static const ArgCommand command_decode = {
    DATA_COMMAND("decode", decode_options, decode),
    .usage = "[--tokenizer FILE] [--from N] [--count N] SHARD|FOLDER...",
    .summary = "prints tokens as text",
};

static const ArgCommand *const commands[] = {&command_train_bpe, &command_tokenize,
                                             &command_inspect, &command_decode,
                                             &command_data_corpora};

const ArgCommand cmd_data = {
    .name = "data",
    .call = "./train data",
    .summary = "train a tokenizer, tokenize text, look into token files",
    .notes = "./train data COMMAND --help says more.",
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};
