/* settle.c -- completes a config for a plan with the facts of the hardware and of an existing
 * tokenizer; see plan.h. */
#include "parallel/plan/plan.h"

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "model/core/files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many different ids token files with 16 bits per id can contain. */
enum { MOST_IDS_OF_16_BITS = 1 << 16 };

/* Returns whether a rank has a GPU, on hardware with GPUs. Each rank has one, unless the config
 * asks for the CPU, which plan_settle refuses. */
static bool on_gpu(const Config *config)
{
    return config->device != DEVICE_CPU;
}

ConfigContext plan_context(const Hardware *hardware, int64_t world)
{
    ConfigContext context = {.world = world};
    if (hardware->cuda) context.on_cuda = context.own_gpus = on_gpu;
    return context;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* Returns the first token file of data.train, or NULL if there is none yet. */
static char *first_shard(const Config *config)
{
    char ignored[512], *path = NULL;
    StringList files;
    if (config->data.train.count == 0) return NULL;
    if (!file_list(&config->data.train, &files, ignored, sizeof ignored)) return NULL;
    path = must_strdup(files.item[0]);
    string_list_free(&files);
    return path;
}

/* Returns the path of the tokenizer that a run will read (dataset.c). Returns NULL if the file does
 * not exist yet, or if the run trains its tokenizer. */
static char *tokenizer_there(const Config *config)
{
    char *shard = config->data.tokenizer ? NULL : first_shard(config), *path = NULL;
    if (config->data.tokenizer) path = must_strdup(config->data.tokenizer);
    if (shard) path = path_beside(shard, "tokenizer.json");
    free(shard);
    if (path == NULL || access(path, F_OK) == 0) return path;
    free(path);
    return NULL;
}

/* Sets *size to the number of ids of a tokenizer file. */
static bool read_size(const char *path, int64_t *size, ExitCode *code, char *err, size_t n)
{
    Tokenizer *tokenizer;
    bool missing;
    if (!tokenizer_load(path, &tokenizer, &missing, err, n)) {
        *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
        return false;
    }
    *size = tokenizer_vocab_size(tokenizer);
    tokenizer_free(tokenizer);
    return true;
}

/* Returns whether the number of ids in the token files has an upper bound that is useful. Ids of
 * more than 16 bits have none: then sets err. */
static bool has_ceiling(const Config *config, char *err, size_t n)
{
    char ignored[512], *shard = first_shard(config);
    TokenFile file;
    bool good = true;
    if (shard && token_file_open(&file, shard, ignored, sizeof ignored)) {
        good = file.width <= 2 ||
               error_set(err, n,
                         "%s has ids of 32 bits, and there is no tokenizer that says how many; set "
                         "model.vocab_size",
                         shard);
        token_file_close(&file);
    }
    free(shard);
    return good;
}

/* Finds the size of the vocabulary; 0: the size in the config remains. `tokenizer` is the path of
 * an existing tokenizer, or NULL. */
static bool find_vocabulary(const Config *config, const char *tokenizer, int64_t *size,
                            ExitCode *code, char *err, size_t n)
{
    *size = 0;
    if (tokenizer) return read_size(tokenizer, size, code, err, n);
    if (config_trains_tokenizer(config)) {
        *size = config_likely_vocab(config);
    } else if (config->model.vocab_size <= 0) {
        *size = MOST_IDS_OF_16_BITS;
        return has_ceiling(config, err, n);
    }
    return true;
}

const char *plan_vocabulary(const Config *config)
{
    if (config_trains_tokenizer(config))
        return "at most, as the text has not been read: a run may have fewer";
    /* A size that is not from the config itself has the origin "derived" (config_settle). */
    if (strcmp(config_origin(config, "model.vocab_size"), "derived") != 0) return NULL;
    char *tokenizer = tokenizer_there(config);
    bool known = tokenizer != NULL;
    free(tokenizer);
    return known ? NULL
                 : "at most, if a token id has 16 bits: there is no tokenizer to read; "
                   "set model.vocab_size to that of the data";
}

/* ---- the config ------------------------------------------------------------------------------ */

/* Returns whether this hardware can run the config; if not, sets err. */
static bool suits(const Config *config, const Hardware *hardware, char *err, size_t n)
{
    DeviceChoice wrong = hardware->cuda ? DEVICE_CPU : DEVICE_CUDA;
    const char *device = config_word(config, "device");
    if (config->device == wrong)
        return error_set(
            err, n,
            "%s: device: \"%s\", but the machine \"%s\" has %s; write \"auto\", or choose "
            "another --machine",
            config_given_at(config, "device"), device, hardware->name,
            hardware->cuda ? "GPUs" : "no GPUs");
    if (hardware->cuda && config->fp64.enabled)
        return error_set(
            err, n,
            "%s: fp64.enabled: only CPUs compute in f64, but the machine \"%s\" has GPUs; "
            "choose --machine cpu or another file of a CPU",
            config_given_at(config, "fp64.enabled"), hardware->name);
    return true;
}

const Config *plan_settle_run(const Config *config, const char *run, const Hardware *hardware,
                              ExitCode *code, char *err, size_t n)
{
    *code = EXIT_CONFIG;
    if (!suits(config, hardware, err, n)) return NULL;
    ConfigFacts facts = {.known = &hardware->device};
    char *own = run ? text_format("%s/tokenizer.json", run) : NULL,
         *there = tokenizer_there(config);
    if (own && access(own, F_OK) == 0) facts.tokenizer = own;
    facts.vocab_of = facts.tokenizer ? own : there;
    const Config *settled = NULL;
    if (find_vocabulary(config, facts.vocab_of, &facts.vocab_size, code, err, n))
        settled = config_settle(config, &facts, err, n);
    free(own);
    free(there);
    return settled;
}

const Config *plan_settle(const Config *config, const Hardware *hardware, char *err, size_t n)
{
    ExitCode ignored;
    return plan_settle_run(config, NULL, hardware, &ignored, err, n);
}
