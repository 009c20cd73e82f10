/* tokenizer_write.c -- writes a Tokenizer as a Hugging Face tokenizer.json. Merges are written as
 * "a b", which all readers understand. */
#include "data/tokenizer/tokenizer_rules.h"
#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_flag(const char *name, bool value, FILE *to)
{
    fprintf(to, ", \"%s\": %s", name, value ? "true" : "false");
}

static int by_id(const void *a, const void *b)
{
    const AddedToken *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Prints the added tokens in order of their ids, as all writers do. */
static void print_added(const Tokenizer *t, FILE *to)
{
    size_t count = (size_t)t->added.count, size = sizeof *t->added.token;
    AddedToken *sorted = must_alloc(count * size + 1);
    if (count > 0) memcpy(sorted, t->added.token, count * size);
    qsort(sorted, count, size, by_id);
    fprintf(to, "  \"added_tokens\": [");
    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%s\n    {\"id\": %d, \"content\": ", i ? "," : "", sorted[i].id);
        json_print_string(to, sorted[i].content);
        print_flag("single_word", false, to);
        print_flag("lstrip", sorted[i].lstrip, to);
        print_flag("rstrip", sorted[i].rstrip, to);
        print_flag("normalized", sorted[i].normalized, to);
        print_flag("special", sorted[i].special, to);
        fprintf(to, "}");
    }
    fprintf(to, "\n  ],\n");
    free(sorted);
}

static void print_model(const Tokenizer *t, FILE *to)
{
    char **text = must_calloc((size_t)t->vocab_size, sizeof *text);
    const char *separator = "";
    fprintf(to, "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                "\"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\", "
                "\"fuse_unk\": false");
    print_flag("byte_fallback", t->rules.characters, to);
    if (t->rules.ignore_merges) print_flag("ignore_merges", true, to);
    fprintf(to, ",\n    \"vocab\": {");
    for (int32_t id = 0; id < t->vocab_size; id++) {
        if (t->kind[id] == TOKEN_UNUSED) continue;
        text[id] = tokenizer_spelling(t, id);
        fprintf(to, "%s\n      ", separator);
        json_print_string(to, text[id]);
        fprintf(to, ": %d", id);
        separator = ",";
    }
    fprintf(to, "\n    },\n    \"merges\": [");
    for (int32_t m = 0; m < t->n_merges; m++) {
        char *both = text_format("%s %s", text[t->merge[m].left], text[t->merge[m].right]);
        fprintf(to, "%s\n      ", m ? "," : "");
        json_print_string(to, both);
        free(both);
    }
    fprintf(to, "\n    ]\n  }\n}\n");
    for (int32_t id = 0; id < t->vocab_size; id++)
        free(text[id]);
    free(text);
}

char *tokenizer_to_json(const Tokenizer *t)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    fprintf(to, "{\n  \"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n");
    print_added(t, to);
    rules_print(&t->rules, to);
    fprintf(to, "  \"post_processor\": %s,\n", t->post_processor ? t->post_processor : "null");
    rules_print_decoder(&t->rules, to);
    print_model(t, to);
    fclose(to);
    return text;
}

bool tokenizer_save(const Tokenizer *t, const FsOps *fs, const char *path, char *err, size_t n)
{
    char *text = tokenizer_to_json(t);
    bool good = file_write(fs, path, text, strlen(text), err, n);
    free(text);
    return good;
}
