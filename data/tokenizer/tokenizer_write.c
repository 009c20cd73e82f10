/* tokenizer_write.c -- writes a Tokenizer as a Hugging Face tokenizer.json. Merges are written as
 * "a b", which all readers understand. */
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_added(const Tokenizer *t, FILE *to)
{
    const char *separator = "\n";
    fprintf(to, "  \"added_tokens\": [");
    for (int32_t id = 0; id < t->vocab_size; id++) {
        if (t->special[id] == NULL) continue;
        fprintf(to, "%s    {\"id\": %d, \"content\": ", separator, id);
        json_print_string(to, t->special[id]);
        fprintf(to, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                    "\"normalized\": false, \"special\": true}");
        separator = ",\n";
    }
    fprintf(to, "\n  ],\n");
}

static void print_model(const Tokenizer *t, FILE *to)
{
    char **text = must_calloc((size_t)t->vocab_size, sizeof *text);
    fprintf(to, "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                "\"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\", "
                "\"fuse_unk\": false, \"byte_fallback\": false,\n    \"vocab\": {");
    for (int32_t id = 0; id < t->vocab_size; id++) {
        text[id] = tokenizer_spelling(t, id);
        fprintf(to, "%s\n      ", id ? "," : "");
        json_print_string(to, text[id]);
        fprintf(to, ": %d", id);
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
    fprintf(to, "  \"normalizer\": null,\n"
                "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                "\"trim_offsets\": true, \"use_regex\": true},\n"
                "  \"post_processor\": null,\n"
                "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                "\"trim_offsets\": true, \"use_regex\": true},\n");
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
