/* cmd_data.c -- ./train data: train a tokenizer, make token shards, look into them. */
#include "parallel/commands/cmd_data.h"

#include "data/text/meta.h"
#include "data/text/shards.h"
#include "data/text/text.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_set.h"
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/fs.h"
#include "model/core/nearest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a command line may say; which command takes which flag is in the tables below. */
typedef struct {
    int64_t vocab, from, count;
    double val_fraction;
    const char *out, *tokenizer, *text_key;
    bool verify;
    StringList files; /* borrowed from argv */
} DataArgs;

typedef enum { FLAG_INTEGER, FLAG_NUMBER, FLAG_TEXT, FLAG_SWITCH } FlagKind;

typedef struct {
    const char *name;
    FlagKind kind;
    size_t offset; /* in DataArgs */
    const char *commands;
} Flag;

static const Flag flags[] = {
    {"--vocab", FLAG_INTEGER, offsetof(DataArgs, vocab), "train-bpe inspect"},
    {"--from", FLAG_INTEGER, offsetof(DataArgs, from), "decode"},
    {"--count", FLAG_INTEGER, offsetof(DataArgs, count), "decode"},
    {"--val-fraction", FLAG_NUMBER, offsetof(DataArgs, val_fraction), "tokenize"},
    {"--out", FLAG_TEXT, offsetof(DataArgs, out), "train-bpe tokenize"},
    {"--tokenizer", FLAG_TEXT, offsetof(DataArgs, tokenizer), "tokenize inspect decode"},
    {"--text-key", FLAG_TEXT, offsetof(DataArgs, text_key), "train-bpe tokenize"},
    {"--verify", FLAG_SWITCH, offsetof(DataArgs, verify), "inspect"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

/* Says the sentence on stderr and returns the code, for a command to return. */
static int refuse(ExitCode code, const char *sentence)
{
    code = error_exit_code(sentence, code);
    fprintf(stderr, "error[%d] %s\n", (int)code, sentence);
    return (int)code;
}

static bool set_flag(const Flag *f, const char *value, DataArgs *a)
{
    char *field = (char *)a + f->offset, *end = NULL;
    errno = 0;
    switch (f->kind) {
    case FLAG_INTEGER: *(int64_t *)(void *)field = strtoll(value, &end, 10); break;
    case FLAG_NUMBER: *(double *)(void *)field = strtod(value, &end); break;
    case FLAG_TEXT: *(const char **)(void *)field = value; return true;
    case FLAG_SWITCH: *(bool *)(void *)field = true; return true;
    }
    return errno == 0 && end != value && *end == 0;
}

/* The flags of this command, as options; their rows in `flag`. Returns how many. */
static int flags_of(const char *command, ArgOption *options, const Flag **flag)
{
    int n = 0;
    for (int i = 0; i < N_FLAGS; i++) {
        if (strstr(flags[i].commands, command) == NULL) continue;
        ArgKind kind = flags[i].kind == FLAG_SWITCH ? ARG_FLAG : ARG_VALUE;
        options[n] = (ArgOption){flags[i].name, kind};
        flag[n++] = &flags[i];
    }
    return n;
}

/* Everything that is no flag is a file. a->files must have room for argc items. */
static bool parse_args(Args *args, const Flag **flag, DataArgs *a, char *err, size_t n)
{
    for (;;) {
        switch (args_next(args)) {
        case ARGS_WORD: a->files.item[a->files.count++] = (char *)args->value; break;
        case ARGS_OPTION:
            if (!set_flag(flag[args->option], args->value, a))
                return error_set(err, n, "%s: \"%s\" is not a number", flag[args->option]->name,
                                 args->value);
            break;
        case ARGS_HELP: break; /* looked for before */
        case ARGS_WRONG: return error_set(err, n, "%s", args->error);
        case ARGS_END:
            if (a->files.count > 0) return true;
            return error_set(err, n, "which file? see %s --help", args->command);
        }
    }
}

static int train_bpe(const DataArgs *a, char *err, size_t n)
{
    ExitCode code;
    Text text = {0};
    Tokenizer *t = NULL;
    if (a->out == NULL) return refuse(EXIT_USAGE, "data train-bpe needs --out FILE");
    if (a->vocab < 258) return refuse(EXIT_USAGE, "data train-bpe needs --vocab N, at least 258");
    bool good = text_read_files(&text, &a->files, a->text_key, err, n, &code);
    if (good) {
        code = EXIT_DAMAGED;
        Progress progress = progress_begin();
        good = tokenizer_train(text.bytes, text.size, a->vocab, &t, &progress, NULL, err, n);
        progress_end(&progress);
    }
    if (good) {
        code = EXIT_CANNOT_CREATE;
        good = tokenizer_save(t, a->out, err, n);
    }
    if (good)
        printf("%s: %d ids (256 bytes, %lld merges, %s) from %lld bytes of text\n", a->out,
               tokenizer_vocab_size(t), (long long)tokenizer_merge_count(t), END_OF_TEXT,
               (long long)text.size);
    tokenizer_free(t);
    text_free(&text);
    return good ? EXIT_OK : refuse(code, err);
}

static bool load_tokenizer(const char *path, Tokenizer **t, char *err, size_t n, ExitCode *code)
{
    bool missing = false;
    bool good = tokenizer_load(path, t, &missing, err, n);
    *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
    return good;
}

/* Refuses to write into a folder that has shards already: a rest of them would be read along with
 * the new ones. */
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

static bool write_shards(const DataArgs *a, const Tokenizer *t, const Text *text, char *err,
                         size_t n)
{
    int64_t end = text_split(text, a->val_fraction);
    const TextRange range[SPLITS] = {[SPLIT_TRAIN] = {.text = text, .to = end},
                                     [SPLIT_VAL] = {.text = text, .from = end, .to = text->size}};
    Meta meta = {.documents = text->n_documents};
    Progress progress = progress_begin();
    bool good = shards_write(t, range, a->out, &meta, &progress, err, n);
    progress_end(&progress);
    for (Split k = 0; good && k < SPLITS; k++)
        printf("%-6s %lld bytes  %lld tokens  %lld files\n", split_name[k],
               (long long)meta.split[k].bytes, (long long)meta.split[k].tokens,
               (long long)meta.split[k].shards);
    meta_free(&meta);
    return good;
}

static int tokenize(const DataArgs *a, char *err, size_t n)
{
    ExitCode code;
    Text text = {0};
    Tokenizer *t = NULL;
    if (a->tokenizer == NULL) return refuse(EXIT_USAGE, "data tokenize needs --tokenizer FILE");
    if (a->out == NULL) return refuse(EXIT_USAGE, "data tokenize needs --out FOLDER");
    if (!(a->val_fraction >= 0 && a->val_fraction < 1))
        return refuse(EXIT_USAGE, "--val-fraction is a share: at least 0, less than 1");
    bool good = load_tokenizer(a->tokenizer, &t, err, n, &code) &&
                text_read_files(&text, &a->files, a->text_key, err, n, &code);
    if (good) {
        code = EXIT_CANNOT_CREATE;
        good = check_no_shards(a->out, err, n) && write_shards(a, t, &text, err, n);
    }
    text_free(&text);
    tokenizer_free(t);
    return good ? EXIT_OK : refuse(code, err);
}

/* What one shard holds; false if an id is outside the vocabulary. */
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

static int inspect(const DataArgs *a, char *err, size_t n)
{
    int64_t vocab = a->vocab > 0 ? a->vocab : INT64_C(1) << 31;
    ExitCode code = EXIT_OK;
    if (a->tokenizer) {
        Tokenizer *t;
        if (!load_tokenizer(a->tokenizer, &t, err, n, &code)) return refuse(code, err);
        vocab = tokenizer_vocab_size(t);
        tokenizer_free(t);
    }
    StringList files;
    if (!file_list(&a->files, &files, err, n)) return refuse(EXIT_MISSING, err);
    bool good = true, known = true;
    for (int i = 0; good && i < files.count; i++) {
        TokenSet s = {0};
        StringList one = {.count = 1, .item = &files.item[i]};
        good = (!a->verify || meta_verify(files.item[i], &known, err, n)) &&
               token_set_open(&s, &one, err, n) && inspect_file(&s, vocab, a->verify, err, n);
        token_set_close(&s);
    }
    string_list_free(&files);
    return good ? EXIT_OK : refuse(known ? EXIT_DAMAGED : EXIT_MISSING, err);
}

/* Tokens [from, from + count) as text on stdout; count < 0: to the end. */
static bool decode_tokens(const DataArgs *a, const Tokenizer *t, const TokenSet *s, char *err,
                          size_t n)
{
    int64_t from = a->from < s->n_tokens ? a->from : s->n_tokens, left = s->n_tokens - from;
    if (a->count >= 0 && a->count < left) left = a->count;
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

static int decode(const DataArgs *a, char *err, size_t n)
{
    if (a->from < 0) return refuse(EXIT_USAGE, "--from counts tokens from 0");
    StringList files;
    if (!file_list(&a->files, &files, err, n)) return refuse(EXIT_MISSING, err);
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
    return good ? EXIT_OK : refuse(code, err);
}

typedef struct {
    const char *name, *usage, *help;
    int (*run)(const DataArgs *a, char *err, size_t n);
} Command;

static const Command commands[] = {
    {"train-bpe", "--vocab N --out FILE TEXT...",
     "Trains a byte-level BPE on text or JSONL files and writes a tokenizer.json.\n"
     "  --vocab N        ids in all: 256 bytes, merges, <|endoftext|>; at least 258\n"
     "  --out FILE       the tokenizer.json to write\n"
     "  --text-key KEY   key of the text in .jsonl and .json lines (text)\n",
     train_bpe},
    {"tokenize", "--tokenizer FILE --out FOLDER TEXT...",
     "Writes text or JSONL files as token shards: FOLDER/train_000000.bin, ..., with\n"
     "the tokenizer beside them.\n"
     "  --tokenizer FILE     a tokenizer.json or GPT-2's vocab.bpe\n"
     "  --out FOLDER         a folder without shards; made if needed\n"
     "  --val-fraction F     last share of the text, for val_000000.bin, ... (0)\n"
     "  --text-key KEY       key of the text in .jsonl and .json lines (text)\n",
     tokenize},
    {"inspect", "[--tokenizer FILE | --vocab N] [--verify] SHARD...",
     "Reads every token of the shards, checks it, and says how many there are and in\n"
     "which range.\n"
     "  --tokenizer FILE     ids must be in this vocabulary\n"
     "  --vocab N            ids must be below N\n"
     "  --verify             every byte must be what was written: a checksum is in\n"
     "                       meta.json beside them\n",
     inspect},
    {"decode", "[--tokenizer FILE] [--from N] [--count N] SHARD...",
     "Prints tokens as text.\n"
     "  --tokenizer FILE     their tokenizer (tokenizer.json beside the first)\n"
     "  --from N             first token (0)\n"
     "  --count N            how many tokens (all)\n",
     decode},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int help(FILE *to, int code)
{
    fprintf(to, "usage: ./train data COMMAND ...\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].usage);
    fprintf(to, "\n./train data COMMAND --help says more.\n");
    return code;
}

static int run_command(const Command *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!args_is_help(argv[i])) continue;
        printf("usage: ./train data %s %s\n\n%s", c->name, c->usage, c->help);
        return EXIT_OK;
    }
    char err[1024] = "", command[64];
    ArgOption options[N_FLAGS];
    const Flag *flag[N_FLAGS];
    snprintf(command, sizeof command, "./train data %s", c->name);
    Args args = {.command = command,
                 .options = options,
                 .count = flags_of(c->name, options, flag),
                 .argc = argc,
                 .argv = argv};
    DataArgs a = {.count = -1, .text_key = "text"};
    a.files.item = must_calloc((size_t)argc + 1, sizeof *a.files.item);
    bool good = parse_args(&args, flag, &a, err, sizeof err);
    int code = good ? c->run(&a, err, sizeof err) : refuse(EXIT_USAGE, err);
    free(a.files.item);
    return code;
}

int cmd_data(int argc, char **argv)
{
    if (argc < 2) {
        refuse(EXIT_USAGE, "./train data needs a command");
        return help(stderr, EXIT_USAGE);
    }
    if (args_is_help(argv[1])) return help(stdout, EXIT_OK);
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run_command(&commands[i], argc - 1, argv + 1);
    char sentence[512], end[256];
    const char *near = nearest_name(argv[1], commands, N_COMMANDS, sizeof *commands);
    did_you_mean(end, sizeof end, near, "see ./train data --help");
    snprintf(sentence, sizeof sentence, "./train data has no command \"%.200s\"%s", argv[1], end);
    return refuse(EXIT_USAGE, sentence);
}
