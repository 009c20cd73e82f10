/* load.h -- one load of a config under way: where values come from, what was found wrong; private
 * to configs/. */
#ifndef CONFIGS_READER_LOAD_H
#define CONFIGS_READER_LOAD_H

#include "configs/reader/options.h"

#define LOAD_MAX_ERRORS 100

/* A place in the config file, or in one --set. */
typedef struct {
    int set; /* 0: the file; else the number of the --set, from 1 */
    int line, column;
} ConfigPlace;

typedef enum { ORIGIN_DEFAULT, ORIGIN_DERIVED, ORIGIN_FILE, ORIGIN_SET } OriginKind;
/* Where a value comes from. */
typedef struct {
    OriginKind kind;
    ConfigPlace place; /* of the key, where it was given */
    bool wrong; /* was given and refused; rules that read it stay silent: one mistake, one error */
    bool automatic; /* was given as "auto" */
    char *text;     /* for config_origin; malloc'ed */
} Origin;

static inline bool origin_given(const Origin *origin)
{
    return origin->kind == ORIGIN_FILE || origin->kind == ORIGIN_SET;
}

/* An error refuses the config. A notice says that something in it has no effect or not the one that
 * may be meant; a routine notice only says which default was taken, and is shown on request. */
typedef enum { FINDING_ERROR, FINDING_NOTICE, FINDING_ROUTINE } FindingKind;
typedef struct {
    FindingKind kind;
    ConfigPlace place;
    char *key, *text;
} Finding;

/* Where the document that is read gives a key, and its value there. */
typedef struct {
    ConfigPlace place;
    const cJSON *value;
} Seen;

/* One load under way. Everything that is found goes into it, and config.c sorts it by place at the
 * end: the rules are checked in an order of their own. */
typedef struct {
    const char *path; /* what messages call the file; NULL: none */
    const char *const *sets;
    int n_sets;
    ConfigContext context;
    Config *config;
    Origin *origin;   /* one per option; becomes config->provenance */
    Seen *seen;       /* one per option and known key */
    ConfigPlace root; /* where the config begins: the place of what is missing */
    bool unreadable;  /* the file is not JSON: rules between keys are silent */
    Finding *finding;
    int n_findings, capacity, n_errors;
    bool other_chunks; /* an error said to write other pipeline_chunks, and what goes with them */
} Load;

/* Collects "PLACE: key: sentence". */
void load_error(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_notice(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_routine(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Drops the errors and notices about the key so far: a later --set has replaced its value. */
void load_forget(Load *load, const char *key);
/* Sets a row to its default; rows without one to null, zero or a value below their range. */
void load_default(Load *load, int row);
/* About one key: was a value given, was it "auto", is its value unusable because it was refused? */
bool load_given(const Load *load, const char *key);
bool load_automatic(const Load *load, const char *key);
bool load_wrong(const Load *load, const char *key);
/* Whether the value of any of these keys, up to NULL, is unusable. */
bool load_any_wrong(const Load *load, const char *const *keys);
/* Where the key was given; where the config begins if it was not. */
ConfigPlace load_place(const Load *load, const char *key);
/* Marks the key's value as computed from others. */
void load_derived(Load *load, const char *key);
/* Sets an integer that was not given to `value`, which was computed from other keys. Does nothing
 * for a value <= 0: the keys that it comes from were refused. */
void load_follow(Load *load, const char *key, int64_t *field, int64_t value);

/* assign.c: all keys of one document; one --set. */
void assign_document(Load *load, Json *json);
void assign_set(Load *load, int set);
/* value.c: one value into the row's field, checked; false with an error collected at `at`. */
bool assign_field(Load *load, const Json *json, int node, int row, ConfigPlace at);
/* The same with its origin, null and "auto"; `key_at` is where its key stands, `value_at` the
 * value. */
void assign_value(Load *load, const Json *json, int node, int row, ConfigPlace key_at,
                  ConfigPlace value_at);
/* world.c: how many ranks there are, and parallel.data. */
void derive_world(Load *load);
/* batch.c: the three batch keys, what follows from what and what does not fit. */
void derive_batch(Load *load);
void check_batch(Load *load);
/* The divisors of `total` nearest to x from below and from above, as "a or b". */
void load_nearest_divisors(int64_t total, int64_t x, char *out, size_t n);
/* parallel.c: the sections parallel and pipeline. fit_opened: those of a text that is not read
 * for its own ranks. */
void fit_opened(Load *load);
/* The same for sequence_parallel, once the micro-batch is known: left out where its rows do not go
 * into the tensor-parallel ranks. */
void fit_opened_rows(Load *load);
void derive_parallel(Load *load);
void check_parallel(Load *load);
/* cut.c: the sizes of the grid. check_cut: whether the ranks are whole pipelines of tensor-parallel
 * ranks; false with an error collected, by check_tensor or check_stages at last, which refuse sizes
 * that are none for the model. check_tensor: false where it has refused one. */
bool check_cut(Load *load);
bool check_tensor(Load *load);
void check_stages(Load *load);
/* Whether each of so many runs of layers would have a block. */
bool cut_has_blocks(const Load *load, int64_t stages, int64_t chunks);
/* derive.c: values that follow from others. validate.c: rules between keys. scheduler.c: both for
 * its section. */
void derive_values(Load *load);
void validate_config(Load *load);
void derive_scheduler(Load *load);
void check_scheduler(Load *load);

#endif
