/* tokenizer_rules.c -- reads and writes the rules by which a tokenizer.json turns text into
 * symbols; see tokenizer_rules.h.
 *
 * It is strict about everything that affects the ids of a text: if a file asks for anything that
 * this program would do differently, that is an error, which names the key. */
#include "data/tokenizer/tokenizer_rules.h"

#include "model/core/check.h"
#include "model/core/json_write.h"

#include <string.h>

#define SPACE_MARK "\342\226\201" /* U+2581, which stands for a space */

/* The patterns of words.c as files spell them. If a pattern has two spellings, the first is
 * written. */
static const struct {
    SplitPattern split;
    const char *regex;
} known_splits[] = {
    {SPLIT_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_LLAMA3, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                   "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_QWEN2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                  "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

const cJSON *rules_key(const cJSON *object, const char *name)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(found) ? NULL : found;
}

bool rules_true(const cJSON *object, const char *name, bool when_absent)
{
    const cJSON *found = rules_key(object, name);
    return found == NULL ? when_absent : cJSON_IsTrue(found);
}

static const char *text_key(const cJSON *object, const char *name)
{
    const cJSON *found = rules_key(object, name);
    return cJSON_IsString(found) ? found->valuestring : "";
}

static bool is_type(const cJSON *object, const char *type)
{
    return strcmp(text_key(object, "type"), type) == 0;
}

/* The steps of a normalizer or pre-tokenizer, including those inside of Sequences. */
typedef struct {
    const cJSON *step[8];
    int count;
} Steps;

/* Collects the steps. Returns false if there are too many. */
static bool collect_steps(const cJSON *from, const char *list, int depth, Steps *steps)
{
    if (from == NULL) return true;
    if (is_type(from, "Sequence")) {
        const cJSON *inner = rules_key(from, list);
        for (const cJSON *s = inner ? inner->child : NULL; s != NULL; s = s->next)
            if (depth == 4 || !collect_steps(s, list, depth + 1, steps)) return false;
        return true;
    }
    if (steps->count == (int)(sizeof steps->step / sizeof *steps->step)) return false;
    steps->step[steps->count++] = from;
    return true;
}

static bool replaces_spaces(const cJSON *step)
{
    return is_type(step, "Replace") &&
           strcmp(text_key(rules_key(step, "pattern"), "String"), " ") == 0 &&
           strcmp(text_key(step, "content"), SPACE_MARK) == 0;
}

static bool read_normalizer(const char *name, const cJSON *root, TokenizerRules *rules, char *err,
                            size_t n)
{
    Steps steps = {0};
    const cJSON *first = NULL;
    if (collect_steps(rules_key(root, "normalizer"), "normalizers", 0, &steps)) {
        first = steps.count > 0 ? steps.step[0] : NULL;
        bool prepend =
            is_type(first, "Prepend") && strcmp(text_key(first, "prepend"), SPACE_MARK) == 0;
        if (steps.count == 0) return true;
        rules->compose = is_type(first, "NFC");
        rules->characters = replaces_spaces(steps.step[steps.count - 1]);
        rules->prefix = prepend ? PREFIX_ALWAYS : PREFIX_NONE;
        if (steps.count == 1 && (rules->compose || rules->characters)) return true;
        if (steps.count == 2 && prepend && rules->characters) return true;
    }
    return error_set(err, n,
                     "%s changes text before encoding (normalizer%s%s) in another way than by NFC, "
                     "or by putting U+2581 for spaces, which is not supported",
                     name, first ? ": " : "", text_key(first, "type"));
}

/* Reads a step that splits by a regular expression. */
static bool read_split(const char *name, const cJSON *step, TokenizerRules *rules, char *err,
                       size_t n)
{
    const char *regex = text_key(rules_key(step, "pattern"), "Regex");
    const char *behavior = text_key(step, "behavior");
    bool invert = rules_true(step, "invert", false);
    bool isolated = strcmp(behavior, invert ? "Removed" : "Isolated") == 0;
    for (size_t i = 0; isolated && i < sizeof known_splits / sizeof *known_splits; i++)
        if (strcmp(regex, known_splits[i].regex) == 0) {
            rules->split = known_splits[i].split;
            return true;
        }
    if (strstr(regex, "\\p{Lu}") != NULL)
        return error_set(err, n,
                         "%s splits text by the pattern of o200k_base (GPT-4o, Llama 4) or one "
                         "like it (pre_tokenizer), which is not supported",
                         name);
    return error_set(err, n,
                     "%s splits text by another pattern than those of GPT-2, Llama 3, Qwen 2 and "
                     "SmolLM (pre_tokenizer): %s",
                     name, regex);
}

/* Reads the last step of the pre_tokenizer, ByteLevel, which turns bytes into characters.
 * `own_regex`: whether this step must also split the text, by GPT-2's pattern; otherwise it must
 * not. */
static bool read_byte_level(const char *name, const cJSON *step, bool own_regex, char *err,
                            size_t n)
{
    if (!is_type(step, "ByteLevel") || rules_true(step, "use_regex", true) != own_regex)
        return error_set(err, n,
                         "%s is not a byte-level tokenizer that splits text as GPT-2, Llama 3, "
                         "Qwen 2 or SmolLM do (pre_tokenizer: %s)",
                         name, text_key(step, "type"));
    if (rules_true(step, "add_prefix_space", true))
        return error_set(err, n,
                         "%s puts a space before text (add_prefix_space), which is not supported "
                         "in a byte-level tokenizer",
                         name);
    return true;
}

/* Reads a step of type Metaspace, which replaces spaces by U+2581 and may add one at the
 * beginning. */
static bool read_metaspace(const char *name, const cJSON *step, TokenizerRules *rules, char *err,
                           size_t n)
{
    const char *scheme = text_key(step, "prepend_scheme");
    if (scheme[0] == 0) scheme = rules_true(step, "add_prefix_space", true) ? "always" : "never";
    if (rules->characters || rules->compose ||
        strcmp(text_key(step, "replacement"), SPACE_MARK) != 0 || rules_true(step, "split", true))
        return error_set(err, n,
                         "%s splits text at spaces, or marks them by another character than U+2581 "
                         "(pre_tokenizer: Metaspace), which is not supported",
                         name);
    rules->characters = true;
    rules->prefix = strcmp(scheme, "first") == 0    ? PREFIX_FIRST
                    : strcmp(scheme, "always") == 0 ? PREFIX_EACH
                                                    : PREFIX_NONE;
    return true;
}

static bool read_pre_tokenizer(const char *name, const cJSON *root, TokenizerRules *rules,
                               char *err, size_t n)
{
    Steps steps = {0};
    bool readable = collect_steps(rules_key(root, "pre_tokenizer"), "pretokenizers", 0, &steps);
    const cJSON *first = steps.step[0], *last = steps.count > 1 ? steps.step[1] : NULL;
    rules->split = rules->characters ? SPLIT_SPACES : SPLIT_GPT2;
    if (readable && steps.count == 0 && rules->characters) return true;
    if (readable && steps.count == 1 && is_type(first, "Metaspace")) {
        rules->split = SPLIT_SPACES;
        return read_metaspace(name, first, rules, err, n);
    }
    if (rules->characters || !readable || steps.count == 0 || steps.count > 2)
        return error_set(err, n,
                         "%s splits text in another way than GPT-2, Llama 2, Llama 3, Qwen 2 and "
                         "SmolLM do (pre_tokenizer)",
                         name);
    if (steps.count == 1) return read_byte_level(name, first, true, err, n);
    if (is_type(first, "Split"))
        return read_split(name, first, rules, err, n) && read_byte_level(name, last, false, err, n);
    if (!is_type(first, "Digits") || !rules_true(first, "individual_digits", false))
        return error_set(err, n, "%s: the pre_tokenizer %s is not supported", name,
                         text_key(first, "type"));
    rules->split = SPLIT_SMOLLM;
    return read_byte_level(name, last, true, err, n);
}

static bool read_model(const char *name, const cJSON *model, TokenizerRules *rules, char *err,
                       size_t n)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const cJSON *dropout = rules_key(model, "dropout");
    if (!is_type(model, "BPE"))
        return error_set(err, n, "%s: model.type is \"%s\", not \"BPE\", which is not supported",
                         name, text_key(model, "type"));
    if (cJSON_IsNumber(dropout) && dropout->valuedouble != 0)
        return error_set(err, n, "%s asks for dropout of merges, which is not supported", name);
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++)
        if (text_key(model, affixes[i])[0] != 0)
            return error_set(err, n, "%s: model.%s is not empty, which is not supported", name,
                             affixes[i]);
    if (!cJSON_IsObject(rules_key(model, "vocab")) || !cJSON_IsArray(rules_key(model, "merges")))
        return error_set(err, n, "%s has no model.vocab or no model.merges", name);
    if (cJSON_GetArraySize(rules_key(model, "merges")) == 0)
        return error_set(err, n, "%s has no merges", name);
    rules->ignore_merges = rules_true(model, "ignore_merges", false);
    if (rules->characters && rules->ignore_merges)
        return error_set(err, n,
                         "%s asks for ignore_merges without a pattern that splits text, which is "
                         "not supported",
                         name);
    if (rules->characters && !rules_true(model, "byte_fallback", false))
        return error_set(err, n,
                         "%s has neither bytes as symbols (ByteLevel) nor byte_fallback, so it "
                         "cannot encode all text, which is not supported",
                         name);
    return true;
}

bool rules_read(const char *name, const cJSON *root, TokenizerRules *rules, char *err, size_t n)
{
    *rules = (TokenizerRules){0};
    return read_normalizer(name, root, rules, err, n) &&
           read_pre_tokenizer(name, root, rules, err, n) &&
           read_model(name, rules_key(root, "model"), rules, err, n);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void print_normalizer(const TokenizerRules *rules, FILE *to)
{
    static const char replace[] = "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
                                  "\"content\": \"" SPACE_MARK "\"}";
    fprintf(to, "  \"normalizer\": ");
    if (rules->compose)
        fprintf(to, "{\"type\": \"NFC\"},\n");
    else if (rules->characters && rules->prefix == PREFIX_ALWAYS)
        fprintf(to,
                "{\"type\": \"Sequence\", \"normalizers\": [\n"
                "    {\"type\": \"Prepend\", \"prepend\": \"" SPACE_MARK "\"},\n    %s]},\n",
                replace);
    else if (rules->characters && rules->prefix == PREFIX_NONE)
        fprintf(to, "%s,\n", replace);
    else
        fprintf(to, "null,\n");
}

static void print_byte_level(bool use_regex, FILE *to)
{
    fprintf(to,
            "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
            "\"use_regex\": %s}",
            use_regex ? "true" : "false");
}

static void print_pre_tokenizer(const TokenizerRules *rules, FILE *to)
{
    const char *regex = NULL;
    for (size_t i = 0; regex == NULL && i < sizeof known_splits / sizeof *known_splits; i++)
        if (known_splits[i].split == rules->split) regex = known_splits[i].regex;
    fprintf(to, "  \"pre_tokenizer\": ");
    if (rules->characters) {
        if (rules->prefix == PREFIX_EACH || rules->prefix == PREFIX_FIRST)
            fprintf(to,
                    "{\"type\": \"Metaspace\", \"replacement\": \"" SPACE_MARK
                    "\", \"prepend_scheme\": \"%s\", \"split\": false}",
                    rules->prefix == PREFIX_FIRST ? "first" : "always");
        else
            fprintf(to, "null");
    } else if (rules->split == SPLIT_GPT2) {
        print_byte_level(true, to);
    } else {
        fprintf(to, "{\"type\": \"Sequence\", \"pretokenizers\": [\n    ");
        if (rules->split == SPLIT_SMOLLM) {
            fprintf(to, "{\"type\": \"Digits\", \"individual_digits\": true}");
        } else {
            fprintf(to, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
            json_print_string(to, regex);
            fprintf(to, "}, \"behavior\": \"Isolated\", \"invert\": false}");
        }
        fprintf(to, ",\n    ");
        print_byte_level(rules->split == SPLIT_SMOLLM, to);
        fprintf(to, "]}");
    }
    fprintf(to, ",\n");
}

void rules_print(const TokenizerRules *rules, FILE *to)
{
    print_normalizer(rules, to);
    print_pre_tokenizer(rules, to);
}

void rules_print_decoder(const TokenizerRules *rules, FILE *to)
{
    if (!rules->characters) {
        fprintf(to, "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                    "\"trim_offsets\": true, \"use_regex\": true},\n");
        return;
    }
    fprintf(to, "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [\n"
                "    {\"type\": \"Replace\", \"pattern\": {\"String\": \"" SPACE_MARK
                "\"}, \"content\": \" \"},\n"
                "    {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}");
    if (rules->prefix != PREFIX_NONE)
        fprintf(to, ",\n    {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}");
    fprintf(to, "]},\n");
}
